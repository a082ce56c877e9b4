"""A replay buffer against plain lists in memory, and under two threads."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbt_agents.buffer.replay import ReplayBuffer, SampleTimeoutError
from pbt_agents.config import BufferConfig
from pbt_agents.types import Group, PolicyId, PolicySpan


class Player:
    """A rollout thread that obeys admission, until the block ends."""

    def __init__(self, buffer: ReplayBuffer, groups: list[Group]) -> None:
        self.buffer, self.groups = buffer, groups
        self.version = 0
        self.errors: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Player":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(20)

    def _run(self) -> None:
        try:
            for number in range(1_000_000):
                while self.buffer.room(0) == 0:
                    if self._stop.wait(0.0005):
                        return
                span = PolicySpan(2, 5, PolicyId("a", 0, self.version))
                played = self.groups[number % len(self.groups)].trajectories
                self.buffer.append(Group(f"{number}", "e", 0, tuple(replace(trajectory, policy_spans=(span,)) for trajectory in played)))
        except BaseException as error:
            self.errors.append(error)


def test_two_threads_share_it(tmp_path: Path, make_group, open_buffer) -> None:
    """All batches are distinct and fresh, and every use of every group is accounted for."""
    buffer = open_buffer(tmp_path, BufferConfig(window=2, max_reuse=2, segment_groups=5), groups_per_batch=4)
    rng = np.random.default_rng(0)
    with Player(buffer, [make_group(f"g{i}") for i in range(40)]) as player:
        for step in range(60):
            batch = buffer.sample(4, rng, timeout_s=10)
            assert len({group.group_id for group in batch}) == 4
            assert all(0 <= step - group.oldest_version <= 2 for group in batch)
            if step % 20 == 0:
                buffer.snapshot(tmp_path / "pins" / str(step))
            player.version = step + 1
            buffer.advance(step + 1)
    assert player.errors == []
    stats = buffer.stats()
    left = stats["buffer/groups"] * 2 - sum(record["uses"] for record in buffer.snapshot(tmp_path / "end")["groups"])
    assert stats["buffer/drawn"] == 240
    assert stats["buffer/appended"] * 2 == stats["buffer/drawn"] + stats["buffer/evicted_uses"] + left


OPERATIONS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 4)),
    st.tuples(st.just("sample"), st.integers(1, 4)),
    st.tuples(st.just("advance"), st.integers(1, 3)),
    st.tuples(st.just("window"), st.integers(0, 4)),
    st.tuples(st.just("max_reuse"), st.integers(1, 3)),
    st.tuples(st.just("snapshot"), st.just(0)),
    st.tuples(st.just("crash"), st.just(0)),
)


class Model:
    """The same as lists in memory: group id -> [version, uses]."""

    def __init__(self, window: int, max_reuse: int) -> None:
        self.version, self.window, self.max_reuse = 0, window, max_reuse
        self.groups: dict[str, list[int]] = {}

    def tidy(self) -> None:
        self.groups = {
            name: [version, uses]
            for name, (version, uses) in self.groups.items()
            if uses < self.max_reuse and self.version - version <= self.window
        }

    def crash(self, version: int, known: dict[str, list[int]], appended_since: set[str]) -> None:
        newer = {name: [min(own, 2 * version - own), 0] for name, (own, _) in self.groups.items() if name in appended_since}
        self.version, self.groups = version, {name: list(values) for name, values in known.items()} | newer


@given(st.lists(OPERATIONS, min_size=5, max_size=30), st.integers(0, 3), st.integers(1, 2), st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_it_does_what_plain_lists_would(
    tmp_path_factory: pytest.TempPathFactory, make_group, operations: list[tuple[str, int]], window: int, max_reuse: int, seed: int
) -> None:
    """Cases B27, B32, B36: appends, draws, versions, changed settings, checkpoints and crashes in any order."""
    place, rng = tmp_path_factory.mktemp("buffer"), np.random.default_rng(seed)
    model = Model(window, max_reuse)
    buffer = ReplayBuffer(place / "log", BufferConfig(window, max_reuse, segment_groups=1), groups_per_batch=2)
    checkpoint = (buffer.snapshot(place / "0"), place / "0", 0, dict(model.groups))
    since: set[str] = set()
    for number, (verb, value) in enumerate(operations, start=1):
        if verb == "append":
            group = make_group(f"g{number}", model.version - value)
            assert buffer.append(group) == (value <= model.window)
            model.groups[group.group_id] = [model.version - value, 0]
            since.add(group.group_id)
        elif verb == "sample" and value <= len(model.groups):
            drawn = buffer.sample(value, rng, timeout_s=0)
            assert len({group.group_id for group in drawn}) == value
            for group in drawn:
                model.groups[group.group_id][1] += 1
        elif verb == "sample":
            with pytest.raises(SampleTimeoutError, match=f"{len(model.groups)} of {value}"):
                buffer.sample(value, rng, timeout_s=0)
        elif verb == "advance":
            model.version += value
            buffer.advance(model.version)
        elif verb in ("window", "max_reuse"):
            setattr(buffer, verb, value)
            setattr(model, verb, value)
        elif verb == "snapshot":
            folder = place / str(number)
            checkpoint, since = (buffer.snapshot(folder), folder, model.version, {k: list(v) for k, v in model.groups.items()}), set()
        else:
            buffer.close()
            buffer = ReplayBuffer(place / "log", BufferConfig(model.window, model.max_reuse, segment_groups=1), groups_per_batch=2)
            buffer.recover(*checkpoint[:2])
            buffer.room(0)
            model.crash(checkpoint[2], checkpoint[3], since)
        model.tidy()
        assert buffer.group_ids() == list(model.groups)
        assert len(list((place / "log").glob("*.arrow"))) == len(model.groups)
    buffer.close()
