"""Command lines made from a dataclass: a flag a field, and the sentence under the field as its help.

@dataclass
class Args:
    puzzles: int = 512
    '''Played once sampled and once greedy.'''

args = parse(Args)        # --puzzles 512
"""

import ast
import inspect
import sys
import textwrap
import types
from argparse import SUPPRESS, ArgumentParser, BooleanOptionalAction, RawDescriptionHelpFormatter
from collections.abc import Collection, Sequence
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from pbt_agents.errors import nearest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ArgsT = TypeVar("ArgsT", bound="DataclassInstance")


def parse(kind: type[ArgsT], argv: Sequence[str] | None = None, positional: Collection[str] = (), program: str | None = None) -> ArgsT:
    """An instance from the command line. A field without a default must be given; those in `positional` are given without a flag.

    Of a flag that is given twice the last one holds; where it takes several values, they add up.
    """
    parser = _Parser(
        program,
        description=sys.modules[kind.__module__].__doc__,
        formatter_class=RawDescriptionHelpFormatter,
        argument_default=SUPPRESS,  # the dataclass has its own
        allow_abbrev=False,
    )
    types_of, sentences = get_type_hints(kind), field_sentences(kind)
    for field in fields(kind):
        default = _default(field)
        text = sentences.get(field.name, "").replace("%", "%%")
        shown = text if default is MISSING or default is None else f"{text} [{default}]"
        reading, required = _reading(types_of[field.name]), default is MISSING
        if field.name in positional:
            optional = {} if required else {"nargs": "?", "default": default}
            parser.add_argument(field.name, help=text, metavar=field.name.upper(), **reading, **optional)
        else:
            parser.add_argument(f"--{field.name.replace('_', '-')}", help=shown.strip(), required=required, **reading)
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        near = nearest(unknown[0], parser.flags())
        parser.error(f"unknown flag or value '{unknown[0]}'.{f' Did you mean {near}?' if near else ''}")
    return kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in vars(given).items()})


class _Parser(ArgumentParser):
    """Refuses in one line, as the scripts do."""

    def flags(self) -> list[str]:
        return list(self._option_string_actions)

    def error(self, message: str) -> NoReturn:
        sentence = message if message.endswith((".", "?")) else f"{message}."
        self.exit(2, f"error: {sentence} All flags: {self.prog} --help\n")


def field_sentences(kind: type) -> dict[str, str]:
    """Field name -> the string that stands under it in the source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    sentences = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(below, ast.Expr):
            sentences[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return sentences


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _reading(hint: Any) -> dict[str, Any]:
    """How argparse reads a value of this type: bool, number, str, Path, Literal, tuple of one type, or one of these or None."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _reading(next(part for part in inner if part is not type(None)))
    if origin is Literal:
        return {"choices": inner, "type": type(inner[0])}
    if origin is tuple:
        return {"nargs": "*", "type": inner[0], "action": "extend"}
    return {"action": BooleanOptionalAction} if hint is bool else {"type": hint}
