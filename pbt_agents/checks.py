"""What a given value must be, said in one line when it is not: the field, the value, the remedy."""

import json
import reprlib
from collections.abc import Mapping
from typing import Any

from pbt_agents.errors import ConfigError


def require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)


def whole(section: Any, name: str, low: int, high: int, hint: str = "") -> None:
    """Raises ConfigError unless this field lies within its limits, of which the upper one is far beyond any use."""
    value = getattr(section, name)
    require(value >= low, f"{name} must be at least {low}, got {value}. {hint}".rstrip())
    require(value <= high, f"{name} must be at most {high:,}, got {value:,}.")


def is_json(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def like(default: Any, name: str, value: Any) -> Any:
    """A given value in the field's own type; numpy scalars become Python numbers. Raises ConfigError for what is of another type."""
    value = value.item() if getattr(value, "ndim", None) == 0 else value
    shown = reprlib.repr(value)
    match default:
        case int():
            require(
                _is_whole(value) and abs(value) < 1 << 63,
                f"{name} is a whole number, got {shown}. Give an integer, or search it over a list of integers.",
            )
            return int(value)
        case float():
            require(_is_number(value), f"{name} is a number, got {shown}. Write it as 0.001 or 1e-3.")
            return float(value)
        case str():
            require(isinstance(value, str), f"{name} is a word such as '{default}', got {shown}.")
        case Mapping():
            require(isinstance(value, Mapping), f"{name} holds values by name, got {shown}. Write it as {{'name': value}}.")
    return value


def _is_number(value: Any) -> bool:
    """That float() can hold, too."""
    return isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 1024)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and (isinstance(value, int) or value.is_integer())
