import os
from types import SimpleNamespace

import pyarrow.fs
import pytest
from ray.train._internal.checkpoint_manager import _CheckpointManager
from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint, CheckpointConfig

from pbt_agents.errors import GuardError
from pbt_agents.scheduling.restored import Restored, mend_checkpoints

LOCAL = pyarrow.fs.LocalFileSystem()


@pytest.fixture
def trial(tmp_path):
    """A trial that keeps two checkpoints, with one file system and one clock of saves."""
    made = SimpleNamespace(
        storage=SimpleNamespace(storage_filesystem=LOCAL, trial_fs_path=str(tmp_path)),
        run_metadata=SimpleNamespace(checkpoint_manager=_CheckpointManager(CheckpointConfig(num_to_keep=2)), invalidate_cache=lambda: None),
    )
    made.saves = 0
    return made


def save(trial, name, register=True):
    folder = f"{trial.storage.trial_fs_path}/{name}"
    os.mkdir(folder)
    trial.saves += 1
    os.utime(folder, (trial.saves, trial.saves))
    result = _TrainingResult(Checkpoint(folder, LOCAL), {"training_iteration": trial.saves})
    if register:
        trial.run_metadata.checkpoint_manager.register_checkpoint(result)
    return folder


def latest(trial):
    return trial.run_metadata.checkpoint_manager.latest_checkpoint_result.checkpoint.path


def test_a_checkpoint_that_was_deleted_meanwhile_is_forgotten_and_deleting_goes_on(trial):
    old = save(trial, "checkpoint_000000")
    kept = save(trial, "checkpoint_000001")
    os.rmdir(old)
    mend_checkpoints(trial)
    assert latest(trial) == kept
    save(trial, "checkpoint_000002")
    save(trial, "checkpoint_000003")  # without mending, the first of these two saves raises
    assert sorted(os.listdir(trial.storage.trial_fs_path)) == ["checkpoint_000002", "checkpoint_000003"]


def test_where_the_latest_is_gone_the_one_that_was_saved_after_it_is_gone_on_from(trial):
    """B72. Of those that came later the last one may be half-written."""
    os.rmdir(save(trial, "checkpoint_000000"))
    os.rmdir(save(trial, "adopted_000004"))
    following = save(trial, "checkpoint_000001", register=False)
    os.utime(save(trial, "adopted_000005", register=False), (1, 1))  # an adopted folder is as old as the donor's
    save(trial, "checkpoint_000002", register=False)
    mend_checkpoints(trial)
    assert latest(trial) == following
    assert os.listdir(trial.storage.trial_fs_path) == ["checkpoint_000001"]
    assert trial.run_metadata.checkpoint_manager.latest_checkpoint_result.metrics == {"training_iteration": 2}


def test_what_is_whole_is_left_as_it_is(trial):
    save(trial, "checkpoint_000000")
    kept = save(trial, "checkpoint_000001")
    mend_checkpoints(trial)
    assert latest(trial) == kept
    assert len(trial.run_metadata.checkpoint_manager.best_checkpoint_results) == 2


def test_what_was_saved_after_the_last_known_one_goes_and_nothing_else(trial):
    """Tune would write other checkpoints into the same folders, whose files a clone may share."""
    kept = [save(trial, "checkpoint_000000"), save(trial, "adopted_000001")]
    save(trial, "checkpoint_000001", register=False)
    os.mkdir(f"{trial.storage.trial_fs_path}/ring")
    open(f"{trial.storage.trial_fs_path}/params_0.json", "w").close()
    mend_checkpoints(trial)
    assert latest(trial) == kept[-1]
    assert sorted(os.listdir(trial.storage.trial_fs_path)) == ["adopted_000001", "checkpoint_000000", "params_0.json", "ring"]


def test_a_trial_that_never_saved_is_left_as_it_is(trial):
    mend_checkpoints(trial)
    assert trial.run_metadata.checkpoint_manager.latest_checkpoint_result is None


def test_checkpoints_elsewhere_are_left_as_they_are(trial):
    os.rmdir(save(trial, "checkpoint_000000"))
    trial.storage.storage_filesystem = SimpleNamespace(type_name="s3")
    mend_checkpoints(trial)
    assert len(trial.run_metadata.checkpoint_manager.best_checkpoint_results) == 1


def test_a_run_that_must_go_on_does_not_begin_anew(trial):
    """B52."""
    with pytest.raises(GuardError, match="could not restore"):
        Restored().on_step_begin(1, [])


def test_trials_are_mended_once_before_they_go_on(trial):
    os.rmdir(save(trial, "checkpoint_000000"))
    kept = save(trial, "checkpoint_000001")
    restored = Restored()
    restored.on_step_begin(7, [trial])
    assert latest(trial) == kept
    assert len(trial.run_metadata.checkpoint_manager.best_checkpoint_results) == 1
    os.rmdir(kept)
    restored.on_step_begin(8, [trial])
    assert latest(trial) == kept
