"""What the scheduler reads from Tune's trials and asks of its controller beyond the public API.

Decides nothing. Everything here, and what scheduler.py overrides, is checked by name in tests/scheduling/test_ray_contract.py.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler
from ray.tune.utils import flatten_dict


def controller_of(wrapped: Any) -> Any:
    """Tune hands schedulers a wrapper, or now and then the controller itself."""
    return getattr(wrapped, "_tune_controller", wrapped)


def callbacks_of(wrapped: Any) -> list[Any]:
    return list(controller_of(wrapped)._callbacks._callbacks)


def experiment_folder(trial: Trial) -> Path:
    """Where the run's files go: its folder, or for remote storage the local one that Tune uploads from."""
    local = trial.storage.storage_filesystem.type_name == "local"
    return Path(trial.storage.experiment_fs_path if local else trial.storage.experiment_driver_staging_path)


def checkpoint_metrics(trial: Trial) -> dict[str, Any]:
    """Metrics of the trial's latest complete checkpoint; empty where there is none."""
    saved = trial.latest_checkpoint_result
    return flatten_dict(saved.metrics) if saved else {}


def hand_over(wrapped: Any, trial: Trial, adopted: Any, config: dict[str, Any], on_answer: Callable[[Trial, Any], None]) -> None:
    """Let the living actor become a clone. Until it answers the trial counts as restoring and is not trained."""
    controller = controller_of(wrapped)
    trial.temporary_state.restoring_from = adopted
    controller._schedule_trial_task(
        trial=trial,
        method_name="exploit_in_place",
        args=(config, adopted),
        on_result=on_answer,
        on_error=controller._trial_task_failure,
    )


def train_on(wrapped: Any, trial: Trial) -> None:
    """The actor has become the clone. A save that Tune asked for at the same result decides what follows when it is done."""
    controller = controller_of(wrapped)
    trial.on_restore()
    if trial.is_saving:
        # Tune remembers the NOOP of that result, and would go by it: the trial would stand still for ever.
        controller._cached_trial_decisions[trial.trial_id] = TrialScheduler.CONTINUE
    else:
        controller._schedule_trial_train(trial)
    controller._mark_trial_to_checkpoint(trial)


def go_on(wrapped: Any, trial: Trial) -> None:
    """Let a trial take its next step, which neither trains nor saves since a NOOP."""
    controller_of(wrapped)._schedule_trial_train(trial)


def forget_decisions(wrapped: Any) -> None:
    """Tune restores what a former process had decided for the time when a trial is saved. That save is lost, and at the first one of this
    process an old NOOP would let the trial stand still for ever, an old STOP would end it.
    """
    controller = controller_of(wrapped)
    controller._cached_trial_decisions.clear()
    controller._queued_trial_decisions.clear()


def take_snapshot(wrapped: Any) -> Path | None:
    """Write the experiment's state and have it in its folder; the folder that it was written to, or None where it is still under way."""
    controller = controller_of(wrapped)
    if controller._storage.storage_filesystem.type_name != "local":
        controller._checkpoint_manager._should_force_sync_up = True
        return None
    # Tune would write while it still copies what it wrote before. Should that copy fail, this one takes its place.
    with contextlib.suppress(OSError):
        controller._storage.syncer.wait()
    controller.checkpoint(force=True, wait=True)
    return Path(controller._storage.experiment_driver_staging_path)
