"""A surrogate of training: how a score moves under a learning rate and a window, with noise, a limit and collapse. Not a training.

Its form holds what is known of such runs, and its numbers are fitted to recorded ones (fit_surrogate.py):

- a score approaches a ceiling, faster at higher rates until steps are as large as is useful, and slower on staler experience;
- the ceiling itself falls as the rate rises, so that a high rate is best early and a lower one later;
- the product of the rate and (1 + lag) has a limit near which the policy collapses, for good.

Errors of evaluations are independent here. In a run all evaluations are of the same tasks, so that differences are somewhat surer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from numpy.random import Generator


@dataclass(frozen=True)
class Dynamics:
    """Numbers of the surrogate. Rates are learning rates, scores lie in [0, 1], steps are optimizer steps."""

    base: float
    """Score before any training."""
    ceiling: float
    """At a rate near 0."""
    ceiling_loss: float
    """Of the ceiling, for each 1e-3 of the rate."""
    gain: float
    """Largest share of what lacks to the ceiling that one step brings."""
    half_rate: float
    """Rate at which a step brings half of that."""
    lag_cost: float
    """Each step of lag slows the gain like this: 1 / (1 + lag_cost * lag)."""
    limit: float
    """Product of rate and (1 + lag) at which half of all members collapse within ten steps."""
    sharpness: float
    """How sudden the limit is: an exponent."""
    lags: Mapping[int, float]
    """Window -> mean lag that was measured with it."""
    noise: float
    """Standard error of one evaluation."""

    def step(self, score: float, rate: float, lag: float) -> float:
        """The score after one step that does not collapse."""
        pace = self.gain * rate / (rate + self.half_rate) / (1 + self.lag_cost * lag)
        return score + pace * (max(self.ceiling - self.ceiling_loss * rate / 1e-3, 0.0) - score)

    def hazard(self, rate: float, lag: float) -> float:
        """Probability that one step ends in a collapse."""
        return 1 - math.exp(-math.log(2) / 10 * min(rate * (1 + lag) / self.limit, 1e3) ** self.sharpness)


class Learner:
    """One simulated agent. Its weights are its score."""

    def __init__(self, dynamics: Dynamics, rng: Generator) -> None:
        self._dynamics, self._rng = dynamics, rng
        self.score = dynamics.base
        self.collapses = 0

    @property
    def noise(self) -> float:
        """Standard error of `evaluate`."""
        return self._dynamics.noise

    def lag(self, values: Mapping[str, float]) -> float:
        return self._dynamics.lags[int(values["window"])]

    def train(self, values: Mapping[str, float], steps: int) -> None:
        rate, lag = values["learning_rate"], self.lag(values)
        hazard = self._dynamics.hazard(rate, lag)
        for luck in self._rng.random(steps):
            if luck < hazard:
                self.collapses += self.score > 0
                self.score = 0.0
            elif self.score > 0:
                self.score = self._dynamics.step(self.score, rate, lag)

    def evaluate(self) -> float:
        """As an evaluation measures it."""
        return float(min(max(self.score + self._dynamics.noise * self._rng.standard_normal(), 0.0), 1.0))
