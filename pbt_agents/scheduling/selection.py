"""Who is replaced by whom, from scores and their errors alone.

Snapshots, clocks and values are not known here. A score that is not finite is the worst there is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Protocol

from numpy.random import Generator

from pbt_agents.errors import ConfigError


@dataclass(frozen=True)
class Standing:
    """What a member has reached."""

    score: float
    """Higher is better."""
    error: float = 0.0
    """Standard error of the score. 0, or not finite, for a score that is taken as exact."""
    place: int = 0
    """Order in which members joined the population."""


Standings = Mapping[str, Standing]
"""By member; members that have not reported yet are missing. All at the same amount of training as far as they have come: of a member
that is ahead of the one that is judged, what it had reached there."""


class Selection(Protocol):
    """A strategy. Both verbs are asked at a result of a member; `interval` counts those that are over on its line of descent, from 1."""

    def donors(self, standings: Standings) -> list[str]:
        """Members worth copying, best first: they keep a fresh snapshot. The first one is the elite, and is never replaced."""
        ...

    def donor_for(self, member: str, standings: Standings, interval: int, rng: Generator) -> str | None:
        """Whom this member should copy now, or None to leave it alone. A donor's score is always the higher one."""
        ...


@dataclass(frozen=True)
class Truncation:
    """The lowest part of the population copies the highest. All members that diverged count as lowest."""

    quantile_fraction: float = 0.25
    """Size of each part; rounded up, at most half of the population. 0 switches copying off."""
    confidence: float = 0.0
    """That a donor is really better, from the errors of both scores; below it a member is left alone. 0 goes by the scores as they are."""

    def __post_init__(self) -> None:
        if not 0 <= self.quantile_fraction <= 0.5:
            raise ConfigError(f"quantile_fraction must lie in [0, 0.5], got {self.quantile_fraction}.")
        _check_confidence(self.confidence)

    def donors(self, standings: Standings) -> list[str]:
        return _finite(ranking(standings)[: self._count(standings)], standings)

    def donor_for(self, member: str, standings: Standings, interval: int, rng: Generator) -> str | None:
        lowest = ranking(standings)[len(standings) - self._count(standings) :]
        if member not in lowest and math.isfinite(standings[member].score):
            return None
        better = _better(member, self.donors(standings), standings, self.confidence)
        return better[rng.integers(len(better))] if better else None

    def _count(self, standings: Standings) -> int:
        return min(math.ceil(len(standings) * self.quantile_fraction), len(standings) // 2)


@dataclass(frozen=True)
class Tournament:
    """Each member meets some others, drawn at random, and copies the best of them if that is better. The best of all wins every meeting.

    Pressure is softer than by truncation, and a middling member may be replaced as well.
    """

    rivals: int = 2
    """Drawn for each meeting."""
    confidence: float = 0.0
    """As in Truncation."""

    def __post_init__(self) -> None:
        if self.rivals < 1:
            raise ConfigError(f"rivals must be at least 1, got {self.rivals}.")
        _check_confidence(self.confidence)

    def donors(self, standings: Standings) -> list[str]:
        """Any but the last may win a meeting."""
        ranked = ranking(standings)
        return _finite(ranked[: max(len(ranked) - 1, 1)], standings)

    def donor_for(self, member: str, standings: Standings, interval: int, rng: Generator) -> str | None:
        others = sorted(other for other in standings if other != member)
        drawn = [others[place] for place in rng.permutation(len(others))[: self.rivals]]
        met = ranking({other: standings[other] for other in drawn})[:1]
        better = _better(member, _finite(met, standings), standings, self.confidence)
        return better[0] if better else None


@dataclass(frozen=True)
class MultiFrequency:
    """Sub-populations that evolve at different rates, so that who wins in the short run does not take over the whole population.

    A member is judged at every n-th interval, n being that of its sub-population. It copies within its own, or the best member of a slower
    one: whoever has done well over a longer time. The slower ones never copy from the faster. After MF-PBT (Doulazmi et al. 2025,
    arXiv:2506.03225), where a faster one's weights migrate as well, without its values.
    """

    periods: tuple[int, ...] = (1, 2, 4)
    """Intervals between two looks at each sub-population, rising; members are dealt to them in turn, as they joined."""
    within: Truncation = field(default_factory=lambda: Truncation(0.5))
    """Selection in a sub-population; its confidence is that for the slower ones, too."""

    def __post_init__(self) -> None:
        if len(self.periods) < 2 or self.periods[0] < 1 or list(self.periods) != sorted(set(self.periods)):
            raise ConfigError(f"periods must be at least two whole numbers that rise from 1 or more, got {self.periods}.")
        if not isinstance(self.within, Truncation):
            raise ConfigError(f"within must be a Truncation, got {self.within!r}.")

    @property
    def smallest_population(self) -> int:
        """With fewer members a sub-population would be one member, which has nobody to copy."""
        return 2 * len(self.periods)

    def donors(self, standings: Standings) -> list[str]:
        groups = [group for group in self._groups(standings) if group]
        best = {donor for group in groups for donor in (ranking(group)[0], *self.within.donors(group))}
        return _finite([member for member in ranking(standings) if member in best], standings)

    def donor_for(self, member: str, standings: Standings, interval: int, rng: Generator) -> str | None:
        groups = self._groups(standings)
        place = next(place for place, group in enumerate(groups) if member in group)
        broken = not math.isfinite(standings[member].score)
        if interval % self.periods[place] and not broken:
            return None
        own = self.within.donor_for(member, groups[place], interval, rng)
        donors = [own] if own else []
        if broken or ranking(groups[place])[-1] == member:
            slower = [ranking(group)[0] for group in groups[place + 1 :] if group]
            donors += _better(member, _finite(slower, standings), standings, self.within.confidence)
        return next(iter(ranking({donor: standings[donor] for donor in donors})), None)

    def _groups(self, standings: Standings) -> list[dict[str, Standing]]:
        count = len(self.periods)
        return [{name: one for name, one in standings.items() if one.place % count == group} for group in range(count)]


def ranking(standings: Standings) -> list[str]:
    """Best first; equal scores in the order of their names."""
    return sorted(standings, key=lambda member: (-comparable(standings[member].score), member))


def comparable(score: float) -> float:
    """NaN and infinities of either sign come from a broken run, so they rank below every finite score."""
    return score if math.isfinite(score) else -math.inf


def certainty(donor: str, member: str, standings: Standings) -> float:
    """Probability that the donor's true score is above the member's, for errors that are normal and independent.

    The best of many is best by luck, too. So scores are drawn to their mean as far as their spread is noise (empirical Bayes, Efron and
    Morris 1975): where members differ by no more than their errors, nobody is surely better. Fitness is measured on the same tasks for
    all, which makes differences surer than this.
    """
    expected = _expected(standings)
    one, other = expected[donor], expected[member]
    difference = comparable(one.score) - comparable(other.score)
    if math.isnan(difference):  # neither is finite
        return 0.0
    error = math.hypot(*(standing.error if math.isfinite(standing.error) else 0.0 for standing in (one, other)))
    if error == 0 or math.isinf(difference):
        return float(difference > 0)
    return NormalDist().cdf(difference / error)


def _expected(standings: Standings) -> Standings:
    """Scores and errors as they are to be expected of members that are like each other by so much as they differ beyond their errors."""
    noisy = {name: one for name, one in standings.items() if math.isfinite(one.score) and math.isfinite(one.error) and one.error > 0}
    if len(noisy) < 2:
        return standings
    count = len(noisy)  # sums, which become infinite where fmean raises
    center, noise = sum(one.score for one in noisy.values()) / count, sum(one.error * one.error for one in noisy.values()) / count
    apart = [one.score - center for one in noisy.values()]
    spread = max(sum(distance * distance for distance in apart) / (count - 1) - noise, 0.0)
    if not math.isfinite(spread):
        return standings
    drawn = {}
    for name, one in noisy.items():
        weight = spread / (spread + one.error * one.error) if spread else 0.0
        drawn[name] = replace(one, score=center + weight * (one.score - center), error=math.sqrt(weight) * one.error)
    return {**standings, **drawn}


def _better(member: str, donors: Sequence[str], standings: Standings, confidence: float) -> list[str]:
    own = comparable(standings[member].score)
    higher = [donor for donor in donors if comparable(standings[donor].score) > own]
    return [donor for donor in higher if certainty(donor, member, standings) >= confidence] if confidence else higher


def _finite(members: Sequence[str], standings: Standings) -> list[str]:
    return [member for member in members if math.isfinite(standings[member].score)]


def _check_confidence(confidence: float) -> None:
    if not 0 <= confidence < 1:
        raise ConfigError(f"confidence is a probability in [0, 1), got {confidence}. 0 goes by the scores as they are.")
