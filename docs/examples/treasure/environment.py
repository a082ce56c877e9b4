r"""A hunt for a treasure under one cell of a 4x4 board; a cell that was dug up says how many steps away it is, 4 for 4 or more.

The words are those that the tiny model knows (sudoku:tiny's), so that it can play on a CPU. A cell is named as it names one:
\boxed{row column digit}, whose digit counts for nothing here.
"""

import re
from dataclasses import dataclass

import numpy as np

from pbt_agents.environment import Environment, StepResult
from pbt_agents.environments._boxed import last_boxed
from pbt_agents.environments._options import choose
from pbt_agents.environments._splits import split_of
from pbt_agents.errors import ConfigError
from pbt_agents.types import Split


@dataclass(frozen=True, slots=True)
class TreasureSettings:
    turns: int = 4
    dug: int = 6
    """Cells that somebody has dug up before."""

    def __post_init__(self) -> None:
        if not (self.turns >= 1 and 3 <= self.dug <= 15):
            raise ConfigError(f"turns must be 1 or more and dug 3 to 15, got {self.turns} and {self.dug}.")


VARIANTS = {"": TreasureSettings()}


class Treasure:
    def __init__(self, settings: TreasureSettings, split: Split) -> None:
        self.settings, self.split = settings, split

    def reset(self, seed: int) -> str:
        rng = np.random.default_rng(seed)
        self._hide(rng)
        while split_of(self._board()) != self.split:
            self._hide(rng)
        return f"start\n{self._board()}"

    def step(self, action: str) -> StepResult:
        self.turn += 1
        cell = _cell(action)
        found = cell == self.treasure
        if cell is not None:
            self.dug.add(cell)
        word = "format" if cell is None else "correct" if found else "wrong"
        over = found or self.turn == self.settings.turns
        return StepResult(
            observation=f"{word}\n{self._board()}",
            reward=1 / self.turn if found else 0.0 if cell is None else 0.1 / self._steps(cell),
            terminated=found,
            truncated=over and not found,
            metrics={"found": float(found), "turns": float(self.turn)} if over else {},
        )

    def _hide(self, rng: np.random.Generator) -> None:
        cells: list[int] = rng.permutation(16).tolist()
        self.treasure, *others = cells
        self.dug, self.turn = set(others[: self.settings.dug]), 0

    def _board(self) -> str:
        cells = [str(min(self._steps(cell), 4)) if cell in self.dug else "." for cell in range(16)]
        return "\n".join("".join(cells[row : row + 4]) for row in range(0, 16, 4))

    def _steps(self, cell: int) -> int:
        return abs(cell // 4 - self.treasure // 4) + abs(cell % 4 - self.treasure % 4)


def _cell(action: str) -> int | None:
    named = re.fullmatch(r"([1-4]) ([1-4])( \d)?", last_boxed(action) or "")
    return named and 4 * (int(named[1]) - 1) + int(named[2]) - 1


def ENVIRONMENT(variant: str, split: Split, **options: object) -> Environment:
    return Treasure(choose("treasure", VARIANTS, variant, split, options), split)
