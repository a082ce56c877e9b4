"""A donor's checkpoint becomes one of the clone's own: in its folder, under its retention, whatever the donor deletes later.

On a local file system the files are hard links, so nobody may write to a checkpoint's files once it is complete.
"""

import contextlib
import copy
import errno
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.train._internal.session import _TrainingResult
from ray.train._internal.storage import _pyarrow_fs_copy_files
from ray.tune import Checkpoint
from ray.tune.experiment import Trial


def adopt(source: Any, trial: Trial, name: str, config: Mapping[str, Any]) -> Any:
    """Copy a checkpoint (Tune's result of a save) to `name` in the trial's folder and register it as the trial's latest.

    Its metrics become the trial's last result, under the config that the trial goes on with.
    """
    checkpoint, folder = source.checkpoint, Path(trial.storage.trial_fs_path) / name
    if checkpoint.filesystem.type_name == "local":
        link_folder(Path(checkpoint.path), folder)
    else:
        trial.storage.storage_filesystem.create_dir(str(folder))
        _pyarrow_fs_copy_files(checkpoint.path, str(folder), checkpoint.filesystem, trial.storage.storage_filesystem)
    metrics = {**source.metrics, "trial_id": trial.trial_id, "config": copy.deepcopy(dict(config))}
    adopted = _TrainingResult(Checkpoint(path=str(folder), filesystem=trial.storage.storage_filesystem), metrics)
    with contextlib.suppress(FileNotFoundError):  # of a former checkpoint that Tune has just forgotten, and is gone already
        trial.run_metadata.checkpoint_manager.register_checkpoint(adopted)
    trial.run_metadata.invalidate_cache()
    return adopted


def number_on(trial: Trial) -> None:
    """Give the trial's next checkpoint a name of its own: after a crash Tune would write into one that a clone may share files with."""
    started_before = trial.storage.trial_dir_name is not None
    if started_before and trial.storage.storage_filesystem.type_name == "local":
        taken = [int(path.name.removeprefix("checkpoint_")) for path in Path(trial.storage.trial_fs_path).glob("checkpoint_[0-9]*")]
        trial.storage.current_checkpoint_index = max([trial.storage.current_checkpoint_index, *taken])


def link_folder(source: Path, target: Path) -> None:
    """`target` appears whole or not at all, and replaces a former one."""
    aside = target.with_name(f".{target.name}")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(source, aside, copy_function=_link)
    shutil.rmtree(target, ignore_errors=True)
    aside.replace(target)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copy2(source, target)
