"""Clones, checkpoints and crashes of a replay buffer."""

import json
from pathlib import Path

import numpy as np

from pbt_agents.buffer.replay import ReplayBuffer
from pbt_agents.config import BufferConfig


def drawn_ids(buffer: ReplayBuffer, count: int, seed: int = 0) -> set[str]:
    return {group.group_id for group in buffer.sample(count, np.random.default_rng(seed), timeout_s=0)}


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.arrow")}


def test_a_clone_holds_the_donors_groups_and_uses_and_nothing_of_its_own(tmp_path: Path, make_group, open_buffer) -> None:
    config = BufferConfig(max_reuse=2, segment_groups=3)
    donor = open_buffer(tmp_path / "donor", config)
    clone = open_buffer(tmp_path / "clone", config)
    for name in ("a", "b", "c", "d"):
        donor.append(make_group(name))
    donor.advance(1)
    used = drawn_ids(donor, 2)
    manifest = json.loads(json.dumps(donor.snapshot(tmp_path / "pinned")))
    clone.append(make_group("own"))
    clone.restore(manifest, tmp_path / "pinned")

    drawn_ids(donor, 4, seed=1)  # what the donor does now is its own affair
    donor.append(make_group("later", version=1))
    donor.restore({"version": 1, "segments": [], "groups": []}, tmp_path)
    assert files(tmp_path / "donor") == {}
    for path in (tmp_path / "pinned").iterdir():
        path.unlink()

    assert sorted(files(tmp_path / "clone")) == manifest["segments"]
    assert clone.group_ids() == ["a", "b", "c", "d"]
    assert clone.stats()["buffer/dropped"] == 1
    assert drawn_ids(clone, 4) == {"a", "b", "c", "d"}
    assert set(clone.group_ids()) == {"a", "b", "c", "d"} - used
    assert clone.stats()["buffer/lag_steps_mean"] == 1  # the version is the donor's too
    clone.append(make_group("new", version=1))
    assert "new" in clone.group_ids()


def test_a_clone_keeps_what_its_new_window_and_reuse_allow_not_its_old_ones(tmp_path: Path, make_group, open_buffer) -> None:
    """Case B44: the mutated values are applied last, so the old ones must not have evicted anything before."""
    wide, narrow = BufferConfig(window=8, max_reuse=3, segment_groups=1), BufferConfig(window=1, max_reuse=1, segment_groups=1)
    donor = open_buffer(tmp_path / "donor", wide, version=5)
    clone = open_buffer(tmp_path / "clone", narrow)
    donor.append(make_group("old", version=0))
    donor.append(make_group("new", version=5))
    drawn_ids(donor, 2)
    clone.restore(donor.snapshot(tmp_path / "pinned"), tmp_path / "pinned")
    assert clone.stats()["buffer/uses_left"] == 0
    clone.window, clone.max_reuse = 8, 2
    assert clone.group_ids() == ["old", "new"]
    drawn_ids(clone, 2)
    assert clone.group_ids() == []


def test_a_snapshot_is_whole_and_holds_no_file_that_is_written_to(tmp_path: Path, make_group, open_buffer) -> None:
    buffer = open_buffer(tmp_path / "log", BufferConfig(segment_groups=100))
    for name in ("a", "b"):
        buffer.append(make_group(name))
    manifest = buffer.snapshot(tmp_path / "pinned")
    before = files(tmp_path / "pinned")
    assert sorted(before) == sorted(manifest["segments"])
    buffer.append(make_group("c"))
    assert files(tmp_path / "pinned") == before
    assert [record["group_id"] for record in manifest["groups"]] == ["a", "b"]


def test_a_snapshot_holds_no_file_without_a_live_group(tmp_path: Path, make_group, open_buffer) -> None:
    buffer = open_buffer(tmp_path / "log", BufferConfig(segment_groups=100))
    buffer.append(make_group())
    drawn_ids(buffer, 1)
    assert buffer.snapshot(tmp_path / "pinned") == {"version": 0, "segments": [], "groups": []}
    assert list((tmp_path / "pinned").iterdir()) == []


def test_without_a_checkpoint_all_that_was_appended_is_there_unused(tmp_path: Path, make_group, open_buffer) -> None:
    """Case B36."""
    buffer = open_buffer(tmp_path)
    for name in ("a", "b", "c"):
        buffer.append(make_group(name))
    buffer.close()
    again = open_buffer(tmp_path)
    assert again.group_ids() == ["a", "b", "c"]
    assert drawn_ids(again, 3) == {"a", "b", "c"}


def test_after_a_crash_each_group_is_trained_on_exactly_once(tmp_path: Path, make_group, open_buffer) -> None:
    """Case B32: groups 0 to 7 in batches of 2; the crash comes while a batch is in training that no checkpoint knows.

    Two updates are lost with the weights; their groups come back, from the checkpoint's folder, or because they are played again.
    """
    buffer = open_buffer(tmp_path / "log", BufferConfig(window=8, segment_groups=2))
    for i in range(6):
        buffer.append(make_group(str(i)))
    trained = drawn_ids(buffer, 2)
    buffer.advance(1)
    manifest = buffer.snapshot(tmp_path / "checkpoint")
    for i in (6, 7):
        buffer.append(make_group(str(i), version=1))
    drawn_ids(buffer, 2)
    drawn_ids(buffer, 2)  # segments of the checkpoint may be gone from the log by now
    buffer.close()
    again = open_buffer(tmp_path / "log", BufferConfig(window=8, segment_groups=2))
    again.recover(manifest, tmp_path / "checkpoint")
    assert set("012345") - trained <= set(again.group_ids())
    for name in sorted(set("01234567") - trained - set(again.group_ids())):
        again.append(make_group(name, version=1))
    for seed in range(3):
        batch = drawn_ids(again, 2, seed)
        assert not batch & trained
        trained |= batch
    assert trained == set("01234567")
    assert again.group_ids() == []


def test_groups_of_a_lost_branch_lag_as_far_as_they_were_ahead(tmp_path: Path, make_group, open_buffer) -> None:
    """The trainer is back at 1. What version 3 sampled is two steps away, and four when the trainer reaches another 3."""
    buffer = open_buffer(tmp_path / "log", BufferConfig(window=3, segment_groups=1), version=1)
    manifest = buffer.snapshot(tmp_path / "checkpoint")
    buffer.advance(3)
    buffer.append(make_group("lost", version=3))
    buffer.close()
    again = open_buffer(tmp_path / "log", BufferConfig(window=3, segment_groups=1))
    again.recover(manifest, tmp_path / "checkpoint")
    again.advance(2)
    assert again.group_ids() == ["lost"]
    again.advance(3)
    assert again.group_ids() == []


def test_a_group_of_a_lost_branch_is_never_fresh(tmp_path: Path, make_group, open_buffer) -> None:
    """In the synchronous mode it must not be trained on, not even by the trainer that reaches the same version number again."""
    buffer = open_buffer(tmp_path, version=3)
    buffer.append(make_group("lost", version=3))
    buffer.close()
    again = open_buffer(tmp_path, BufferConfig(window=0), version=2)
    assert again.room(0) == 2
    assert again.group_ids() == []


def test_after_a_crash_groups_that_another_line_of_descent_played_are_left_out(tmp_path: Path, make_group, open_buffer) -> None:
    """A clone that is undone left groups of its donor's weights behind: how far they are from these nobody knows."""
    buffer = open_buffer(tmp_path / "log", BufferConfig(segment_groups=1))
    buffer.append(make_group("agent0.2.7"))
    manifest = buffer.snapshot(tmp_path / "checkpoint")
    for name in ("agent0.2.8", "agent0.3.0", "agent0.20.0"):
        buffer.append(make_group(name))
    buffer.close()
    again = open_buffer(tmp_path / "log", BufferConfig(segment_groups=1))
    again.recover(manifest, tmp_path / "checkpoint", "agent0.2.")
    assert again.group_ids() == ["agent0.2.7", "agent0.2.8"]
    assert again.stats()["buffer/dropped"] == 2
    assert len(files(tmp_path / "log")) == 2
