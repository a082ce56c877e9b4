"""What a restored run believes, against what is there.

Between the last snapshot of a run's state and the run's sudden end, checkpoints were saved and deleted. Tune would raise when it deletes
one of them again, and begin a trial anew when its latest one is gone.
"""

import shutil
from pathlib import Path
from typing import Any

from ray.train._internal.session import _TrainingResult
from ray.tune import Callback, Checkpoint
from ray.tune.experiment import Trial

from pbt_agents.errors import GuardError


class Restored(Callback):
    """For a run that must go on. From state that it cannot restore, Tune would start a new population in the place of the old one."""

    def __init__(self) -> None:
        self._mended = False

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        if not trials:
            raise GuardError("Tune could not restore the population: the reason is above. Nothing was trained or overwritten.")
        if not self._mended:
            self._mended = True
            for trial in trials:
                mend_checkpoints(trial)


def mend_checkpoints(trial: Trial) -> None:
    """Forget the checkpoints that are gone. Where the latest one is, go on from the one that was saved next.

    Those that came later belong to updates that are lost, and go: Tune would write others into their folders.
    """
    if trial.storage.storage_filesystem.type_name != "local":
        return
    manager = trial.run_metadata.checkpoint_manager
    latest = manager._latest_checkpoint_result
    manager._checkpoint_results = [saved for saved in manager._checkpoint_results if _is_there(saved)]
    there = {folder for folder in Path(trial.storage.trial_fs_path).glob("*_[0-9]*") if folder.is_dir()}
    if latest is not None and not _is_there(latest):
        # The first of them is whole: the latest known one was deleted when another had been saved after it. One that was adopted
        # meanwhile comes last: it is another member's, from a clone that is undone.
        folder = min(there, key=lambda folder: (not folder.name.startswith("checkpoint_"), folder.name))
        checkpoint = Checkpoint(path=str(folder), filesystem=trial.storage.storage_filesystem)
        manager.register_checkpoint(_TrainingResult(checkpoint, latest.metrics))
    for lost in there - {Path(saved.checkpoint.path) for saved in manager._checkpoint_results}:
        shutil.rmtree(lost)
    trial.run_metadata.invalidate_cache()


def _is_there(saved: Any) -> bool:
    return Path(saved.checkpoint.path).is_dir()
