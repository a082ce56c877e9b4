"""Finding what a name means: a file of a plural folder, or a user's own object.

`sudoku:hard` is the file environments/sudoku.py in its variant `hard`; `my_package.maze:Maze` is a user's own.
"""

import importlib
import pkgutil
from typing import Any

from pbt_agents.errors import ConfigError, unknown_name


def load(kind: str, name: str) -> tuple[Any, str]:
    """What `name` stands for among `kind` (environment, objective, population), and its variant ('' for none).

    Raises ConfigError naming the nearest known file, or why a user's own object cannot be imported.
    """
    head, _, tail = name.partition(":")
    if "." in head:
        return _own(kind, head, tail), ""
    folder = f"pbt_agents.{kind}s"
    if head not in names(kind):
        raise unknown_name(kind, head, names(kind))
    return getattr(importlib.import_module(f"{folder}.{head}"), kind.upper()), tail


def names(kind: str) -> list[str]:
    """The files of a plural folder; a leading underscore keeps a file out."""
    package = importlib.import_module(f"pbt_agents.{kind}s")
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))


def _own(kind: str, module: str, attribute: str) -> Any:
    if not attribute:
        raise ConfigError(f"{kind} '{module}' names a module only. Add the object after a colon: '{module}:MyObject'.")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{kind} '{module}:{attribute}' cannot be imported: {error}. Is its folder on PYTHONPATH?") from error
