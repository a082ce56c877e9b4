"""Finding what a name means: a file of a plural folder, or a user's own object.

`sudoku:hard` is the file environments/sudoku.py in its variant `hard`; `my_package.maze:Maze` is a user's own. What can be known
without importing a file is found without it: an objective's file needs torch, which takes seconds.
"""

import ast
import importlib
import importlib.util
import pkgutil
from importlib.machinery import ModuleSpec
from typing import Any

from pbt_agents.errors import ConfigError, unknown_name

_WITH_VARIANTS = ("environment",)


def load(kind: str, name: str) -> tuple[Any, str]:
    """What `name` stands for among `kind` (environment, objective, population), and its variant ('' for none).

    Raises ConfigError as `locate` does, or saying why a user's own object cannot be imported.
    """
    module, attribute, variant = locate(kind, name)
    try:
        return getattr(importlib.import_module(module), attribute), variant
    except ConfigError:  # a user's recipe that is refused says why
        raise
    except (Exception, SystemExit) as error:  # whatever a user's file does while it is imported
        if not _is_own(kind, name):
            raise
        if isinstance(error, ModuleNotFoundError):
            raise _not_importable(kind, name, error) from error
        reason = error if isinstance(error, ImportError | AttributeError) else repr(error)
        raise ConfigError(f"{kind} '{name}' cannot be imported: {reason}. Mend the file, or name another object.") from error


def locate(kind: str, name: str) -> tuple[str, str, str]:
    """Module, object in it, and variant. The module is looked for, and not imported; a user's package around it is.

    Raises ConfigError naming the nearest known file, or what is wrong with the name of a user's own object.
    """
    head, colon, tail = name.partition(":")
    if "/" in head or head.endswith(".py"):
        raise ConfigError(
            f"{kind} '{name}' is a path, and modules are wanted: 'package.module:OBJECT', its folder on PYTHONPATH, or the name alone "
            f"for a file of {kind}s/, as '{names(kind)[0]}'."
        )
    if _is_own(kind, name):
        if not tail:
            raise ConfigError(f"{kind} '{head}' names a module only. Add the object after a colon: '{head}:MyObject'.")
        if _spec(kind, name, head) is None:
            raise _not_importable(kind, name, f"there is no module '{head}'")
        return head, tail, ""
    if head not in names(kind):
        raise ConfigError(f"{unknown_name(kind, head, names(kind))} One's own is 'package.module:OBJECT', its folder on PYTHONPATH.")
    if colon and kind not in _WITH_VARIANTS:
        raise ConfigError(f"{kind} '{name}' asks for a variant, and no {kind} has any. Write '{head}'.")
    return f"pbt_agents.{kind}s.{head}", kind.upper(), tail


def names(kind: str) -> list[str]:
    """The files of a plural folder; a leading underscore keeps a file out."""
    package = importlib.import_module(f"pbt_agents.{kind}s")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))


def declared(kind: str, name: str, constant: str, otherwise: Any) -> Any:
    """A constant that the file of `name` writes out at its top level, read from its source; `otherwise` where it has none."""
    for statement in ast.parse(_source(kind, name)).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) | ast.AnnAssign(target=ast.Name(id=found), value=value):
                if found == constant and value is not None:
                    return _written_out(kind, name, constant, value)
    return otherwise


def _is_own(kind: str, name: str) -> bool:
    """A name with a dot is a user's. So is `maze:MAZE`, where there is a module `maze` and no file of that name here."""
    head, _, tail = name.partition(":")
    return "." in head or (bool(tail) and head not in names(kind) and _spec(kind, name, head) is not None)


def _spec(kind: str, name: str, module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except (ImportError, ValueError) as error:
        raise _not_importable(kind, name, error) from error


def _source(kind: str, name: str) -> str:
    """Empty where a module has none to read."""
    module, _, _ = locate(kind, name)
    spec = _spec(kind, name, module)
    get_source = getattr(spec and spec.loader, "get_source", None)
    return (get_source and get_source(module)) or ""


def _written_out(kind: str, name: str, constant: str, value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError as error:
        raise ConfigError(
            f"{kind} '{name}': {constant} is read without importing its file and must be written out, not computed."
        ) from error


def _not_importable(kind: str, name: str, reason: object) -> ConfigError:
    return ConfigError(f"{kind} '{name}' cannot be imported: {reason}. Is its folder on PYTHONPATH?")
