"""What the scheduler touches of Ray beyond the public API, so that an upgrade of Ray fails here by name."""

import inspect

import pytest
from ray import tune
from ray.train._internal.checkpoint_manager import _CheckpointManager
from ray.train._internal.session import _TrainingResult
from ray.train._internal.storage import StorageContext, _pyarrow_fs_copy_files
from ray.tune.callback import CallbackList
from ray.tune.execution import experiment_state
from ray.tune.execution.tune_controller import TrialRunnerWrapper, TuneController
from ray.tune.experiment import Trial
from ray.tune.experiment.trial import _TemporaryTrialState
from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler
from ray.tune.schedulers.pbt import _PBTTrialState
from ray.tune.search import BasicVariantGenerator
from ray.tune.trainable.metadata import _TrainingRunMetadata


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (PopulationBasedTraining.on_trial_add, ["tune_controller", "trial"]),
        (PopulationBasedTraining.on_trial_result, ["tune_controller", "trial", "result"]),
        (PopulationBasedTraining.on_trial_complete, ["tune_controller", "trial", "result"]),
        (PopulationBasedTraining.choose_trial_to_run, ["tune_controller"]),
        (PopulationBasedTraining._quantiles, []),
        (PopulationBasedTraining._checkpoint_or_exploit, ["trial", "tune_controller", "upper_quantile", "lower_quantile"]),
        (PopulationBasedTraining._exploit, ["tune_controller", "trial", "trial_to_clone"]),
        (PopulationBasedTraining._get_new_config, ["trial", "trial_to_clone"]),
        (TuneController._schedule_trial_task, ["trial", "method_name", "args", "kwargs", "on_result", "on_error", "_return_future"]),
        (TuneController._schedule_trial_train, ["trial"]),
        (TuneController._schedule_trial_save, ["trial", "result"]),
        (TuneController._trial_task_failure, ["trial", "exception"]),
        (TuneController._mark_trial_to_checkpoint, ["trial"]),
        (TuneController.checkpoint, ["force", "wait"]),
        (TuneController.pause_trial, ["trial", "should_checkpoint"]),
        (_CheckpointManager.register_checkpoint, ["checkpoint_result"]),
        (Trial.set_config, ["config"]),
        (Trial.on_restore, []),
        (Trial.get_trainable_cls, []),
        (tune.Trainable.restore, ["checkpoint_path"]),
        (tune.Trainable.reset_config, ["new_config"]),
        (tune.Callback.get_state, []),
        (tune.Callback.set_state, ["state"]),
        (tune.Callback.on_experiment_end, ["trials", "info"]),
    ],
    ids=lambda value: getattr(value, "__qualname__", None),
)
def test_a_method_takes_what_is_handed_to_it(function, parameters):
    # Ray adds a parameter of its own to the methods of a class that some test has made an actor.
    assert [name for name in inspect.signature(function).parameters if name != "_ray_trace_ctx"][1:] == parameters


def test_functions_and_values_take_what_is_handed_to_them():
    assert list(inspect.signature(_TrainingResult).parameters) == ["checkpoint", "metrics"]
    copied = ["source", "destination", "source_filesystem", "destination_filesystem"]
    assert list(inspect.signature(_pyarrow_fs_copy_files).parameters)[:4] == copied


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (StorageContext, ["trial_fs_path", "experiment_fs_path", "experiment_driver_staging_path"]),
        (Trial, ["latest_checkpoint_result", "checkpoint_freq", "is_restoring", "is_saving", "is_finished"]),
        (TrialScheduler, ["CONTINUE", "PAUSE", "NOOP", "_supports_buffered_results"]),
    ],
)
def test_a_class_has_its_attributes(kind, names):
    assert [name for name in names if not hasattr(kind, name)] == []


def test_instances_have_their_attributes():
    pbt = PopulationBasedTraining(metric="fitness", mode="max", hyperparam_mutations={"rate": [1, 2]})
    assert (pbt._metric, pbt._metric_op, pbt._time_attr, pbt._trial_state, pbt._num_perturbations) == (
        "fitness",
        1.0,
        "time_total_s",
        {},
        0,
    )
    trial = Trial("any", stub=True)
    state = vars(_PBTTrialState(trial))
    assert {"last_score", "last_perturbation_time", "last_train_time", "last_result"} <= set(state)
    assert vars(_TemporaryTrialState())["restoring_from"] is None
    assert hasattr(trial, "trainable_name")
    assert hasattr(_TrainingRunMetadata(), "checkpoint_manager")
    assert CallbackList([pbt])._callbacks == [pbt]
    manager = experiment_state._ExperimentCheckpointManager(storage=None, checkpoint_period="auto")
    assert manager._should_force_sync_up is False
    assert TuneController.CKPT_FILE_TMPL == "experiment_state-{}.json"
    assert BasicVariantGenerator.CKPT_FILE_TMPL == "basic-variant-state-{}.json"
    assert CallbackList.CKPT_FILE_TMPL == "callback-states-{}.pkl"


@pytest.mark.parametrize(
    ("function", "uses"),
    [
        (TrialRunnerWrapper.__init__, ["self._tune_controller = tune_controller"]),
        (TuneController.__init__, ["self._cached_trial_decisions = {}", "self._queued_trial_decisions = {}"]),
        (TuneController.__init__, ["self._callbacks = CallbackList(", "self._checkpoint_manager = ", "self._storage = storage"]),
        (
            TuneController._process_trial_save,
            ["self._cached_trial_decisions.pop(trial.trial_id, None)", "self._queue_decision(trial, decision)"],
        ),
        (TuneController._process_trial_result, ["if trial.is_saving:", "not self._cached_trial_decisions.get(trial.trial_id)"]),
        (StorageContext._update_checkpoint_index, ["self.current_checkpoint_index += 1"]),
        (StorageContext.__init__, ["self.syncer", "self.storage_filesystem"]),
        (TuneController.resume, ["self._callbacks.restore_from_dir", "self._requeue_restored_trials(trials"]),
        (tune.Trainable.train, ["self._last_result = result"]),
        (tune.Trainable._report_class_trainable_checkpoint, ["self._last_result.copy()"]),
    ],
    ids=lambda value: getattr(value, "__qualname__", None),
)
def test_a_function_still_does_what_the_scheduler_counts_on(function, uses):
    source = inspect.getsource(function)
    assert [use for use in uses if use not in source] == []
    if function is TuneController.resume:
        assert source.index(uses[0]) < source.index(uses[1]), "state must be there before the trials are added"
