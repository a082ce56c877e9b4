"""How the values of a clone differ from its donor's, within their declared ranges.

Who copies whom is selection.py's; applying the values is the Trainable's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.random import Generator

from pbt_agents.errors import ConfigError
from pbt_agents.search_space import Ladder, LinearRange, LogRange, Range


class Explore(Protocol):
    """A strategy for new values."""

    def __call__(self, values: Mapping[str, Any], space: Mapping[str, Range], rng: Generator) -> dict[str, Any]:
        """Values for a clone, from its donor's: one for each name of the space, inside its range."""
        ...


@dataclass(frozen=True)
class Perturbation:
    """One step up or down for each value, or now and then a fresh sample. Up and down cancel, so values do not drift by themselves."""

    factor: float = 1.25
    """A step in a log range, up or down."""
    span_fraction: float = 0.1
    """A step in a linear range, as a part of it."""
    resample_probability: float = 0.25

    def __post_init__(self) -> None:
        if not self.factor > 1:
            raise ConfigError(f"factor must be above 1, got {self.factor}. It is divided by for a step down.")
        if not 0 < self.span_fraction <= 1:
            raise ConfigError(f"span_fraction must lie in (0, 1], got {self.span_fraction}.")
        if not 0 <= self.resample_probability <= 1:
            raise ConfigError(f"resample_probability must lie in [0, 1], got {self.resample_probability}.")

    def __call__(self, values: Mapping[str, Any], space: Mapping[str, Range], rng: Generator) -> dict[str, Any]:
        """At least one value differs: a clone with its donor's values would explore nothing."""
        new = {name: self._explore(values[name], domain, rng) for name, domain in space.items()}
        if all(new[name] == values[name] for name in space):
            name = list(space)[rng.integers(len(space))]
            new[name] = self._another(values[name], space[name])
        return new

    def step(self, value: Any, domain: Range, up: bool) -> Any:
        """The next value up or down; at a bound, the bound."""
        start = domain.clip(value)
        match domain:
            case LogRange():
                return domain.clip(start * self.factor if up else start / self.factor)
            case LinearRange(low, high):
                return domain.clip(start + (1 if up else -1) * self.span_fraction * (high - low))
            case Ladder(rungs):
                return rungs[min(max(rungs.index(start) + (1 if up else -1), 0), len(rungs) - 1)]

    def _explore(self, value: Any, domain: Range, rng: Generator) -> Any:
        if rng.random() < self.resample_probability:
            return domain.at(rng.random())
        return self.step(value, domain, up=rng.random() < 0.5)

    def _another(self, value: Any, domain: Range) -> Any:
        candidates = (self.step(value, domain, up=True), self.step(value, domain, up=False), domain.at(0.0), domain.at(1.0))
        return next(candidate for candidate in candidates if candidate != value)
