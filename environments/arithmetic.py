r"""Sums of two long numbers, with a hint after a miss: the file to copy for an environment of your own.

Settings and their named variants, a class with `reset` and `step`, and ENVIRONMENT, which makes one: that is all. A copy in this folder is
used by its file's name (`maze:long`), one in your own package as `my_package.maze:ENVIRONMENT`.
"""

from dataclasses import dataclass

import numpy as np

from pbt_agents.environment import Environment, StepResult
from pbt_agents.environments._boxed import last_boxed
from pbt_agents.environments._options import choose
from pbt_agents.environments._splits import split_of
from pbt_agents.errors import ConfigError
from pbt_agents.types import Split


@dataclass(frozen=True, slots=True)
class ArithmeticSettings:
    digits: int = 3
    attempts: int = 3

    def __post_init__(self) -> None:
        if not (1 <= self.digits <= 18 and self.attempts >= 1):
            raise ConfigError(f"digits must be 1 to 18 and attempts 1 or more, got {self.digits} and {self.attempts}.")


VARIANTS = {"": ArithmeticSettings(), "long": ArithmeticSettings(digits=8)}


class Arithmetic:
    def __init__(self, settings: ArithmeticSettings, split: Split) -> None:
        self.settings, self.split = settings, split

    def reset(self, seed: int) -> str:
        rng = np.random.default_rng(seed)
        low, high = 10 ** (self.settings.digits - 1), 10**self.settings.digits
        first, second = rng.integers(low, high, size=2).tolist()
        while split_of(f"{min(first, second)} + {max(first, second)}") != self.split:
            first, second = rng.integers(low, high, size=2).tolist()
        self.total, self.attempt = first + second, 0
        return f"What is {first} + {second}? End your answer with \\boxed{{sum}}. You have {self.settings.attempts} attempts."

    def step(self, action: str) -> StepResult:
        self.attempt += 1
        answer = (last_boxed(action) or "").strip()
        solved = answer == str(self.total)
        over = solved or self.attempt == self.settings.attempts
        return StepResult(
            observation="Right." if solved else f"{self._hint(answer)} Try again: \\boxed{{sum}}.",
            reward=1 / self.attempt if solved else 0.0,
            terminated=solved,
            truncated=over and not solved,
            metrics={"solved": float(solved), "attempts": float(self.attempt)} if over else {},
        )

    def _hint(self, answer: str) -> str:
        if not (answer.isdecimal() and len(answer) < 30):
            return "I found no number."
        return "Too low." if int(answer) < self.total else "Too high."


def ENVIRONMENT(variant: str, split: Split, **options: object) -> Environment:
    return Arithmetic(choose("arithmetic", VARIANTS, variant, split, options), split)
