"""JSON files that a crash leaves whole, and that any JSON reader takes."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pbt_agents.errors import ConfigError


def write_json(path: Path, content: Any) -> None:
    """Strict JSON, whole or not at all: numbers that are not finite become the strings that float() reads."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("w") as file:
        json.dump(plain(content), file, indent=1, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def read_json(path: Path) -> Any:
    """What `write_json` wrote, numbers that are not finite included. Raises ConfigError when it is no JSON, or cannot be read."""
    try:
        return restored(json.loads(path.read_text()))
    except (ValueError, OSError) as error:
        raise ConfigError(f"'{path}' cannot be read: {error}. Is it whole?") from error


@contextmanager
def as_written(path: Path, place: str = "") -> Iterator[None]:
    """What was read from a file, at this place in it, has another shape than is looked for in the block: told as a ConfigError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        where = f"'{path}'{f', {place},' if place else ''}"
        raise ConfigError(f"{where} is not as it should be: {error!r}. Is it whole, and of this version?") from error


def plain(content: Any, not_finite: Callable[[float], str | None] = str) -> Any:
    """What strict JSON can hold of it: numpy's scalars as numbers, what is not finite as `not_finite` tells it, by its name."""
    if isinstance(content, Mapping):
        return {str(key): plain(value, not_finite) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [plain(value, not_finite) for value in content]
    content = content.item() if hasattr(content, "item") else content
    return not_finite(content) if isinstance(content, float) and not math.isfinite(content) else content


def difference(stored: Any, now: Any, path: str = "") -> str | None:
    """The first value that is stored otherwise than it is now, by its path; what is only now is none."""
    stored, now = plain(stored), plain(now)
    if isinstance(stored, dict) and isinstance(now, dict):
        found = (difference(value, now.get(name), f"{path}.{name}" if path else name) for name, value in stored.items())
        return next((one for one in found if one), None)
    return None if stored == now else f"{path} was {stored!r} and is {now!r}"


def restored(content: Any) -> Any:
    """The inverse of `plain`, for what was read from JSON."""
    if isinstance(content, dict):
        return {key: restored(value) for key, value in content.items()}
    if isinstance(content, list):
        return [restored(value) for value in content]
    return float(content) if content in ("nan", "inf", "-inf") else content
