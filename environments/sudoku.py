r"""Sudoku, one digit a turn: the action is \boxed{row column digit}, the observation a verdict and the board.

A right move is rewarded with 1 / empty_cells, so that a solved board scores 1; a wrong one costs a turn. Puzzles and splits are made in
`_sudoku_board.py`, actions read in `_sudoku_rules.py`, observations worded in `_sudoku_text.py`.
"""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from pbt_agents.environment import Environment, StepResult
from pbt_agents.environments._options import choose
from pbt_agents.environments._sudoku_board import Grid, Puzzle, is_solution, make_puzzle
from pbt_agents.environments._sudoku_rules import RULES, Move, Rules
from pbt_agents.environments._sudoku_solver import BOX_SHAPE
from pbt_agents.environments._sudoku_text import TEXTS, Verdict
from pbt_agents.errors import ConfigError, unknown_name
from pbt_agents.types import Split


@dataclass(frozen=True, slots=True)
class SudokuSettings:
    size: int
    removed: int
    """Cells to empty. Uniqueness may allow fewer: see `empty_cells`."""
    max_turns: int | None
    """None: as many as there are empty cells, and `spare_turns`."""
    spare_turns: int = 0
    text: str = "full"
    """full: prompts for a chat model. compact: single characters for the tiny one."""
    rules: str = "default"
    format_penalty: float | None = None
    """Taken off for an unreadable action. None: as the rules say."""
    format_error_ends: bool | None = None
    """Whether an unreadable action ends the episode. None: as the rules say."""

    def __post_init__(self) -> None:
        if self.size not in BOX_SHAPE:
            raise ConfigError(f"size is the side of a Sudoku board and must be one of {sorted(BOX_SHAPE)}, got {self.size}.")
        if not 0 < self.removed < self.size**2:
            raise ConfigError(f"removed must be 1 to {self.size**2 - 1} of the {self.size**2} cells, got {self.removed}.")
        if self.max_turns is not None and not (self.max_turns > 0 and self.spare_turns == 0):
            turns = f"got {self.max_turns} and {self.spare_turns}"
            raise ConfigError(f"max_turns must be above 0 and have no spare_turns, {turns}. For a turn per empty cell use None.")
        if self.spare_turns < 0:
            raise ConfigError(f"spare_turns are added to a turn per empty cell and must be 0 or more, got {self.spare_turns}.")
        if self.text not in TEXTS:
            raise unknown_name("text of sudoku", self.text, TEXTS)
        if self.rules not in RULES:
            raise unknown_name("rules of sudoku", self.rules, RULES)
        if self.format_penalty is not None and not 0 <= self.format_penalty < float("inf"):
            raise ConfigError(f"format_penalty is taken off the reward and must be 0 or more, got {self.format_penalty}.")

    def chosen_rules(self) -> Rules:
        rules = RULES[self.rules]
        penalty = rules.format_penalty if self.format_penalty is None else self.format_penalty
        ends = rules.format_error_ends if self.format_error_ends is None else self.format_error_ends
        return replace(rules, format_penalty=penalty, format_error_ends=ends)


VARIANTS = {
    "tiny": SudokuSettings(size=4, removed=6, max_turns=None, text="compact"),
    "easy": SudokuSettings(size=4, removed=10, max_turns=15),
    "hard": SudokuSettings(size=9, removed=50, max_turns=50),
}


class Sudoku:
    """One board at a time; each move is judged against its only solution."""

    def __init__(self, settings: SudokuSettings, split: Split) -> None:
        self.settings = settings
        self.split = split
        self.rules = settings.chosen_rules()
        self.text = TEXTS[settings.text]

    def reset(self, seed: int) -> str:
        return self.start(make_puzzle(self.settings.size, self.settings.removed, self.split, np.random.default_rng(seed)))

    def start(self, puzzle: Puzzle) -> str:
        """Begin with this puzzle in place of a seed's."""
        self.puzzle = puzzle
        self.max_turns = self.settings.max_turns or puzzle.empty_cells + self.settings.spare_turns
        self.verdicts: Counter[Verdict] = Counter()
        self._cells = list(puzzle.clues)
        return self.text.first(puzzle.size, self.board, self.max_turns)

    @property
    def board(self) -> Grid:
        return tuple(self._cells)

    @property
    def empty_cells(self) -> int:
        """At the start. At most what was asked for by `removed`."""
        return self.puzzle.empty_cells

    def step(self, action: str) -> StepResult:
        move = self.rules.read(action)
        verdict = self._play(move)
        self.verdicts[verdict] += 1
        turns_left = self.max_turns - self.verdicts.total()

        solved = is_solution(self.puzzle.size, self.puzzle.clues, self.board)
        truncated = turns_left <= 0 and not solved
        stopped = (verdict == "format" and self.rules.format_error_ends) or (truncated and self.rules.last_turn_terminates)
        return StepResult(
            observation=self.text.later(self.puzzle.size, self.board, verdict, move, turns_left),
            reward=self._reward(verdict),
            terminated=solved or stopped,
            truncated=truncated,
            metrics=self._metrics(solved) if solved or stopped or truncated else {},
        )

    def _play(self, move: Move | None) -> Verdict:
        """Judge the move, and make it if it is right."""
        if move is None:
            return "format"
        if not all(1 <= number <= self.puzzle.size for number in move):
            return "out"
        row, column, digit = move
        cell = (row - 1) * self.puzzle.size + column - 1
        if self._cells[cell]:
            return "filled"
        if digit != self.puzzle.solution[cell]:
            return "wrong"
        self._cells[cell] = digit
        return "correct"

    def _reward(self, verdict: Verdict) -> float:
        match verdict:
            case "correct":
                return 1 / self.empty_cells
            case "format":
                return 0.0 - self.rules.format_penalty
            case _:
                return 0.0

    def _metrics(self, solved: bool) -> dict[str, float]:
        return {
            "solved": float(solved),
            "filled_fraction": self.verdicts["correct"] / self.empty_cells,
            "format_errors": float(self.verdicts["format"]),
            "invalid_moves": float(self.verdicts["wrong"] + self.verdicts["filled"] + self.verdicts["out"]),
            "empty_cells": float(self.empty_cells),
        }


def ENVIRONMENT(variant: str, split: Split, **options: object) -> Environment:
    return Sudoku(choose("sudoku", VARIANTS, variant, split, options), split)
