import heapq
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_agents.buffer.segment import Location
from pbt_agents.buffer.window import Entry, Window

NOWHERE = Location("none", 0, 0)


def window_of(versions: list[int], version: int, width: int = 2, max_reuse: int = 1, groups_per_batch: int = 4) -> Window:
    window = Window(width, max_reuse, groups_per_batch, version)
    window.entries = [Entry(f"g{i}", NOWHERE, own) for i, own in enumerate(versions)]
    return window


def test_the_window_holds_so_many_versions_and_no_more() -> None:
    """Case B27: window 2, trainer at 5, versions 2, 3, 4, 5: 2 is dropped, 3 lags exactly 2 and is kept."""
    window = window_of([2, 3, 4, 5], version=5, width=2)
    assert [entry.version for entry in window.drop_stale()] == [2]
    assert [entry.version for entry in window.entries] == [3, 4, 5]
    assert (window.is_late(2), window.is_late(3)) == (True, False)


def test_a_draw_is_distinct_and_counts_the_use_and_the_lag() -> None:
    window = window_of([3, 4, 5], version=5, max_reuse=2)
    drawn = window.draw(3, np.random.default_rng(0))
    assert sorted(entry.group_id for entry in drawn) == ["g0", "g1", "g2"]
    assert [entry.uses for entry in window.entries] == [1, 1, 1]
    assert sorted(window.last_lags) == [0, 1, 2]
    window.drop_spent()
    assert len(window.entries) == 3
    window.draw(1, np.random.default_rng(0))
    window.drop_spent()
    assert len(window.entries) == 2


def test_every_group_of_the_window_is_as_likely_whatever_its_age() -> None:
    """Case B27: not the stalest first, nor the newest. 3,000 draws of 2 in 6: 1,000 each, standard deviation 26."""
    window = window_of([0, 0, 1, 1, 2, 2], version=2, max_reuse=1_000_000)
    rng = np.random.default_rng(1)
    for _ in range(3000):
        window.draw(2, rng)
    assert all(abs(entry.uses - 1000) < 104 for entry in window.entries)


def test_synchronous_generation_starts_one_batch_and_waits_for_the_next_version() -> None:
    window = window_of([], version=0, width=0)
    assert window.room(0) == 4
    assert window.room(3) == 1
    assert window.room(4) == 0
    window.entries = [Entry(f"g{i}", NOWHERE, 0) for i in range(4)]
    assert window.room(0) == 0
    window.draw(4, np.random.default_rng(0))
    window.drop_spent()
    assert window.room(0) == 0  # the buffer is empty, but its batch is in training
    window.advance(1)
    assert window.room(0) == 4


def test_generation_runs_ahead_by_the_width_and_no_further() -> None:
    window = window_of([0] * 7, version=0, width=2)  # 3 batches of 4 may exist
    assert window.room(2) == 3
    window.draw(4, np.random.default_rng(0))
    window.drop_spent()
    assert window.room(2) == 3  # what is in training still counts
    window.advance(1)
    assert window.room(2) == 7
    assert window.room(99) == 0


def test_a_group_stands_for_as_many_batches_as_it_can_still_be_in() -> None:
    window = window_of([], version=0, width=3, max_reuse=2)  # 16 uses may exist, a group gives 2
    assert window.room(0) == 8
    assert window.room(5) == 3
    window.entries = [Entry("fresh", NOWHERE, 0), Entry("used", NOWHERE, 0, uses=1)]
    assert window.room(0) == 6  # 16 - 2 - 1 = 13 uses, 6 whole groups
    window.advance(3)
    assert [window.uses_left(entry) for entry in window.entries] == [1, 1]  # both are in the window for the last time


@pytest.mark.parametrize("max_reuse", [2, 5])
def test_reuse_never_leaves_a_batch_without_enough_distinct_groups(max_reuse: int) -> None:
    window = window_of([], version=0, width=0, max_reuse=max_reuse)
    assert window.room(0) == 4  # in a window of 0 a group is used once, whatever is allowed
    wide = window_of([0], version=0, width=1, max_reuse=max_reuse)  # 8 uses may exist, each group gives 2
    assert wide.room(1) == 2  # (8 - 2 - 2) // 2, and 2 distinct ones lack
    wide.entries = [Entry(f"g{i}", NOWHERE, 0) for i in range(3)]
    assert wide.room(0) == 1
    wide.entries = [Entry(f"g{i}", NOWHERE, 1) for i in range(3)]  # the engines were already one ahead
    assert wide.room(0) == 1


def test_a_batch_that_needed_no_step_makes_room_for_another_at_the_same_version() -> None:
    window = window_of([0] * 4, version=0, width=0)
    window.draw(4, np.random.default_rng(0))
    window.drop_spent()
    assert window.room(0) == 0
    window.demand(4)
    assert window.room(0) == 4
    assert window.room(4) == 0
    window.width = 1
    assert window.room(0) == 8
    window.demand(6)  # a larger batch than was announced
    assert window.room(0) == 12


@dataclass
class Simulation:
    """Groups and batches of random length, in simulated time; the shortest way to a deadlock or to waste is looked for by hypothesis."""

    window: Window
    slots: int
    rng: np.random.Generator
    lost: float
    """Share of groups that are dropped before they are appended."""
    skipped: float
    """Share of batches without an optimizer step."""
    now: float = 0.0
    flying: list[tuple[float, int, int]] = field(default_factory=list)
    """When done, number, version at the start."""
    batch_done: float | None = None
    started: list[int] = field(default_factory=list)
    """Version at each group's start."""
    wasted: int = 0
    steps: int = 0

    def ahead(self) -> int:
        return len(self.flying) + len(self.window.entries) + (self.window.groups_per_batch if self.batch_done is not None else 0)

    def run(self, steps: int, widths: list[int]) -> None:
        events = 0
        while self.steps < steps:
            events += 1
            assert events < 20_000, "no progress"
            if widths and self.rng.random() < 0.05:
                self.window.width = int(self.rng.choice(widths))
                self.wasted += len(self.window.drop_stale())
            self.start_groups()
            self.start_batch()
            self.start_groups()
            self.next_event()

    def start_groups(self) -> None:
        for _ in range(min(self.window.room(len(self.flying)), self.slots - len(self.flying))):
            heapq.heappush(self.flying, (self.now + self.rng.exponential(), len(self.started), self.window.version))
            self.started.append(self.window.version)

    def start_batch(self) -> None:
        if self.batch_done is not None:
            return
        self.window.demand(self.window.groups_per_batch)
        if len(self.window.entries) >= self.window.groups_per_batch:
            drawn = self.window.draw(self.window.groups_per_batch, self.rng)
            assert len({entry.group_id for entry in drawn}) == len(drawn)
            self.window.drop_spent()
            self.batch_done = self.now + self.rng.exponential()

    def next_event(self) -> None:
        arrival = self.flying[0][0] if self.flying else float("inf")
        assert self.flying or self.batch_done is not None, "deadlock: nothing in flight, nothing in training, no room"
        if self.batch_done is not None and self.batch_done <= arrival:
            self.now, self.batch_done = self.batch_done, None
            if self.rng.random() >= self.skipped:
                self.steps += 1
                self.window.advance(self.window.version + 1)
                self.wasted += sum(entry.uses == 0 for entry in self.window.drop_stale())
            return
        self.now, number, version = heapq.heappop(self.flying)
        if self.rng.random() < self.lost:
            return
        if self.window.is_late(version):
            self.wasted += 1
        else:
            self.window.entries.append(Entry(f"g{number}", NOWHERE, version))


@given(
    width=st.integers(0, 5),
    max_reuse=st.integers(1, 4),
    groups_per_batch=st.integers(1, 5),
    slots=st.integers(1, 12),
    lost=st.sampled_from([0.0, 0.3]),
    skipped=st.sampled_from([0.0, 0.3]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=100, deadline=None)
def test_generation_is_bounded_and_nobody_waits_for_ever(
    width: int, max_reuse: int, groups_per_batch: int, slots: int, lost: float, skipped: float, seed: int
) -> None:
    """Case B30: lost groups free their place. In the synchronous mode each version gets one batch, and nothing is thrown away."""
    window = Window(width, max_reuse, groups_per_batch, version=0)
    simulation = Simulation(window, slots, np.random.default_rng(seed), lost, skipped)
    bound, room = (width + 1) * groups_per_batch, window.room

    def checked_room(in_flight: int) -> int:
        allowed = room(in_flight)
        assert allowed == 0 or simulation.ahead() + allowed <= bound
        return allowed

    window.room = checked_room  # type: ignore[method-assign]
    simulation.run(steps=20, widths=[])
    if width == 0 and not lost and not skipped:
        assert simulation.wasted == 0
        assert simulation.started[: 20 * groups_per_batch] == [version for version in range(20) for _ in range(groups_per_batch)]


@given(seed=st.integers(0, 2**32 - 1), max_reuse=st.integers(1, 3), slots=st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_a_window_that_changes_under_way_never_stops_the_ring(seed: int, max_reuse: int, slots: int) -> None:
    simulation = Simulation(Window(4, max_reuse, 3, version=0), slots, np.random.default_rng(seed), lost=0.2, skipped=0.1)
    simulation.run(steps=30, widths=[0, 1, 2, 8])


def test_fresh_groups_that_are_demanded_have_room_in_a_full_window_until_the_trainer_asks_again() -> None:
    """Three batches of 2 are admitted and there: none of version 5, then one of two, and one more in flight is enough."""
    window = window_of([3, 3, 3, 4, 4, 4], version=5, width=2, groups_per_batch=2)
    assert (window.fresh, window.room(0)) == (0, 0)
    window.demand_fresh(2)
    assert (window.room(0), window.room(1), window.room(2), window.room(3)) == (2, 1, 0, 0)
    window.entries.append(Entry("fresh", window.entries[0].location, 5))
    assert (window.fresh, window.room(0), window.room(1)) == (1, 1, 0)
    window.demand(2)
    assert window.room(0) == 0
