"""FIFO store of finished groups, bounded by policy lag and by bytes, durable and shared by two threads.

Joins the log (what is on disk) with the window on it (what may be trained on). Playing groups is rollout's, advantages are the trainer's,
and who calls `advance` knows that the engines confirmed.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

from pbt_agents.buffer.files import new_folder
from pbt_agents.buffer.log import SegmentLog
from pbt_agents.buffer.manifest import Manifest, from_record, to_record
from pbt_agents.buffer.schema import from_batch, group_key, to_batch
from pbt_agents.buffer.window import Entry, Window
from pbt_agents.config import BufferConfig
from pbt_agents.errors import GuardError, PbtAgentsError
from pbt_agents.types import Group


class SampleTimeoutError(PbtAgentsError, TimeoutError):
    """Too few groups arrived in time."""


class BufferClosedError(PbtAgentsError):
    """Somebody closed the buffer; whoever waits at it is done."""


class ReplayBuffer:
    """Any thread may call any method. One buffer at a time may open the folder."""

    def __init__(self, folder: Path, config: BufferConfig, groups_per_batch: int, version: int = 0) -> None:
        """Groups found in the folder count as unused; a run that goes on calls `recover` with its checkpoint's manifest first."""
        self._config = config
        self._log = SegmentLog(folder, config.segment_groups, config.capacity_bytes, config.fsync_groups)
        self._window = Window(config.window, config.max_reuse, groups_per_batch, version)
        self._window.entries = self._unlisted(())
        self._counts: Counter[str] = Counter()
        self._wait_s = 0.0
        self._closed = False
        self._changed = threading.Condition()

    # Rollout's side

    def room(self, in_flight: int) -> int:
        """How many groups may be started now, beside those in flight: started, and neither appended nor dropped yet."""
        with self._changed:
            if self._closed:
                return 0
            self._evict()
            return self._window.room(in_flight)

    def append(self, group: Group) -> bool:
        """True: the group is on disk. False: it came too late to be trained on, and was counted."""
        _check_complete(group)
        batch = to_batch(group)
        with self._changed:
            self._check_open()
            if self._window.is_late(group.oldest_version):
                self._counts["late"] += 1
                return False
            location = self._log.append(batch)
            self._window.entries.append(Entry(group.group_id, location, group.oldest_version))
            self._counts["appended"] += 1
            self._evict()
            self._changed.notify_all()
            return True

    # The trainer's side

    def demand_fresh(self, count: int) -> None:
        """Until the next `sample`, let so many groups of the current version be played, whatever else is there."""
        with self._changed:
            self._window.demand_fresh(count)

    def wait_fresh(self, count: int, timeout_s: float) -> None:
        """Demands them, and returns once they are there. Raises SampleTimeoutError when they are not in time."""
        with self._changed:
            self._window.demand_fresh(count)
            self._wait(lambda: self._window.fresh >= count, count, timeout_s)

    def sample(self, count: int, rng: np.random.Generator, timeout_s: float) -> list[Group]:
        """Waits until there are `count` distinct groups with uses left, and draws so many from the whole window, uniformly.

        Raises SampleTimeoutError when there are not in time. Calling it again without an `advance` between says that the batch before
        needed no optimizer step.
        """
        with self._changed:
            self._window.demand(count)
            self._wait(lambda: len(self._window.entries) >= count, count, timeout_s)
            drawn = self._window.draw(count, rng)
            batches = [self._log.read(entry.location) for entry in drawn]
            self._counts["drawn"] += count
            self._evict()
        return [from_batch(batch) for batch in batches]

    def advance(self, version: int) -> None:
        """All engines sample from this version now: what lags too far is dropped, and the batch in training makes room."""
        with self._changed:
            if version < self._window.version:
                raise GuardError(
                    f"the buffer is at version {self._window.version} and cannot go back to {version}. Restore a snapshot for that."
                )
            self._window.advance(version)
            self._evict()

    # Settings, changed in place

    @property
    def window(self) -> int:
        return self._window.width

    @window.setter
    def window(self, width: int) -> None:
        with self._changed:
            self._config = replace(self._config, window=width)
            self._window.width = width
            self._count_evicted("evicted_window", self._window.drop_stale())
            self._drop_dead_segments()

    @property
    def max_reuse(self) -> int:
        return self._window.max_reuse

    @max_reuse.setter
    def max_reuse(self, uses: int) -> None:
        with self._changed:
            self._config = replace(self._config, max_reuse=uses)
            self._window.max_reuse = uses
            self._window.drop_spent()
            self._drop_dead_segments()

    # Checkpoints and clones

    def snapshot(self, folder: Path) -> Manifest:
        """The live groups at this moment, as links in a new folder that no later write or deletion reaches."""
        with new_folder(folder) as aside, self._changed:
            self._evict()
            self._log.seal()
            self._drop_dead_segments()
            self._log.link_to(aside)
            records = [to_record(entry) for entry in self._window.entries]
            return Manifest(version=self._window.version, segments=self._log.names, groups=records)

    def restore(self, manifest: Manifest, folder: Path) -> None:
        """Becomes what the snapshot holds: a clone. The groups it had before are dropped, since another policy made them.

        Nothing of the donor's is evicted before `window` and `max_reuse` had a chance to be set to the clone's new values.
        """
        with self._changed:
            self._counts["dropped"] += len(self._window.entries)
            self._log.seal()
            self._log.adopt(folder, manifest["segments"])
            self._hold(manifest["version"], [from_record(record) for record in manifest["groups"]])

    def recover(self, manifest: Manifest, folder: Path, prefix: str = "") -> None:
        """After a crash: the snapshot's groups, and as unused ones those that this folder got later and whose ids begin with `prefix`.

        What came later and has gone since, spent on updates that are lost, must be played again.
        """
        with self._changed:
            self._log.seal()
            self._log.adopt(folder, manifest["segments"])
            self._window.version = manifest["version"]
            unlisted = self._unlisted(manifest["segments"])
            later = [entry for entry in unlisted if entry.group_id.startswith(prefix)]
            self._counts["dropped"] += len(unlisted) - len(later)
            self._hold(manifest["version"], [from_record(record) for record in manifest["groups"]] + later)

    def group_ids(self) -> list[str]:
        """Of the groups in the window, in order of arrival."""
        with self._changed:
            return [entry.group_id for entry in self._window.entries]

    def close(self) -> None:
        """Wakes whoever waits, with a BufferClosedError. The files stay."""
        with self._changed:
            self._closed = True
            self._log.close()
            self._changed.notify_all()

    # What it reports

    def stats(self) -> dict[str, float]:
        with self._changed:
            window, lags = self._window, self._window.last_lags
            reported = ("appended", "drawn", "late", "evicted_window", "evicted_capacity", "evicted_unused", "evicted_uses", "dropped")
            return {
                "buffer/groups": len(window.entries),
                "buffer/uses_left": sum(window.uses_left(entry) for entry in window.entries),
                "buffer/bytes": self._log.size_bytes,
                "buffer/segments": len(self._log.names),
                "buffer/torn_tails": self._log.torn_tails,
                "buffer/window": window.width,
                "buffer/max_reuse": window.max_reuse,
                "buffer/lag_steps_mean": float(np.mean(lags)) if lags else 0.0,
                "buffer/lag_steps_max": max(lags, default=0),
                "buffer/wait_s": self._wait_s,
                **{f"buffer/{name}": self._counts[name] for name in reported},
            }

    # With the lock held

    def _wait(self, there: Callable[[], bool], count: int, timeout_s: float) -> None:
        started = time.monotonic()
        self._evict()
        self._changed.wait_for(lambda: self._closed or there(), timeout_s)
        self._wait_s += time.monotonic() - started
        self._check_open()
        if not there():
            raise SampleTimeoutError(self._shortage(count, timeout_s))

    def _check_open(self) -> None:
        if self._closed:
            raise BufferClosedError("the buffer was closed.")

    def _hold(self, version: int, entries: list[Entry]) -> None:
        """Replaces what is in the window."""
        self._window.advance(version)
        self._window.entries = entries
        self._drop_dead_segments()
        self._changed.notify_all()

    def _unlisted(self, segments: Collection[str]) -> list[Entry]:
        """The groups on disk outside of these segments, as unused.

        One that is ahead of the trainer was sampled after the checkpoint it went back to, so weights that are lost made it. It is as many
        steps away as it is ahead, along the other branch, so it counts as that many behind.
        """
        entries = []
        for location in self._log.locations():
            if location.segment not in segments:
                group_id, version = group_key(self._log.read(location))
                entries.append(Entry(group_id, location, min(version, 2 * self._window.version - version)))
        return entries

    def _evict(self) -> None:
        """First what is spent or too old, then the oldest for as long as the disk holds too much."""
        self._window.drop_spent()
        self._count_evicted("evicted_window", self._window.drop_stale())
        self._drop_dead_segments()
        while self._log.size_bytes > self._log.capacity_bytes and self._window.entries:
            self._count_evicted("evicted_capacity", [self._window.entries.pop(0)])
            self._drop_dead_segments()

    def _drop_dead_segments(self) -> None:
        self._check_open()  # once it is closed, the folder may be another's
        self._log.keep({entry.location.segment for entry in self._window.entries})

    def _count_evicted(self, reason: str, entries: list[Entry]) -> None:
        self._counts[reason] += len(entries)
        self._counts["evicted_unused"] += sum(entry.uses == 0 for entry in entries)
        self._counts["evicted_uses"] += sum(max(0, self._window.max_reuse - entry.uses) for entry in entries)

    def _shortage(self, count: int, timeout_s: float) -> str:
        window, counts = self._window, self._counts
        return (
            f"{len(window.entries)} of {count} groups with uses left were there after {timeout_s:g} s, at version {window.version} with "
            f"window={window.width} and max_reuse={window.max_reuse}; {counts['appended']} had been appended, {counts['late']} came late, "
            f"{counts['evicted_capacity']} were evicted for capacity_bytes={self._log.capacity_bytes}. "
            "Is the rollout alive, and does capacity_bytes hold a few batches?"
        )


def _check_complete(group: Group) -> None:
    if len(group.trajectories) < 2 or not all(trajectory.policy_spans for trajectory in group.trajectories):
        spans = [len(trajectory.policy_spans) for trajectory in group.trajectories]
        raise GuardError(
            f"group {group.group_id} needs 2 trajectories or more, each with sampled tokens; spans per trajectory: {spans}. Drop it."
        )
