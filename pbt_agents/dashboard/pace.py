"""How long a population will take yet: from the updates of its last results, their evaluations included."""

import math
from collections import deque
from collections.abc import Sequence

from pbt_agents.population import Budget

_RESULTS = 3
"""That an average goes over."""


class Pace:
    """Of one member. A result comes after a few updates and an evaluation, and the time for both is what counts."""

    def __init__(self) -> None:
        self._intervals: deque[tuple[int, float]] = deque(maxlen=_RESULTS)
        """(updates, seconds) of the last results."""
        self.updates = 0
        self._last_s: float | None = None
        self._first: tuple[int, float] | None = None
        """Updates, and when they were first heard of, before this process had a result."""

    def resume(self, updates: int, interval_s: float) -> None:
        """A result of a former process."""
        self._intervals.append((updates - self.updates, interval_s))
        self.updates = updates

    def heard(self, now_s: float, updates: int) -> None:
        """What a member says of itself between two results."""
        if self._first is None and self._last_s is None and updates > self.updates:
            self._first = (updates, now_s)

    def result(self, now_s: float, updates: int, step_s: float) -> float:
        """Seconds of this result. The first one would count the start, so it is taken from its updates after the first that was heard
        of; where there are none, `step_s` stands for it, which is what the member itself took."""
        seconds = step_s if self._last_s is None else now_s - self._last_s
        if self._last_s is None and self._first and updates > self._first[0]:
            started, since_s = self._first
            seconds = min(seconds, (now_s - since_s) * (updates - self.updates) / (updates - started))
        self._intervals.append((updates - self.updates, seconds))
        self.updates, self._last_s = updates, now_s
        return seconds

    @property
    def measured(self) -> bool:
        """By this process, too."""
        return self._last_s is not None

    @property
    def seconds_per_update(self) -> float | None:
        gained = sum(updates for updates, _ in self._intervals)
        return sum(seconds for _, seconds in self._intervals) / gained if gained > 0 else None

    def left_s(self, now_s: float, target: int) -> float | None:
        """Until `target` updates. Between two results it goes down with the clock, and no further once the next one is late."""
        if self.seconds_per_update is None:
            return None
        since = 0.0 if self._last_s is None else min(now_s - self._last_s, self._intervals[-1][1])
        return max((target - self.updates) * self.seconds_per_update - since, 0.0)


def target_updates(updates: int, interval: int) -> int:
    """Where a member stops: at the first evaluation with all its updates done."""
    return math.ceil(updates / interval) * interval


def updates_left_s(training: Sequence[Pace], ended: Sequence[Pace], now_s: float, target: int) -> float | None:
    """Until the last member has its updates; None while no pace is known.

    Either each goes on at its own pace, and the slowest is the last, or those that are done leave all they used to the others. The truth
    lies between, since engines and cores are shared and an agent's own turns are not: the geometric mean is taken.
    """
    left = [pace.left_s(now_s, target) for pace in training]
    alone = max((seconds for seconds in left if seconds is not None), default=None)
    if alone is None:
        return None
    rates = [1 / pace.seconds_per_update if pace.seconds_per_update else 0.0 for pace in (*training, *ended)]
    updates = sum(seconds * rate for seconds, rate in zip(left, rates, strict=False) if seconds is not None)
    return math.sqrt(alone * updates / sum(rates))


def time_left(budget: Budget, updates_left_s: float | None, seconds: float, cpu_s: float, cpu_per_s: float | None) -> float | None:
    """Until the first limit of the budget is reached; None while that is not known of any."""
    limits = []
    if budget.updates is not None and updates_left_s is not None:
        limits.append(updates_left_s)
    if budget.minutes is not None:
        limits.append(max(60 * budget.minutes - seconds, 0.0))
    if budget.cpu_seconds is not None and cpu_per_s:
        limits.append(max(budget.cpu_seconds - cpu_s, 0.0) / cpu_per_s)
    return min(limits, default=None)
