"""A clone's copy of its donor's checkpoint outlives the donor's."""

import errno
import os
import shutil
from types import SimpleNamespace

import pyarrow.fs
import pytest
from ray.train._internal.checkpoint_manager import _CheckpointManager
from ray.train._internal.session import _TrainingResult
from ray.train._internal.storage import StorageContext
from ray.tune import Checkpoint, CheckpointConfig

from pbt_agents.scheduling.adoption import adopt, link_folder, number_on


@pytest.fixture
def checkpoint(tmp_path):
    folder = tmp_path / "donor" / "checkpoint_000003"
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter" / "weights.bin").write_bytes(b"weights")
    (folder / "state.json").write_text("{}")
    return folder


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_linked_checkpoint_shares_the_bytes_and_survives_the_donors(checkpoint, tmp_path):
    """B49."""
    adopted = tmp_path / "adopted_000000"
    link_folder(checkpoint, adopted)
    assert (adopted / "state.json").stat().st_ino == (checkpoint / "state.json").stat().st_ino
    expected = files(checkpoint)
    shutil.rmtree(checkpoint)
    assert files(adopted) == expected == {"adapter/weights.bin": b"weights", "state.json": b"{}"}


def test_a_former_or_half_made_copy_is_replaced(checkpoint, tmp_path):
    """B72."""
    adopted = tmp_path / "adopted_000000"
    for folder in (adopted, adopted.with_name(".adopted_000000")):
        folder.mkdir()
        (folder / "left_over.bin").write_bytes(b"old")
    link_folder(checkpoint, adopted)
    assert files(adopted) == files(checkpoint)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adopted_000000", "donor"]


def test_files_are_copied_where_links_are_not_possible(checkpoint, tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.EXDEV, "another device")

    monkeypatch.setattr(os, "link", refuse)
    link_folder(checkpoint, tmp_path / "adopted")
    assert files(tmp_path / "adopted") == files(checkpoint)
    assert (tmp_path / "adopted" / "state.json").stat().st_nlink == 1


def test_a_full_disk_is_not_taken_for_a_missing_link(checkpoint, tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="no space left"):
        link_folder(checkpoint, tmp_path / "adopted")
    assert not (tmp_path / "adopted").exists()


def test_a_clone_is_made_whole_though_a_checkpoint_that_its_own_replaces_is_gone(checkpoint, tmp_path):
    """Else the same name would be adopted again, and deleted as the older of the two."""
    local, own = pyarrow.fs.LocalFileSystem(), tmp_path / "clone"
    own.mkdir()
    manager = _CheckpointManager(CheckpointConfig(num_to_keep=1))
    manager.register_checkpoint(_TrainingResult(Checkpoint(str(own / "checkpoint_000000"), local), {}))
    trial = SimpleNamespace(
        trial_id="clone",
        storage=SimpleNamespace(trial_fs_path=str(own), storage_filesystem=local),
        run_metadata=SimpleNamespace(checkpoint_manager=manager, invalidate_cache=lambda: None),
    )
    source = _TrainingResult(Checkpoint(str(checkpoint), local), {"fitness": 0.5})
    adopted = adopt(source, trial, "adopted_000001", {"rate": 0.1})
    assert manager.latest_checkpoint_result is adopted
    assert manager._checkpoint_results == [adopted]
    assert files(own / "adopted_000001") == files(checkpoint)
    assert adopted.metrics == {"fitness": 0.5, "trial_id": "clone", "config": {"rate": 0.1}}


@pytest.mark.parametrize(("known", "next_name"), [(1, "checkpoint_000004"), (7, "checkpoint_000008")])
def test_a_trial_never_writes_into_a_checkpoint_that_exists(checkpoint, known, next_name):
    """B49. What was saved after the last snapshot is on disk, and a clone may share its files."""
    (checkpoint.parent / "adopted_000009").mkdir()
    storage = StorageContext(storage_path=str(checkpoint.parents[1]), experiment_dir_name="", trial_dir_name="donor")
    storage.current_checkpoint_index = known
    number_on(SimpleNamespace(storage=storage))
    storage._update_checkpoint_index({})
    assert storage.checkpoint_dir_name == next_name


def test_a_new_trial_begins_with_its_first_checkpoint(tmp_path):
    storage = StorageContext(storage_path=str(tmp_path), experiment_dir_name="run")
    number_on(SimpleNamespace(storage=storage))
    assert storage.current_checkpoint_index == -1
