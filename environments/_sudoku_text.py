r"""The words of Sudoku's observations: `full` prompts for chat models, `compact` ones for the tiny model.

The compact text is a contract with the tiny model's tokenizer: one word (start, correct, wrong, filled, out or format), then the rows of
the board in digits and dots, joined by line breaks, with none at the end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pbt_agents.environments._sudoku_board import Grid
from pbt_agents.environments._sudoku_rules import Move
from pbt_agents.environments._sudoku_solver import BOX_SHAPE

Verdict = Literal["correct", "wrong", "filled", "out", "format"]
"""wrong: not the digit of the solution; out: outside the board or its digits; format: no move could be read."""


@dataclass(frozen=True, slots=True)
class Text:
    first: Callable[[int, Grid, int], str]
    """size, board, turns -> the first observation."""
    later: Callable[[int, Grid, Verdict, Move | None, int], str]
    """size, board after the move, verdict, move, turns left -> the next one."""


def _compact_first(size: int, board: Grid, turns: int) -> str:
    return f"start\n{_compact(size, board)}"


def _compact_later(size: int, board: Grid, verdict: Verdict, move: Move | None, turns_left: int) -> str:
    return f"{verdict}\n{_compact(size, board)}"


def _compact(size: int, board: Grid) -> str:
    return "\n".join("".join(row) for row in _rows(size, board))


def _full_first(size: int, board: Grid, turns: int) -> str:
    height, width = BOX_SHAPE[size]
    return (
        f"Solve this {size}x{size} Sudoku. Every row, every column and every {height}x{width} block (rows x columns) must hold each digit "
        f"from 1 to {size} exactly once. Empty cells are shown as dots; there is only one solution.\n"
        "Place one digit a turn. Reason as you like, and end with your move as \\boxed{row column digit}, rows and columns counted from 1 "
        "at the top left: \\boxed{1 3 2} puts a 2 into row 1, column 3. A right digit stays on the board, a wrong one costs the turn.\n\n"
        f"{_full(size, board)}\n\nTurns left: {turns}."
    )


def _full_later(size: int, board: Grid, verdict: Verdict, move: Move | None, turns_left: int) -> str:
    return f"{_sentence(size, board, verdict, move)}\n\n{_full(size, board)}\n\nTurns left: {turns_left}."


def _sentence(size: int, board: Grid, verdict: Verdict, move: Move | None) -> str:
    if move is None:
        return "No move found. End your answer with \\boxed{row column digit}, for example \\boxed{1 3 2}."
    row, column, digit = move
    place = f"row {row}, column {column}"
    match verdict:
        case "correct":
            return f"Correct: {digit} in {place}."
        case "filled":
            return f"Filled: {place} already holds a digit."
        case "out":
            return f"Out of range: row, column and digit all go from 1 to {size}."
        case _:
            unit = _unit_holding(size, board, move)
            return (
                f"Wrong: {digit} in {place} breaks a rule, its {unit} has one."
                if unit
                else f"Wrong: {digit} in {place} is not the solution."
            )


def _unit_holding(size: int, board: Grid, move: Move) -> str | None:
    """The row, column or block of the move's cell in which its digit already stands."""
    height, width = BOX_SHAPE[size]
    row, column, digit = move[0] - 1, move[1] - 1, move[2]
    places = [divmod(cell, size) for cell, placed in enumerate(board) if placed == digit]
    if any(r == row for r, _ in places):
        return "row"
    if any(c == column for _, c in places):
        return "column"
    return "block" if any((r // height, c // width) == (row // height, column // width) for r, c in places) else None


def _full(size: int, board: Grid) -> str:
    """Rows of spaced digits, with lines between the blocks."""
    height, width = BOX_SHAPE[size]
    rows = [" | ".join(" ".join(row[start : start + width]) for start in range(0, size, width)) for row in _rows(size, board)]
    line = "+".join("-" * (2 * width + (0 < start < size - width)) for start in range(0, size, width))
    return f"\n{line}\n".join("\n".join(rows[start : start + height]) for start in range(0, size, height))


def _rows(size: int, board: Grid) -> list[list[str]]:
    signs = [str(digit) if digit else "." for digit in board]
    return [signs[start : start + size] for start in range(0, size * size, size)]


TEXTS = {"compact": Text(_compact_first, _compact_later), "full": Text(_full_first, _full_later)}
