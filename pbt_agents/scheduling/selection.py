"""Who is replaced by whom, from scores alone.

Snapshots, clocks and values are not known here. A score that is not finite is the worst there is.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from numpy.random import Generator

from pbt_agents.errors import ConfigError

Scores = Mapping[str, float]
"""By member; higher is better. Members that have not reported yet are missing."""


class Selection(Protocol):
    """A strategy. Both verbs are asked at each result of a member, when other scores may be older than its own."""

    def donors(self, scores: Scores) -> list[str]:
        """Members worth copying, best first: they keep a fresh snapshot. The first one is the elite."""
        ...

    def donor_for(self, member: str, scores: Scores, rng: Generator) -> str | None:
        """Whom this member should copy now, or None to leave it alone. A donor's score is always the higher one."""
        ...


@dataclass(frozen=True)
class Truncation:
    """The lowest part of the population copies the highest. All members that diverged count as lowest."""

    quantile_fraction: float = 0.25
    """Size of each part; rounded up, at most half of the population. 0 switches copying off."""

    def __post_init__(self) -> None:
        if not 0 <= self.quantile_fraction <= 0.5:
            raise ConfigError(f"quantile_fraction must lie in [0, 0.5], got {self.quantile_fraction}.")

    def donors(self, scores: Scores) -> list[str]:
        return [member for member in ranking(scores)[: self._count(scores)] if math.isfinite(scores[member])]

    def donor_for(self, member: str, scores: Scores, rng: Generator) -> str | None:
        lowest = ranking(scores)[len(scores) - self._count(scores) :]
        if member not in lowest and math.isfinite(scores[member]):
            return None
        better = [donor for donor in self.donors(scores) if comparable(scores[donor]) > comparable(scores[member])]
        return better[rng.integers(len(better))] if better else None

    def _count(self, scores: Scores) -> int:
        return min(math.ceil(len(scores) * self.quantile_fraction), len(scores) // 2)


def ranking(scores: Scores) -> list[str]:
    """Best first; equal scores in the order of their names."""
    return sorted(scores, key=lambda member: (-comparable(scores[member]), member))


def comparable(score: float) -> float:
    """NaN and infinities of either sign come from a broken run, so they rank below every finite score."""
    return score if math.isfinite(score) else -math.inf
