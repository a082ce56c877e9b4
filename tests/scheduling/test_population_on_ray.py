"""Whole populations under Tune's own controller, on a landscape whose best rate is known."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from ray import tune
from ray.tune.schedulers import TrialScheduler

from pbt_agents.scheduling.lineage import Lineage
from pbt_agents.scheduling.restored import Restored
from pbt_agents.scheduling.scheduler import JOURNAL, SCHEDULE, InPlacePBT
from pbt_agents.scheduling.state import SchedulerState, check_experiment
from pbt_agents.testing.landscape import Gate, Landscape

pytestmark = pytest.mark.slow

SPACE = {"rate": tune.loguniform(0.01, 100.0), "width": [1, 2, 4, 8]}
RATES = [0.05, 0.2, 1.0, 8.0]
"""The third is the best one, the fourth diverges."""


@pytest.fixture(scope="module", autouse=True)
def local_ray():
    folder = tempfile.mkdtemp(prefix="r")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
        environment.setenv("TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S", "0")
        ray.init(num_cpus=8, include_dashboard=False, object_store_memory=80 << 20, _temp_dir=folder, log_to_driver=False)
        yield
        ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


class Observer(tune.Callback):
    """All results in order, and the loss of one process on request."""

    def __init__(self):
        self.results, self.killed = defaultdict(list), {}

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.results[trial.trial_id].append(dict(result))

    def processes(self, member):
        return {result["process"] for result in self.results[member]}


class Enough(Observer):
    """Asks for the end, by the file that the driver's stop condition looks for, when every member has had ten results.

    Or one has had so many that another must stand still.
    """

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def on_trial_result(self, iteration, trials, trial, result, **info):
        super().on_trial_result(iteration, trials, trial, result, **info)
        count = [len(self.results[other.trial_id]) for other in trials]
        if min(count) >= 10 or max(count) >= 10_000:
            (self.folder / "enough").touch()


class KillAClone(Observer):
    """Ends the process of the first clone that has reported as one, once."""

    def __init__(self, scheduler):
        super().__init__()
        self.scheduler = scheduler

    def on_trial_result(self, iteration, trials, trial, result, **info):
        super().on_trial_result(iteration, trials, trial, result, **info)
        event = self.scheduler.lineage.latest(trial.trial_id)
        if not self.killed and event and event.score_after is not None:
            self.killed = {"member": trial.trial_id, "process": result["process"], "at": len(self.results[trial.trial_id])}
            os.kill(result["process"], signal.SIGKILL)


def run(folder, scheduler, observer, rates=RATES, trainable=Landscape, stop=None, **run_options):
    gate = f"gate-{time.monotonic_ns()}"
    keeper = ray.remote(Gate).options(name=gate, num_cpus=0).remote(len(rates))
    tuner = tune.Tuner(
        trainable,
        param_space={"rate": tune.grid_search(rates), "width": 2, "gate": gate},
        tune_config=tune.TuneConfig(metric="fitness", mode="max", scheduler=scheduler),
        run_config=tune.RunConfig(
            name="run",
            storage_path=str(folder),
            stop=stop or {"training_iteration": 25},
            callbacks=[SchedulerState(scheduler), observer],
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2, num_to_keep=2),
            verbose=0,
            **run_options,
        ),
    )
    grid = tuner.fit()
    ray.kill(keeper)
    return grid


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A population that has run to its end, undisturbed."""
    folder, scheduler, observer = tmp_path_factory.mktemp("finished"), InPlacePBT(SPACE, seed=1), Observer()
    grid = run(folder, scheduler, observer)
    assert grid.num_errors == 0
    return SimpleNamespace(folder=folder / "run", lineage=scheduler.lineage, results=observer.results, processes=observer.processes)


def member_of_rate(lineage, rate):
    return next(member for member, values in lineage.members.items() if values["rate"] == rate)


def test_clones_are_made_in_living_processes(finished):
    clones = finished.lineage.clones.values()
    assert len(clones) >= 3
    assert [len(finished.processes(member)) for member in finished.results] == [1, 1, 1, 1]
    assert max(event.latency_s for event in clones) < 2.0


def test_every_clone_copies_a_better_member_and_one_that_diverged_is_rescued(finished):
    """B47. So the best one of a moment is left alone; who that is depends on how fast each process goes."""
    clones = finished.lineage.clones.values()
    assert all(not event.score_before >= event.parent_score for event in clones)
    diverged = member_of_rate(finished.lineage, 8.0)
    assert diverged in {event.child for event in clones}
    assert any(math.isfinite(result["fitness"]) for result in finished.results[diverged])


def test_every_clone_has_its_donors_state_and_trains_with_the_values_that_were_decided(finished):
    """B44, B48. The values in use are read from the optimizer, whose state the donor's checkpoint has just replaced."""
    decided = {member: [values] for member, values in finished.lineage.members.items()}
    for event in finished.lineage.clones.values():
        assert event.values != event.parent_values
        decided[event.child].append(event.values)
    for member, results in finished.results.items():
        used = [(result["rate_in_use"], result["width_in_use"]) for result in results]
        assert list(dict.fromkeys(used)) == list(dict.fromkeys((values["rate"], values["width"]) for values in decided[member]))
        assert (results[-1]["origin"] != member) == (len(decided[member]) > 1)


def test_the_schedule_of_the_winner_is_what_its_line_trained_with(finished):
    """B54."""
    schedule = json.loads((finished.folder / SCHEDULE).read_text())
    winner = schedule["winner"]
    assert schedule["score"] == max(results[-1]["fitness"] for results in finished.results.values())
    assert schedule["segments"][0]["step"] == 0
    last = schedule["segments"][-1]["values"]
    assert (last["rate"], last["width"]) == tuple(finished.results[winner][-1][name] for name in ("rate_in_use", "width_in_use"))


def test_a_clone_whose_process_is_killed_is_back_with_its_mutated_values(tmp_path):
    """B44, B52."""
    scheduler = InPlacePBT(SPACE, seed=1)
    observer = KillAClone(scheduler)
    grid = run(tmp_path, scheduler, observer, failure_config=tune.FailureConfig(max_failures=1))
    member, lost = observer.killed["member"], observer.killed["process"]
    back = next(result for result in observer.results[member][observer.killed["at"] :] if result["process"] != lost)

    assert grid.num_errors == 0
    assert (back["rate_in_use"], back["width_in_use"]) in [
        (event.values["rate"], event.values["width"]) for event in scheduler.lineage.clones.values() if event.child == member
    ]
    assert back["origin"] != member
    assert [len(observer.processes(other)) for other in observer.results if other != member] == [1, 1, 1]


def remember_saves(folder):
    """The state of a driver that was killed while all trials but one were being saved, after each had become a clone."""
    file = sorted(folder.glob("experiment_state-*.json"))[-1]
    state = json.loads(file.read_text())
    members = [json.loads(trial)["trial_id"] for trial, _ in state["trial_data"]]
    state["runner_data"]["_cached_trial_decisions"] = dict.fromkeys(members[1:], TrialScheduler.NOOP)
    file.write_text(json.dumps(state))


def test_a_run_whose_driver_is_killed_goes_on_with_the_last_values_of_every_member(tmp_path):
    """B52."""
    address = ray.get_runtime_context().gcs_address
    script = Path(__file__).with_name("doomed_driver.py")
    doomed = subprocess.run([sys.executable, script, address, tmp_path], capture_output=True, text=True, timeout=100)
    assert doomed.returncode == -signal.SIGKILL, doomed.stderr

    folder = tmp_path / "doomed"
    former = Lineage(folder / JOURNAL)
    check_experiment(folder)
    remember_saves(folder)
    keeper = ray.remote(Gate).options(name="gate", num_cpus=0).remote(len(RATES))
    observer = Enough(tmp_path)
    tuner = tune.Tuner.restore(str(folder), Landscape, param_space={"rate": tune.grid_search(RATES), "width": 2, "gate": "gate"})
    internal = tuner._local_tuner
    internal._run_config.callbacks[1:] = [Restored(), observer]
    scheduler = internal._tune_config.scheduler
    tuner.fit()
    ray.kill(keeper)

    assert all(len(results) >= 10 for results in observer.results.values())
    lineage = Lineage(folder / JOURNAL)
    kept = [number for number in former.clones if number in lineage.clones]
    assert kept
    assert kept == list(former.clones)[: len(kept)]
    assert list(scheduler.lineage.clones) == list(lineage.clones)
    assert list(lineage.clones) == sorted(set(lineage.clones))
    for member, results in observer.results.items():
        ancestors = [event for number, event in former.clones.items() if number in kept and event.child == member]
        values = ancestors[-1].values if ancestors else former.members[member]
        assert (results[0]["rate_in_use"], results[0]["width_in_use"]) == (values["rate"], values["width"])
    mutated = [results[0] for member, results in observer.results.items() if any(former.clones[k].child == member for k in kept)]
    assert mutated
    assert all(result["training_iteration"] > 1 for result in mutated)


def test_members_of_a_synchronous_population_wait_for_each_other(tmp_path):
    """Each interval is over for all of them before one begins the next. Whoever collapsed has waited since."""
    scheduler, observer = InPlacePBT(SPACE, seed=1, perturbation_interval=4, synchronous=True), Observer()
    grid = run(tmp_path, scheduler, observer, stop={"training_iteration": 20})
    clones = list(scheduler.lineage.clones.values())
    assert grid.num_errors == 0
    assert clones
    assert all(event.parent_step >= event.child_step for event in clones)
    assert clones[-1].parent_step == clones[-1].child_step
    assert {event.parent_step for event in clones} <= {4, 8, 12, 16}
    assert [results[-1]["training_iteration"] for results in observer.results.values()] == [20] * 4
    assert [len(observer.processes(member)) for member in observer.results] == [1, 1, 1, 1]


def test_a_synchronous_population_whose_clones_restart_comes_to_its_end(tmp_path):
    """Nobody waits for a process that may not find a place."""
    scheduler, observer = InPlacePBT(SPACE, seed=1, perturbation_interval=4, synchronous=True), Observer()
    grid = run(tmp_path, scheduler, observer, trainable=Restarting, stop={"training_iteration": 12})
    assert grid.num_errors == 0
    assert scheduler.lineage.clones
    assert [results[-1]["training_iteration"] for results in observer.results.values()] == [12] * 4


class Restarting(tune.Trainable):
    """The same landscape without the contract: a checkpoint brings the state only."""

    def setup(self, config):
        self.landscape = Landscape.__new__(Landscape)
        self.landscape._trial_info = self._trial_info
        self.landscape.setup(config)

    def step(self):
        return self.landscape.step()

    def save_checkpoint(self, checkpoint_dir):
        self.landscape.save_checkpoint(checkpoint_dir)

    def load_checkpoint(self, checkpoint):
        self.landscape.load_checkpoint(checkpoint)
        self.landscape.reset_config(self.config)


def test_a_trainable_without_the_contract_is_cloned_by_restart(tmp_path):
    scheduler, observer = InPlacePBT(SPACE, seed=1), Observer()

    def stop(member, result):
        return result["origin"] != member or result["training_iteration"] == 200

    run(tmp_path, scheduler, observer, rates=[0.1, 1.0], trainable=Restarting, stop=stop)
    [clone, *_] = scheduler.lineage.clones.values()
    *former, last = observer.results[clone.child]
    assert last["process"] not in {result["process"] for result in former}
    assert last["origin"] == clone.parent
    assert (last["rate_in_use"], last["width_in_use"]) == (clone.values["rate"], clone.values["width"])
    assert last["training_iteration"] == clone.parent_step + 1
