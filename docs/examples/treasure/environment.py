r"""A hunt for a treasure under one of the free cells of a 4x4 board; what is dug up instead says how many steps away it is.

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
    stones: int = 6
    """Cells that hide nothing and are marked 0 from the start."""

    def __post_init__(self) -> None:
        if not (self.turns >= 1 and 4 <= self.stones <= 12):
            raise ConfigError(f"turns must be 1 or more and stones 4 to 12, got {self.turns} and {self.stones}.")


VARIANTS = {"": TreasureSettings()}


class Treasure:
    def __init__(self, settings: TreasureSettings, split: Split) -> None:
        self.settings, self.split = settings, split

    def reset(self, seed: int) -> str:
        rng, free, stones = np.random.default_rng(seed), 16 - self.settings.stones, self.settings.stones
        cells = rng.permutation(list("." * free + "0" * stones)).tolist()
        while split_of("".join(cells)) != self.split:
            cells = rng.permutation(cells).tolist()
        self.cells, self.turn = cells, 0
        self.treasure = int(rng.choice([cell for cell in range(16) if cells[cell] == "."]))
        return self._told("start")

    def step(self, action: str) -> StepResult:
        self.turn += 1
        cell = _cell(action)
        found = cell == self.treasure
        if cell is not None and not found:
            self.cells[cell] = str(abs(cell // 4 - self.treasure // 4) + abs(cell % 4 - self.treasure % 4))
        over = found or self.turn == self.settings.turns
        return StepResult(
            observation=self._told("format" if cell is None else "correct" if found else "wrong"),
            reward=1 / self.turn if found else 0.0,
            terminated=found,
            truncated=over and not found,
            metrics={"found": float(found), "turns": float(self.turn)} if over else {},
        )

    def _told(self, word: str) -> str:
        return "\n".join([word, *("".join(self.cells[start : start + 4]) for start in range(0, 16, 4))])


def _cell(action: str) -> int | None:
    named = re.fullmatch(r"([1-4]) ([1-4])( \d)?", last_boxed(action) or "")
    return named and 4 * (int(named[1]) - 1) + int(named[2]) - 1


def ENVIRONMENT(variant: str, split: Split, **options: object) -> Environment:
    return Treasure(choose("treasure", VARIANTS, variant, split, options), split)
