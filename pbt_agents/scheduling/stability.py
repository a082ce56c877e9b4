"""How large a learning rate can be for how stale experience is: learned from the members that collapsed, and kept by new values.

The largest stable learning rate falls as one over the staleness, so that a mutation of either by itself walks into collapse. Owns the
estimate of the product that is stable, and how values over it are scaled back. Which member collapsed is progress.py's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pbt_agents.errors import ConfigError
from pbt_agents.search_space import Ladder, Range

_REMEMBERED = 1000
"""Products of each kind, the newest."""


@dataclass(frozen=True)
class StabilityBudget:
    """Learning rate times (1 + lag) is kept below a product that the run itself estimates. The names are those of a search space."""

    rate: str = "learning_rate"
    window: str = "window"
    """What bounds the lag; it need not be searched."""
    lag: str = "trainer/lag_steps_mean"
    """The metric of a result that has the lag as it was measured, in steps."""
    collapse_share: float = 0.5
    """Of its best score: a member that falls below it has collapsed, as one has whose score is not finite."""

    def __post_init__(self) -> None:
        if not 0 < self.collapse_share < 1:
            raise ConfigError(f"collapse_share must lie in (0, 1), got {self.collapse_share}.")


class Stability:
    """What a run has seen of it. One product for each result: of members that learn on, and of those that collapsed."""

    def __init__(self, budget: StabilityBudget) -> None:
        self.budget = budget
        self._stable: list[float] = []
        self._collapsed: list[float] = []
        self._lags: dict[str, list[float]] = {}
        """Window -> sum and number of the lags that were measured with it."""

    def observe(self, values: Mapping[str, Any], lag: float | None, collapsed: bool) -> None:
        """A result of a member that trained with these values."""
        if lag is None or not 0 <= lag < math.inf or self.budget.rate not in values:
            return
        known = self._lags.setdefault(str(values.get(self.budget.window)), [0.0, 0.0])
        known[0] += lag
        known[1] += 1
        seen = self._collapsed if collapsed else self._stable
        seen.append(values[self.budget.rate] * (1 + lag))
        del seen[:-_REMEMBERED]

    @property
    def limit(self) -> float:
        """The product between stable and collapsed members that misjudges the fewest; infinite while none has collapsed.

        Halfway, in logarithms, between the two neighbours that it parts.
        """
        if not self._collapsed:
            return math.inf
        products = sorted([(product, False) for product in self._stable] + [(product, True) for product in self._collapsed])
        # With the limit before place 0 all that were stable are misjudged, and none that collapsed.
        wrong = best = len(self._stable)
        place = 0
        for number, (_, collapsed) in enumerate(products, 1):
            wrong += 1 if collapsed else -1
            if wrong < best or (wrong == best and place == 0):
                best, place = wrong, number
        if place == len(products):
            return math.inf
        above = products[place][0]
        return math.sqrt(products[place - 1][0] * above) if place else above / 2

    def expected_lag(self, window: Any) -> float:
        """As it was measured with this window, or with the nearest one, in proportion; the window itself where nothing was measured."""
        if str(window) in self._lags:
            total, count = self._lags[str(window)]
            return total / count
        measured = {float(known): total / count for known, (total, count) in self._lags.items() if known.replace(".", "", 1).isdigit()}
        if not measured or not isinstance(window, int | float):
            return sum(total for total, _ in self._lags.values()) / max(sum(count for _, count in self._lags.values()), 1)
        nearest = min(measured, key=lambda known: abs(math.log((1 + known) / (1 + window))))
        return min(measured[nearest] * (1 + window) / (1 + nearest), float(window))

    def within(self, values: Mapping[str, Any], space: Mapping[str, Range]) -> dict[str, Any]:
        """The same values where their product is within the limit. Else with a lower rate, and where its range ends, a smaller window.

        Values that cannot be brought within the limit are the nearest to it.
        """
        scaled, limit = dict(values), self.limit
        if self.budget.rate not in space or self._product(scaled) <= limit:
            return scaled
        rates = space[self.budget.rate]
        windows = space.get(self.budget.window)
        rungs = windows.values if isinstance(windows, Ladder) else ()
        lower = [rung for rung in rungs if rung < scaled[self.budget.window]][::-1]
        while True:
            lag = self.expected_lag(scaled.get(self.budget.window))
            scaled[self.budget.rate] = min(values[self.budget.rate], rates.clip(limit / (1 + lag)))
            if self._product(scaled) <= limit * (1 + 1e-9) or not lower:
                return scaled
            scaled[self.budget.window] = lower.pop(0)

    def _product(self, values: Mapping[str, Any]) -> float:
        return float(values[self.budget.rate] * (1 + self.expected_lag(values.get(self.budget.window))))

    def state_dict(self) -> dict[str, Any]:
        return {"stable": self._stable, "collapsed": self._collapsed, "lags": self._lags}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._stable, self._collapsed, self._lags = list(state["stable"]), list(state["collapsed"]), dict(state["lags"])
