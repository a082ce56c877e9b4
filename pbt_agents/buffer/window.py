"""The window on the log: which groups may still be trained on, and how many more may be started.

Arithmetic in memory. Files, locks and waiting are replay.py's.
"""

from dataclasses import dataclass

import numpy as np

from pbt_agents.buffer.segment import Location


@dataclass(slots=True)
class Entry:
    """A group in the window."""

    group_id: str
    location: Location
    version: int
    """Of its oldest trained token."""
    uses: int = 0
    """Batches it was drawn for."""


class Window:
    """Groups in order of arrival, each with uses left and at most `width` versions behind."""

    def __init__(self, width: int, max_reuse: int, groups_per_batch: int, version: int) -> None:
        self.width = width
        self.max_reuse = max_reuse
        self.groups_per_batch = groups_per_batch
        self.version = version
        self.entries: list[Entry] = []
        self.last_lags: list[int] = []
        """Of the last batch."""
        self._in_training = 0
        self._fresh = 0

    def lag(self, version: int) -> int:
        return self.version - version

    def is_late(self, version: int) -> bool:
        return self.lag(version) > self.width

    def advance(self, version: int) -> None:
        """The engines sample from this version now; the batch in training is done."""
        self.version = version
        self._in_training = 0

    def drop_spent(self) -> None:
        self.entries = [entry for entry in self.entries if entry.uses < self.max_reuse]

    def drop_stale(self) -> list[Entry]:
        """Returns what was too old."""
        oldest = self.version - self.width
        stale = [entry for entry in self.entries if entry.version < oldest]
        self.entries = [entry for entry in self.entries if entry.version >= oldest]
        return stale

    def demand(self, count: int) -> None:
        """The trainer asks for so many distinct groups. So whatever it drew before is not in training any more."""
        self.groups_per_batch = count
        self._in_training = self._fresh = 0

    def demand_fresh(self, count: int) -> None:
        """Until the trainer asks again there is room for so many groups of the current version, whatever else there is."""
        self._fresh = count

    @property
    def fresh(self) -> int:
        """Groups of the current version."""
        return sum(entry.version == self.version for entry in self.entries)

    def draw(self, count: int, rng: np.random.Generator) -> list[Entry]:
        """Distinct groups, uniformly from the whole window. Neither spent nor stale ones may be in it."""
        drawn = [self.entries[i] for i in rng.choice(len(self.entries), count, replace=False)]
        for entry in drawn:
            entry.uses += 1
        self.last_lags = [self.lag(entry.version) for entry in drawn]
        self._in_training = count
        return drawn

    def uses_left(self, entry: Entry) -> int:
        """A batch holds a group once, so it can be drawn at most once in each version that it stays."""
        versions_left = self.width + 1 - max(0, self.lag(entry.version))
        return max(0, min(self.max_reuse - entry.uses, versions_left))

    def room(self, in_flight: int) -> int:
        """How many more groups may be started.

        Counted in uses, what is in training, in the window and in flight is at most (width + 1) batches: more would be too old when its
        turn came. No group counts for more uses than it has batches to be in. So while a batch lacks distinct groups there is room for
        them, and nothing waits for ever. Fresh groups that were demanded come before their time: others then wait for longer.
        """
        uses_each = min(self.max_reuse, self.width + 1)
        ahead = self._in_training + sum(self.uses_left(entry) for entry in self.entries) + in_flight * uses_each
        return max(0, ((self.width + 1) * self.groups_per_batch - ahead) // uses_each, self._fresh - self.fresh - in_flight)
