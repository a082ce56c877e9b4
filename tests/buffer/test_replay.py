import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pbt_agents.buffer.replay import BufferClosedError, ReplayBuffer, SampleTimeoutError
from pbt_agents.config import BufferConfig
from pbt_agents.errors import ConfigError, GuardError
from pbt_agents.types import Group, PolicyId, PolicySpan, Trajectory


def drawn_ids(buffer: ReplayBuffer, count: int, seed: int = 0) -> set[str]:
    return {group.group_id for group in buffer.sample(count, np.random.default_rng(seed), timeout_s=0)}


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.arrow")}


def test_what_is_drawn_is_what_was_appended(tmp_path: Path, make_group, open_buffer) -> None:
    buffer = open_buffer(tmp_path)
    group = make_group("g", version=0, size=3)
    assert buffer.append(group)
    (drawn,) = buffer.sample(1, np.random.default_rng(0), timeout_s=0)
    assert (drawn.group_id, drawn.seed, drawn.environment) == ("g", 7, "sudoku:tiny")
    for got, given_ in zip(drawn.trajectories, group.trajectories, strict=True):
        np.testing.assert_array_equal(got.token_ids, given_.token_ids)
        np.testing.assert_array_equal(got.behavior_logprobs, given_.behavior_logprobs)
        assert (got.policy_spans, got.rewards.tolist()) == (given_.policy_spans, given_.rewards.tolist())


def test_a_group_leaves_the_window_with_its_version(tmp_path: Path, make_group, open_buffer) -> None:
    """Case B27: window 2, trainer at 5, versions 2, 3, 4, 5: 2 goes, 3 stays; then first in, first out, counted, and off the disk."""
    buffer = open_buffer(tmp_path, version=4)
    for version in (2, 3, 4, 5):
        assert buffer.append(make_group(f"v{version}", version))
    buffer.advance(5)
    assert buffer.group_ids() == ["v3", "v4", "v5"]
    buffer.advance(6)
    assert buffer.group_ids() == ["v4", "v5"]
    assert (buffer.stats()["buffer/evicted_window"], buffer.stats()["buffer/evicted_unused"]) == (2, 2)
    assert len(files(tmp_path)) == 2


def test_a_group_that_comes_too_late_is_refused_and_counted(tmp_path: Path, make_group, open_buffer) -> None:
    """Case B28: it counts from its oldest token, so one that crossed from 3 to 4 is too old at 6 in a window of 2."""
    turn = make_group(tokens=20).trajectories[0].turns[0]
    spans = (PolicySpan(2, 12, PolicyId("a", 0, 3)), PolicySpan(12, 22, PolicyId("a", 0, 4)))
    crossed = Group("crossed", "e", 0, (Trajectory((turn,), spans, "length"), Trajectory((turn,), spans[1:], "length")))
    buffer = open_buffer(tmp_path, version=6)
    assert not buffer.append(crossed)
    assert (buffer.stats()["buffer/late"], buffer.stats()["buffer/appended"]) == (1, 0)
    assert files(tmp_path) == {}


def test_a_group_of_one_is_refused_and_of_the_surviving_three_is_not(tmp_path: Path, make_group, open_buffer) -> None:
    """Case B30: a group of 4 that lost one closes with 3; one survivor has nobody to be compared with."""
    buffer = open_buffer(tmp_path)
    assert buffer.append(make_group("three", size=3))
    with pytest.raises(GuardError, match="group one needs 2 trajectories"):
        buffer.append(make_group("one", size=1))
    unsampled = replace(make_group().trajectories[0], policy_spans=())
    with pytest.raises(GuardError, match=r"spans per trajectory: \[0, 0\]"):
        buffer.append(Group("empty", "e", 0, (unsampled, unsampled)))
    assert buffer.group_ids() == ["three"]


def test_a_group_is_drawn_as_often_as_allowed_and_its_file_goes(tmp_path: Path, make_group, open_buffer) -> None:
    buffer = open_buffer(tmp_path, BufferConfig(max_reuse=2, segment_groups=1))
    for name in ("a", "b"):
        buffer.append(make_group(name))
    assert drawn_ids(buffer, 2) == {"a", "b"}
    assert drawn_ids(buffer, 2) == {"a", "b"}
    assert (buffer.group_ids(), files(tmp_path)) == ([], {})
    with pytest.raises(SampleTimeoutError):
        buffer.sample(1, np.random.default_rng(0), timeout_s=0)


def test_a_shortage_says_how_many_there_were(tmp_path: Path, make_group, open_buffer) -> None:
    """Case B30: no hang when nothing more will come."""
    buffer = open_buffer(tmp_path)
    buffer.append(make_group())
    with pytest.raises(TimeoutError, match=r"1 of 2 groups .* after 0.01 s, at version 0 with window=2"):
        buffer.sample(2, np.random.default_rng(0), timeout_s=0.01)
    assert buffer.group_ids() == ["g0"]
    assert buffer.stats()["buffer/wait_s"] >= 0.01


@contextmanager
def waiting_trainer(buffer: ReplayBuffer) -> Iterator[list[Group | BufferClosedError]]:
    """A thread that waits for 3 groups when the block begins; at its end, what it got."""
    outcome: list[Group | BufferClosedError] = []

    def wait() -> None:
        try:
            outcome.extend(buffer.sample(3, np.random.default_rng(0), timeout_s=60))
        except BufferClosedError as error:
            outcome.append(error)

    announced = buffer.room(0)
    trainer = threading.Thread(target=wait, daemon=True)
    trainer.start()
    deadline = time.monotonic() + 20
    while buffer.room(0) == announced:  # asking for 3 makes more room than the 2 per batch that were announced
        assert time.monotonic() < deadline
    yield outcome
    trainer.join(20)
    assert not trainer.is_alive()


def test_a_waiting_trainer_gets_its_batch_when_the_last_group_arrives(tmp_path: Path, make_group, open_buffer) -> None:
    buffer = open_buffer(tmp_path)
    with waiting_trainer(buffer) as got:
        for name in ("a", "b", "c"):
            buffer.append(make_group(name))
    assert {group.group_id for group in got} == {"a", "b", "c"}


def test_closing_wakes_who_waits_and_later_calls_touch_nothing(tmp_path: Path, make_group, open_buffer) -> None:
    """Case B30."""
    buffer = open_buffer(tmp_path)
    buffer.append(make_group("kept"))
    with waiting_trainer(buffer) as got:
        buffer.close()
    assert [type(error) for error in got] == [BufferClosedError]
    assert buffer.room(0) == 0
    with pytest.raises(BufferClosedError):
        buffer.append(make_group("late"))
    with pytest.raises(BufferClosedError):
        buffer.advance(99)
    again = open_buffer(tmp_path)
    assert again.group_ids() == ["kept"]


def test_uses_that_go_with_an_old_group_are_counted(tmp_path: Path, make_group, open_buffer) -> None:
    buffer = open_buffer(tmp_path, BufferConfig(window=0, max_reuse=3))
    for name in ("a", "b"):
        buffer.append(make_group(name))
    drawn_ids(buffer, 1)
    buffer.advance(1)
    stats = buffer.stats()  # one had 2 of its 3 uses left, the other all
    assert (stats["buffer/evicted_window"], stats["buffer/evicted_unused"], stats["buffer/evicted_uses"]) == (2, 1, 5)


def test_versions_only_rise(tmp_path: Path, open_buffer) -> None:
    buffer = open_buffer(tmp_path, version=3)
    buffer.advance(3)
    with pytest.raises(GuardError, match="at version 3 and cannot go back to 2"):
        buffer.advance(2)


def test_a_smaller_window_evicts_at_once_and_a_wrong_one_is_refused(tmp_path: Path, make_group, open_buffer) -> None:
    buffer = open_buffer(tmp_path, version=2)
    for version in (0, 1, 2):
        buffer.append(make_group(f"v{version}", version))
    buffer.window = 1
    assert (buffer.window, buffer.group_ids(), len(files(tmp_path))) == (1, ["v1", "v2"], 2)
    with pytest.raises(ConfigError, match=r"window must be at least 0, got -1. It counts policy versions"):
        buffer.window = -1
    assert buffer.window == 1


def test_reuse_is_changed_in_place(tmp_path: Path, make_group, open_buffer) -> None:
    buffer = open_buffer(tmp_path, BufferConfig(max_reuse=3, segment_groups=1))
    buffer.append(make_group("twice"))
    for _ in range(2):
        drawn_ids(buffer, 1)
    buffer.append(make_group("fresh"))
    buffer.max_reuse = 2
    assert (buffer.max_reuse, buffer.group_ids(), len(files(tmp_path))) == (2, ["fresh"], 1)
    with pytest.raises(ConfigError, match="max_reuse"):
        buffer.max_reuse = 0


def test_the_disk_stays_bounded_and_the_oldest_go_first(tmp_path: Path, make_group, open_buffer) -> None:
    """Case B27: room for 4 groups, 100 are appended and none is drawn: 4 are there, 96 were evicted."""
    config = BufferConfig(capacity_bytes=1 << 20)
    buffer = open_buffer(tmp_path, config)
    for i in range(100):
        buffer.append(make_group(f"g{i}", tokens=15_000))  # 241 kB each, so a file each
        assert sum(path.stat().st_size for path in tmp_path.glob("*.arrow")) <= 1 << 20
    assert buffer.group_ids() == ["g96", "g97", "g98", "g99"]
    assert buffer.stats()["buffer/evicted_capacity"] == 96
    assert buffer.stats()["buffer/evicted_unused"] == 96


def test_admission_sees_what_the_trainer_does(tmp_path: Path, make_group, open_buffer) -> None:
    """Case B27: in the synchronous mode nothing is started ahead, and nothing that is generated is thrown away."""
    buffer = open_buffer(tmp_path, BufferConfig(window=0))
    for version in range(4):
        assert (buffer.room(0), buffer.room(1), buffer.room(2)) == (2, 1, 0)
        for i in range(2):
            buffer.append(make_group(f"{version}.{i}", version))
        assert buffer.room(0) == 0
        drawn_ids(buffer, 2)
        assert buffer.stats()["buffer/lag_steps_max"] == 0
        assert buffer.room(0) == 0
        buffer.advance(version + 1)
    stats = buffer.stats()
    assert (stats["buffer/drawn"], stats["buffer/late"], stats["buffer/evicted_unused"]) == (8, 0, 0)


def test_the_lag_of_what_was_drawn_is_reported(tmp_path: Path, make_group, open_buffer) -> None:
    buffer = open_buffer(tmp_path, version=2)
    for version in (0, 2):
        buffer.append(make_group(f"v{version}", version))
    drawn_ids(buffer, 2)
    assert (buffer.stats()["buffer/lag_steps_mean"], buffer.stats()["buffer/lag_steps_max"]) == (1.0, 2)


def test_a_buffer_waits_for_the_disk_as_often_as_configured(tmp_path: Path, make_group, open_buffer, monkeypatch) -> None:
    buffer = open_buffer(tmp_path, BufferConfig(fsync_groups=2))
    buffer.append(make_group("creates the segment"))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    for name in ("a", "b", "c", "d"):
        buffer.append(make_group(name))
    assert len(synced) == 2


def test_whoever_waits_for_fresh_groups_waits_for_the_current_version_and_draws_none(tmp_path: Path, make_group, open_buffer) -> None:
    buffer = open_buffer(tmp_path, version=1)
    buffer.append(make_group("old", 0))
    buffer.append(make_group("one", 1))
    with pytest.raises(SampleTimeoutError):
        buffer.wait_fresh(2, timeout_s=0.01)
    buffer.append(make_group("another", 1))
    buffer.wait_fresh(2, timeout_s=0.01)
    assert buffer.stats()["buffer/drawn"] == 0
    assert drawn_ids(buffer, 3) == {"old", "one", "another"}
