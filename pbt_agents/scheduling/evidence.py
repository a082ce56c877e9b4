"""What a run has measured of its members so far: how they stand when one of them is judged, and which values are stable.

Owns what is remembered of results, for the scheduler and for a run that is resumed. What follows from it is selection.py's.
"""

import logging
import math
from collections.abc import Collection, Mapping
from typing import Any

from pbt_agents.scheduling.progress import Progress
from pbt_agents.scheduling.selection import Standing
from pbt_agents.scheduling.stability import Stability, StabilityBudget
from pbt_agents.search_space import Range

logger = logging.getLogger(__name__)


class Evidence:
    """Scores are higher for better; steps count along the line of descent."""

    def __init__(self, error_metric: str | None, stability: StabilityBudget | None) -> None:
        self._error_metric = error_metric
        self._progress = Progress()
        self._stability = Stability(stability) if stability else None
        self._collapse_share = (stability or StabilityBudget()).collapse_share
        self._needed = {name for name in (error_metric, stability and stability.lag) if name}
        """Metrics that are looked for in the first result."""

    def note(self, member: str, step: float, score: float, values: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """A result of a member that trains with these values."""
        error = result.get(self._error_metric, math.nan) if self._error_metric else math.nan
        for metric in self._needed - result.keys():
            logger.warning("Results have no '%s': without it every score counts as exact, or nothing is learned of what is stable.", metric)
        self._needed = set()
        self._progress.add(member, step, score, error)
        if self._stability:
            self._stability.observe(values, result.get(self._stability.budget.lag), self.has_collapsed(member))

    def has_collapsed(self, member: str) -> bool:
        """By its last result."""
        return self._progress.has_collapsed(member, self._collapse_share)

    def clone(self, member: str, parent: str, step: float) -> None:
        self._progress.clone(member, parent, step)

    def standings(self, last: Mapping[str, float], places: Mapping[str, int], fresh: Collection[str], step: float) -> dict[str, Standing]:
        """Members with a last score, as they were at this step. Those that are `fresh`, clones without a result of their own, have their
        last one from before.

        Were it unknown or the donor's, the next member would count as the lowest, and an interval would replace more than the quantile.
        """
        standings = {}
        for member, score in last.items():
            then = None if member in fresh else self._progress.at(member, step)
            standings[member] = Standing(then.score, then.error, places[member]) if then else Standing(score, math.nan, places[member])
        return standings

    def stable(self, values: Mapping[str, Any], space: Mapping[str, Range]) -> dict[str, Any]:
        """The same values, scaled back where the run has seen them collapse."""
        return self._stability.within(values, space) if self._stability else dict(values)

    def state_dict(self) -> dict[str, Any]:
        return {"progress": self._progress.state_dict(), "stability": self._stability and self._stability.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._progress.load_state_dict(state["progress"])
        if self._stability and state["stability"]:
            self._stability.load_state_dict(state["stability"])
