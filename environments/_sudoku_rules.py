r"""How a Sudoku action is read and what an unreadable one costs: two rule sets by name.

`default` is tolerant: the last complete \boxed{row column digit}, with any blanks or commas between the numbers; an unreadable action costs
a turn. `gem` is GEM's own: single blanks, no nested braces, and an unreadable action costs 0.1 and ends the episode.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from pbt_agents.environments._boxed import last_boxed

Move = tuple[int, int, int]
"""Row, column and digit, counted from 1 and not yet checked against the board."""

_THREE_NUMBERS = re.compile(r"\s*([0-9]{1,9})[\s,]+([0-9]{1,9})[\s,]+([0-9]{1,9})\s*")
_GEM_MOVE = re.compile(r"\\boxed{(\d+)\s(\d+)\s(\d+)}")


def read_move(action: str) -> Move | None:
    content = last_boxed(action)
    return _as_move(_THREE_NUMBERS.fullmatch(content)) if content is not None else None


def read_gem_move(action: str) -> Move | None:
    found = list(_GEM_MOVE.finditer(action))
    return _as_move(found[-1]) if found else None


def _as_move(found: re.Match[str] | None) -> Move | None:
    if found is None:
        return None
    try:
        row, column, digit = map(int, found.groups())
    except ValueError:  # Python reads no number of more than 4,300 digits
        return None
    return row, column, digit


@dataclass(frozen=True, slots=True)
class Rules:
    read: Callable[[str], Move | None]
    format_penalty: float
    format_error_ends: bool
    last_turn_terminates: bool
    """GEM calls the end of the turns an end of the task as well as a truncation."""


RULES = {
    "default": Rules(read_move, format_penalty=0.0, format_error_ends=False, last_turn_terminates=False),
    "gem": Rules(read_gem_move, format_penalty=0.1, format_error_ends=True, last_turn_terminates=True),
}
