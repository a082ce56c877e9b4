"""Decisions and clocks of the scheduler, on Tune's own trials and a controller that records what it is asked."""

import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray import tune
from ray.train._internal.session import _TrainingResult
from ray.train._internal.storage import StorageContext
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from pbt_agents.errors import ConfigError, GuardError
from pbt_agents.scheduling.lineage import Lineage
from pbt_agents.scheduling.mutation import Perturbation
from pbt_agents.scheduling.scheduler import JOURNAL, InPlacePBT
from pbt_agents.scheduling.selection import Truncation
from pbt_agents.scheduling.stability import StabilityBudget
from pbt_agents.scheduling.state import SchedulerState
from pbt_agents.testing.landscape import Landscape

SPACE = {"rate": tune.loguniform(0.01, 100.0), "width": [1, 2, 4, 8]}


class Restarting(tune.Trainable):
    """Without the contract."""


class Controller:
    """Records what a scheduler asks of Tune's controller."""

    search_alg = None

    def __init__(self):
        self.trials, self.saved, self.tasks, self.trained, self.paused, self.marked = [], [], [], [], [], []
        self._callbacks, self._checkpoint_manager = SimpleNamespace(_callbacks=[]), SimpleNamespace()
        self._storage = SimpleNamespace(storage_filesystem=SimpleNamespace(type_name="elsewhere"))
        self._cached_trial_decisions, self._queued_trial_decisions = {}, {}
        self._trial_task_failure = object()
        self._schedule_trial_save = self.saved.append
        self._schedule_trial_train = self.trained.append
        self._mark_trial_to_checkpoint = self.marked.append

    def get_trials(self):
        return self.trials

    def pause_trial(self, trial, should_checkpoint):
        assert not should_checkpoint
        trial.set_status(Trial.PAUSED)
        self.paused.append(trial)

    def _schedule_trial_task(self, **task):
        self.tasks.append(SimpleNamespace(**task))


class Population:
    """A scheduler with its members, which report and save when a test says so."""

    def __init__(self, folder, rates, trainable="landscape", scheduler=None, controller=None, **options):
        tune.register_trainable("landscape", Landscape)
        tune.register_trainable("restarting", Restarting)
        self.scheduler = scheduler or InPlacePBT(SPACE, metric="fitness", mode=options.pop("mode", "max"), **options)
        self.controller = controller or Controller()
        for slot, rate in enumerate(rates):
            storage = StorageContext(storage_path=str(folder), experiment_dir_name="run", trial_dir_name=f"m{slot}")
            Path(storage.trial_fs_path).mkdir(exist_ok=True)
            trial = Trial(trainable, config={"rate": rate, "width": 2, "slot": slot}, trial_id=f"m{slot}", storage=storage)
            trial.set_status(Trial.RUNNING)
            self.controller.trials.append(trial)
            self.scheduler.on_trial_add(self.controller, trial)

    def __getitem__(self, slot):
        return self.controller.trials[slot]

    def save(self, slot, fitness, step):
        """What Tune does when a save is complete."""
        path = Path(self[slot].storage.trial_fs_path) / f"checkpoint_{step:06d}"
        path.mkdir()
        (path / "weights").write_text(f"{slot}@{step}")
        metrics = {"fitness": fitness, "training_iteration": step, "trial_id": f"m{slot}"}
        saved = _TrainingResult(tune.Checkpoint.from_directory(path), metrics)
        self[slot].run_metadata.checkpoint_manager.register_checkpoint(saved)

    def report(self, slot, fitness, step):
        return self.scheduler.on_trial_result(self.controller, self[slot], {"fitness": fitness, "training_iteration": step})

    def report_all(self, fitnesses, step):
        return [self.report(slot, fitness, step) for slot, fitness in enumerate(fitnesses)]

    def clones(self):
        return [(event.parent, event.child) for event in self.scheduler.lineage.clones.values()]


def answer(task, trial, **in_use):
    config = task.args[0]
    task.on_result(trial, {"rate": config["rate"], "width": config["width"], **in_use})


@pytest.fixture
def pair(tmp_path):
    """m0 is the better one, with a checkpoint at step 3; m1 has just become its clone."""
    pair = Population(tmp_path, [1.0, 0.1])
    pair.report(0, 0.9, 3)
    pair.save(0, 0.9, 3)
    assert pair.report(1, 0.2, 5) == TrialScheduler.NOOP
    return pair


def test_a_clone_gets_the_donors_checkpoint_and_new_values_in_its_living_actor(pair):
    """B44, B48."""
    [task] = pair.controller.tasks
    config, adopted = task.args
    assert (task.trial, task.method_name, task.on_error) == (pair[1], "exploit_in_place", pair.controller._trial_task_failure)
    assert Path(adopted.checkpoint.path, "weights").read_text() == "0@3"
    assert (config["rate"], config["width"]) != (1.0, 2)
    assert config["rate"] != 0.1
    assert pair[1].config == config
    assert pair.controller.paused == pair.controller.trained == []


def test_what_is_not_searched_stays_the_clones_own(pair):
    assert [trial.config["slot"] for trial in pair.controller.trials] == [0, 1]
    assert pair[0].config == {"rate": 1.0, "width": 2, "slot": 0}


def test_the_clone_trains_on_when_it_has_answered_and_is_snapshotted_at_once(pair):
    answer(pair.controller.tasks[0], pair[1])
    assert pair.controller.trained == pair.controller.marked == [pair[1]]
    assert pair.scheduler._snapshots.due
    assert not pair[1].is_restoring
    assert pair[1].last_result["training_iteration"] == 3
    assert pair[1].last_result["trial_id"] == "m1"


def test_a_clone_that_tune_saves_at_the_same_result_trains_on_after_the_save(pair):
    """B50. Tune holds the NOOP of the result until the save is done, and would leave the trial without a task."""
    pair[1].temporary_state.saving_to = object()
    pair.controller._cached_trial_decisions["m1"] = TrialScheduler.NOOP
    answer(pair.controller.tasks[0], pair[1])
    assert pair.controller._cached_trial_decisions == {"m1": TrialScheduler.CONTINUE}
    assert pair.controller.trained == []


def test_a_clone_that_trains_with_other_values_stops_the_run(pair):
    """B44."""
    with pytest.raises(GuardError, match=r"clone m1 trains with \{'rate': 0\.1\}"):
        answer(pair.controller.tasks[0], pair[1], rate=0.1)
    assert pair.controller.trained == []


def test_the_lineage_names_the_exact_checkpoint_and_all_values_and_scores(pair):
    """B48."""
    answer(pair.controller.tasks[0], pair[1])
    pair.report(1, 0.95, 4)
    [event] = pair.scheduler.lineage.clones.values()
    assert (event.parent, event.child, event.parent_step, event.child_step) == ("m0", "m1", 3, 5)
    assert event.checkpoint == str(Path(pair[0].storage.trial_fs_path) / "checkpoint_000003")
    assert (event.values_before, event.parent_values) == ({"rate": 0.1, "width": 2}, {"rate": 1.0, "width": 2})
    assert event.values == {name: pair[1].config[name] for name in SPACE}
    assert (event.score_before, event.parent_score, event.score_after) == (0.2, 0.9, 0.95)
    assert 0 < event.latency_s < 10


def test_the_clone_outlives_its_donors_checkpoint(pair):
    """B49."""
    shutil.rmtree(pair[0].checkpoint.path)
    own = pair[1].latest_checkpoint_result.checkpoint.path
    assert Path(own).parent == Path(pair[1].storage.trial_fs_path)
    assert Path(own, "weights").read_text() == "0@3"


def test_the_clones_own_newer_checkpoint_is_not_what_it_goes_on_from(tmp_path):
    """B48."""
    pair = Population(tmp_path, [1.0, 0.1])
    pair.report(0, 0.9, 3)
    pair.save(0, 0.9, 3)
    pair.save(1, 0.2, 5)
    pair.report(1, 0.2, 5)
    assert Path(pair[1].checkpoint.path, "weights").read_text() == "0@3"


def test_a_donor_without_a_checkpoint_is_skipped_and_counted(tmp_path):
    """B49."""
    pair = Population(tmp_path, [1.0, 0.1])
    assert pair.report_all([0.9, 0.2], 1) == [TrialScheduler.CONTINUE] * 2
    assert pair.scheduler.skipped == {"no_checkpoint": 1}
    assert pair.controller.tasks == pair.clones() == []


def test_a_donors_checkpoint_that_has_vanished_is_skipped_and_counted(tmp_path):
    """B49."""
    pair = Population(tmp_path, [1.0, 0.1])
    pair.report(0, 0.9, 1)
    pair.save(0, 0.9, 1)
    shutil.rmtree(pair[0].checkpoint.path)
    assert pair.report(1, 0.2, 1) == TrialScheduler.CONTINUE
    assert pair.scheduler.skipped == {"checkpoint_unreadable": 1}
    assert pair[1].config["rate"] == 0.1
    assert pair.clones() == []


def test_a_donors_old_checkpoint_that_is_no_better_is_not_copied(tmp_path):
    """Its save at the higher score is still under way."""
    pair = Population(tmp_path, [1.0, 0.1])
    pair.save(0, 0.1, 1)
    pair.report(0, 0.9, 2)
    pair.report(1, 0.2, 2)
    assert pair.scheduler.skipped == {"checkpoint_not_better": 1}
    assert pair.clones() == []


@pytest.mark.parametrize(
    ("fitnesses", "clones"),
    [([0.5], []), ([0.1, 0.9], [("m1", "m0")]), ([0.1, 0.9, 0.5], [("m1", "m0")]), ([0.1, 0.9, 0.5, 0.4], [("m1", "m0")])],
)
def test_small_populations_copy_the_best_into_the_worst(tmp_path, fitnesses, clones):
    population = Population(tmp_path, [1.0] * len(fitnesses))
    population.report_all(fitnesses, 1)
    for slot, fitness in enumerate(fitnesses):
        population.save(slot, fitness, 1)
    population.report_all(fitnesses, 2)
    assert population.clones() == clones


def test_who_has_collapsed_is_replaced_although_another_member_has_no_result_yet(tmp_path):
    """Below half of what two others had at their first result: whoever comes later, it is among the lowest."""
    population = Population(tmp_path, [1.0] * 4)
    for slot, fitness in enumerate([0.9, 0.8]):
        population.report(slot, fitness, 1)
        population.save(slot, fitness, 1)
    assert population.report(2, 0.1, 1) == TrialScheduler.NOOP
    assert population.clones() == [("m0", "m2")]


def test_nobody_is_replaced_before_every_running_member_has_a_result(tmp_path):
    population = Population(tmp_path, [1.0] * 4)
    population[3].set_status(Trial.PENDING)
    population.save(0, 0.9, 1)
    for slot, fitness in enumerate([0.9, 0.2]):
        assert population.report(slot, fitness, 1) == TrialScheduler.CONTINUE
    assert population.scheduler.skipped == {"members_without_result": 1}
    population.report(2, 0.1, 1)
    assert population.clones() == [("m0", "m2")]


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_member_that_diverged_is_replaced_and_never_copied(tmp_path, broken):
    """B47."""
    population = Population(tmp_path, [1.0] * 4)
    fitnesses = [1.0, broken, 3.0, 2.0]
    for slot, fitness in enumerate(fitnesses):
        population.save(slot, fitness, 1)
    population.report_all(fitnesses, 1)
    population.report_all(fitnesses, 2)
    assert population.clones() == [("m2", "m1")]


def test_a_member_that_diverged_is_replaced_though_its_clock_stands_still(tmp_path):
    """B47: one that takes no step any more would never reach the end of its interval."""
    population = Population(tmp_path, [1.0, 0.1], perturbation_interval=4)
    population.save(0, 0.9, 4)
    population.report_all([0.9, 0.5], 4)
    assert population.clones() == [("m0", "m1")]
    population.report(1, 0.6, 5)
    population.report(1, math.nan, 6)
    assert population.clones() == [("m0", "m1"), ("m0", "m1")]


def test_a_member_that_takes_no_step_any_more_is_replaced_before_its_interval_is_over(tmp_path):
    """B47: nothing to learn from, with a score that is finite."""
    population = Population(tmp_path, [1.0, 0.1], perturbation_interval=3)
    population.report_all([0.9, 0.0], 3)
    population.save(0, 0.9, 3)
    population.report(1, 0.0, 4)
    assert population.clones() == []
    assert population.report(1, 0.0, 4) == TrialScheduler.NOOP
    assert population.clones() == [("m0", "m1")]


def test_a_member_that_has_collapsed_is_replaced_before_its_interval_is_over(tmp_path):
    """B47: to a score that is finite, below half of its own best, or of what the others had at first."""
    population = Population(tmp_path, [1.0] * 4, perturbation_interval=3)
    population.report_all([0.9, 0.6, 0.5, 0.5], 3)
    population.save(0, 0.9, 3)
    population.report(1, 0.4, 4)
    assert population.clones() == []
    population.report(1, 0.2, 5)
    assert population.clones() == [("m0", "m1")]


def test_a_clone_that_is_back_at_the_step_it_had_reached_by_itself_has_not_stood_still(pair):
    """m1 was at 5, became a clone at 3, and trains to 5 again."""
    answer(pair.controller.tasks[0], pair[1])
    pair.scheduler._perturbation_interval = 4
    assert pair.report(1, 0.6, 5) == TrialScheduler.CONTINUE
    assert len(pair.clones()) == 1


def test_a_score_that_is_only_repeated_at_the_end_is_nobodys_first_as_a_clone(pair):
    """A run that ends before the clone's first evaluation says of it what its donor had scored."""
    last = {"fitness": 0.9, "training_iteration": 3, "cut_short": True}
    pair.scheduler.on_trial_complete(pair.controller, pair[1], last)
    [event] = pair.scheduler.lineage.clones.values()
    assert event.score_after is None
    assert pair.scheduler._trial_state[pair[1]].last_score == 0.2


def test_fitness_may_be_minimised(tmp_path):
    pair = Population(tmp_path, [1.0, 0.1], mode="min")
    pair.save(0, 0.2, 1)
    pair.report_all([0.2, 0.9], 1)
    [event] = pair.scheduler.lineage.clones.values()
    assert (event.parent, event.score_before, event.parent_score) == ("m0", 0.9, 0.2)


def test_an_old_checkpoint_is_no_better_in_the_sense_of_the_mode(tmp_path):
    pair = Population(tmp_path, [1.0, 0.1], mode="min")
    pair.save(0, 0.95, 1)
    pair.report_all([0.2, 0.9], 2)
    assert pair.scheduler.skipped == {"checkpoint_not_better": 1}


def test_members_of_the_upper_quantile_keep_a_fresh_snapshot_and_the_others_do_not(tmp_path):
    population = Population(tmp_path, [1.0] * 4)
    population.report_all([0.1, 0.2, 0.3, 0.9], 1)
    population.controller.saved.clear()
    population.report_all([0.1, 0.2, 0.3, 0.9], 2)
    assert population.controller.saved == [population[3]]


def test_a_result_that_tune_saves_by_itself_is_not_saved_twice(tmp_path):
    pair = Population(tmp_path, [1.0, 0.1])
    pair[0].run_metadata.checkpoint_manager._checkpoint_config = tune.CheckpointConfig(checkpoint_frequency=2)
    pair.report(1, 0.1, 1)
    pair.report(0, 0.9, 2)
    assert pair.controller.saved == []
    pair.report(0, 0.9, 3)
    assert pair.controller.saved == [pair[0]]


def test_a_healthy_member_goes_on_while_another_is_starting(tmp_path):
    population = Population(tmp_path, [1.0] * 3)
    population[2].set_status(Trial.PENDING)
    assert population.report(0, 0.9, 1) == TrialScheduler.CONTINUE
    assert population.controller.paused == []


def test_members_are_judged_once_in_an_interval_and_not_before_the_burn_in(tmp_path):
    pair = Population(tmp_path, [1.0, 0.1], perturbation_interval=4, burn_in_period=6)
    for step in range(1, 12):
        pair.report(0, 0.9, step)
    assert len(pair.controller.saved) == 0
    pair.report(1, 0.1, 6)
    for step in range(12, 21):
        pair.report(0, 0.9, step)
    assert len(pair.controller.saved) == 2
    assert pair.scheduler.skipped == {"no_checkpoint": 1}


def test_a_clones_clock_is_its_checkpoints(pair):
    pair.scheduler._perturbation_interval = 4
    answer(pair.controller.tasks[0], pair[1])
    for step in (4, 5, 6):
        pair.report(1, 0.6, step)
    assert len(pair.clones()) == 1
    pair.report(1, 0.6, 7)
    assert len(pair.clones()) == 2


def test_a_member_that_starts_again_after_a_crash_keeps_its_clock_and_its_clone(pair):
    """A crash during the exploit too: the trial holds its new config and the adopted checkpoint."""
    before = dict(pair[1].config)
    pair.scheduler._trial_state[pair[1]].last_perturbation_time = 7
    pair.scheduler.on_trial_error(pair.controller, pair[1])
    pair.scheduler.on_trial_add(pair.controller, pair[1])
    assert pair[1].config == before
    assert pair[1].checkpoint.path.endswith("adopted_000000")
    assert pair.scheduler._trial_state[pair[1]].last_perturbation_time == 3
    assert pair.clones() == [("m0", "m1")]


def test_a_member_that_starts_again_never_saves_under_a_name_that_exists(pair):
    """B49."""
    pair.scheduler.on_trial_add(pair.controller, pair[0])
    assert pair[0].storage.current_checkpoint_index == 3


def test_a_restored_run_goes_on_with_clocks_draws_and_lineage(pair, tmp_path):
    """B52."""
    pair.scheduler._trial_state[pair[0]].last_perturbation_time = 2
    state, draws = pair.scheduler.state_dict(), pair.scheduler._search._rng.random(3).tolist()
    again = InPlacePBT(SPACE, metric="fitness", mode="max", seed=1)
    SchedulerState(again).set_state(json.loads(json.dumps(state)))
    resumed = Population.__new__(Population)
    resumed.scheduler, resumed.controller = again, Controller()
    for trial in pair.controller.trials:
        again.on_trial_add(resumed.controller, trial)
    assert again._search._rng.random(3).tolist() == draws
    assert [again._trial_state[trial].last_perturbation_time for trial in pair.controller.trials] == [2, 3]
    assert {member: one.score for member, one in again._standings().items()} == {"m0": 0.9, "m1": 0.2}
    assert again.lineage.clones == pair.scheduler.lineage.clones


def test_without_saved_state_a_restored_member_is_not_judged_at_its_first_result(tmp_path):
    """B52."""
    pair = Population(tmp_path, [1.0, 0.1])
    pair.save(0, 0.9, 8)
    again = InPlacePBT(SPACE, metric="fitness", mode="max", perturbation_interval=4)
    again.on_trial_add(Controller(), pair[0])
    assert again._trial_state[pair[0]].last_perturbation_time == 8


def test_what_a_former_process_had_decided_for_its_saves_is_forgotten_and_nothing_later(tmp_path):
    """B50. Tune restores such decisions, and would obey them at the first save."""
    controller = Controller()
    controller._cached_trial_decisions["m0"] = TrialScheduler.NOOP
    controller._queued_trial_decisions["m1"] = TrialScheduler.STOP
    population = Population(tmp_path, [1.0, 0.1], controller=controller)
    assert (controller._cached_trial_decisions, controller._queued_trial_decisions) == ({}, {})
    controller._cached_trial_decisions["m0"] = TrialScheduler.CONTINUE
    population.scheduler.on_trial_add(controller, population[0])
    assert controller._cached_trial_decisions == {"m0": TrialScheduler.CONTINUE}


def test_a_clone_that_the_restored_state_does_not_hold_is_undone(pair):
    """B52. The driver died after the decision and before the next snapshot of the experiment."""
    pair[1].config.update(rate=0.1, width=2)
    again = InPlacePBT(SPACE, metric="fitness", mode="max")
    again.on_trial_add(Controller(), pair[1])
    assert again.lineage.clones == {}
    assert again.lineage.next_number == 1


def test_a_searched_name_that_the_config_does_not_set_is_refused(tmp_path):
    """B82."""
    scheduler = InPlacePBT({"raet": [1, 2]}, metric="fitness", mode="max")
    with pytest.raises(ConfigError, match=r"'raet'\. Did you mean 'rate'"):
        Population(tmp_path, [1.0], scheduler=scheduler)


def test_a_trainable_without_the_contract_becomes_a_clone_by_restart_and_a_warning_says_so(tmp_path, caplog):
    pair = Population(tmp_path, [1.0, 0.1], trainable="restarting")
    pair.report(0, 0.9, 1)
    pair.save(0, 0.9, 1)
    assert pair.report(1, 0.1, 1) == TrialScheduler.NOOP
    assert pair.controller.paused == [pair[1]]
    assert pair.controller.tasks == []
    assert Path(pair[1].checkpoint.path, "weights").read_text() == "0@1"
    assert pair[1].config["slot"] == 1
    assert pair.clones() == [("m0", "m1")]
    assert sum("restarting is no InPlaceTrainable" in message for message in caplog.messages) == 1


def test_a_run_whose_state_nobody_keeps_gets_a_warning(tmp_path, caplog):
    Population(tmp_path, [1.0, 0.1])
    assert sum("SchedulerState(scheduler)" in message for message in caplog.messages) == 1


def test_the_run_leaves_its_lineage_and_the_schedule_of_the_best_member(pair, tmp_path):
    """B54."""
    answer(pair.controller.tasks[0], pair[1])
    pair.scheduler.on_trial_complete(pair.controller, pair[1], {"fitness": 0.97, "training_iteration": 4})
    pair[1].set_status(Trial.TERMINATED)
    pair.scheduler.write_results()
    schedule = json.loads((tmp_path / "run" / "schedule.json").read_text())
    assert (schedule["winner"], schedule["score"], schedule["step_unit"]) == ("m1", 0.97, "training_iteration")
    assert [(segment["step"], segment["member"]) for segment in schedule["segments"]] == [(0, "m0"), (3, "m1")]
    lineage = json.loads((tmp_path / "run" / "lineage.json").read_text())
    assert [clone["score_after"] for clone in lineage["clones"]] == [0.97]


def test_strategies_are_handed_in(tmp_path):
    pair = Population(tmp_path, [1.0, 0.1], selection=Truncation(0.0), explore=Perturbation(factor=2.0))
    pair.save(0, 0.9, 1)
    pair.report_all([0.9, 0.1], 1)
    assert pair.clones() == []
    assert pair.controller.saved == []


def judged(population, slot, fitness, step, **metrics):
    result = {"fitness": fitness, "training_iteration": step, **metrics}
    return population.scheduler.on_trial_result(population.controller, population[slot], result)


def test_a_member_is_compared_with_what_another_had_reached_at_its_step(tmp_path):
    """m0 has 0.9 by now, and had 0.3 at step 1, where m1 has 0.4; at step 3 m1 has 0.5, and m0 had 0.9."""
    pair = Population(tmp_path, [1.0, 0.1])
    for step, fitness in ((1, 0.3), (2, 0.6), (3, 0.9)):
        pair.report(0, fitness, step)
    pair.save(0, 0.9, 3)
    pair.report(1, 0.4, 1)
    assert pair.clones() == []
    pair.report(1, 0.5, 3)
    [event] = pair.scheduler.lineage.clones.values()
    assert (event.parent_step, event.parent_score, event.score_before, event.certainty) == (3, 0.9, 0.5, 1.0)


def test_a_clone_has_its_parents_past_and_is_compared_by_it(tmp_path):
    """m1 takes over step 2 of m0. At step 2 it counts with 0.6, and m2, which has 0.5 there, is the lowest."""
    population = Population(tmp_path, [1.0, 0.1, 0.1])
    population.report(2, 0.5, 1)
    population.report(0, 0.6, 2)
    population.save(0, 0.6, 2)
    population.report(1, 0.1, 1)
    answer(population.controller.tasks[0], population[1])
    population.report(1, 0.7, 3)
    population.report(2, 0.5, 2)
    assert [(event.parent, event.child) for event in population.scheduler.lineage.clones.values()] == [("m0", "m1"), ("m0", "m2")]


def test_a_clone_without_a_result_of_its_own_still_counts_with_its_old_score(tmp_path):
    """Otherwise the next member would be the lowest, and an interval would replace more than the quantile."""
    population = Population(tmp_path, [1.0] * 4)
    population.report_all([0.9, 0.5, 0.4, 0.1], 1)
    population.save(0, 0.9, 1)
    population.report(3, 0.1, 2)
    assert population.clones() == [("m0", "m3")]
    population.report(2, 0.4, 2)
    assert population.clones() == [("m0", "m3")]


@pytest.mark.parametrize(("error", "clones"), [(0.01, [("m0", "m1")]), (0.2, [])])
def test_a_difference_within_the_errors_replaces_nobody_who_is_to_be_sure(tmp_path, error, clones):
    """0.1 is 7 errors of the difference, or a third of one."""
    pair = Population(tmp_path, [1.0, 0.1], error_metric="fitness_se", selection=Truncation(confidence=0.9))
    judged(pair, 0, 0.6, 1, fitness_se=error)
    pair.save(0, 0.6, 1)
    judged(pair, 1, 0.5, 1, fitness_se=error)
    assert pair.clones() == clones


def test_the_lineage_says_how_sure_it_was_that_the_parent_was_better(tmp_path):
    pair = Population(tmp_path, [1.0, 0.1], error_metric="fitness_se")
    judged(pair, 0, 0.6, 1, fitness_se=0.03)
    pair.save(0, 0.6, 1)
    judged(pair, 1, 0.5, 1, fitness_se=0.04)
    [event] = pair.scheduler.lineage.clones.values()
    # A spread of 0.00375 beyond the noise leaves 0.0754 of the 0.1, 1.754 errors of 0.0430.
    assert event.certainty == pytest.approx(0.96025, abs=1e-5)
    assert Lineage(pair.scheduler._folder / JOURNAL).clones[0].certainty == event.certainty


STABILITY = StabilityBudget(rate="rate", window="width", lag="lag")


def test_a_clone_over_what_was_stable_is_scaled_back_and_the_lineage_says_what_was_proposed(tmp_path):
    """Stable at 1 * (1 + 1), collapsed at 8 * (1 + 1): the limit is sqrt(2 * 16). A step up from 4 is 5, or 10 with the lag."""
    up = SimpleNamespace()

    def explore(values, space, rng):
        up.proposed = {**values, "rate": 5.0}
        return up.proposed

    population = Population(tmp_path, [1.0, 8.0, 1.0], stability=STABILITY, explore=explore)
    judged(population, 0, 0.9, 1, lag=1.0)
    population.save(0, 0.9, 1)
    judged(population, 2, 0.8, 1, lag=1.0)
    judged(population, 1, math.nan, 1, lag=1.0)
    [event] = population.scheduler.lineage.clones.values()
    assert event.values == {"rate": pytest.approx(math.sqrt(2 * 16) / 2), "width": 2}
    assert event.proposed == {"rate": 5.0}
    assert population[1].config["rate"] == event.values["rate"]


def cloned_by(tmp_path, explore):
    pair = Population(tmp_path, [1.0, 0.1], explore=explore)
    pair.report(0, 0.9, 1)
    pair.save(0, 0.9, 1)
    pair.report(1, 0.2, 1)
    [event] = pair.scheduler.lineage.clones.values()
    return event


def test_what_is_explored_outside_a_range_is_brought_into_it_and_the_lineage_says_so(tmp_path):
    event = cloned_by(tmp_path, lambda values, space, rng: {"rate": 1e9, "width": 7})
    assert (event.values, event.proposed) == ({"rate": 100.0, "width": 8}, {"rate": 1e9, "width": 7})


def test_a_value_that_is_not_explored_is_the_donors(tmp_path):
    event = cloned_by(tmp_path, lambda values, space, rng: {"rate": 2.0})
    assert (event.values, event.proposed) == ({"rate": 2.0, "width": 2}, {})


def test_a_value_that_is_explored_and_not_searched_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"'rte'\. Did you mean 'rate'"):
        cloned_by(tmp_path, lambda values, space, rng: {"rte": 2.0})


def test_without_a_collapse_nothing_is_scaled_back(tmp_path):
    pair = Population(tmp_path, [1.0, 0.1], stability=STABILITY, explore=lambda values, space, rng: {**values, "rate": 50.0})
    judged(pair, 0, 0.9, 1, lag=1.0)
    pair.save(0, 0.9, 1)
    judged(pair, 1, 0.6, 1, lag=1.0)
    [event] = pair.scheduler.lineage.clones.values()
    assert (event.values["rate"], event.proposed) == (50.0, {})


def test_a_resumed_scheduler_knows_what_members_had_reached_and_what_was_stable(tmp_path):
    """B53."""
    first = Population(tmp_path, [1.0, 8.0], stability=STABILITY)
    judged(first, 0, 0.3, 1, lag=1.0)
    judged(first, 0, 0.9, 2, lag=1.0)
    judged(first, 1, math.nan, 1, lag=1.0)
    again = InPlacePBT(SPACE, metric="fitness", mode="max", stability=STABILITY)
    again.load_state_dict(json.loads(json.dumps(first.scheduler.state_dict())))
    assert again._search.evidence._progress.at("m0", 1).score == 0.3
    assert again._search.evidence._stability.limit == first.scheduler._search.evidence._stability.limit == pytest.approx(math.sqrt(2 * 16))


def test_a_metric_that_no_result_has_is_told_once(tmp_path, caplog):
    pair = Population(tmp_path, [1.0, 0.1], error_metric="fitnes_se", stability=STABILITY)
    pair.report_all([0.9, 0.5], 1)
    pair.report_all([0.9, 0.5], 2)
    told = [record.message for record in caplog.records if "Results have no" in record.message]
    assert sorted(message.split("'")[1] for message in told) == ["fitnes_se", "lag"]


def test_a_journal_that_has_lost_a_clone_is_told(pair, caplog):
    """B53: the values of m1 are those of its clone, which a cut journal does not know."""
    journal = pair.scheduler._folder / JOURNAL
    journal.write_text("".join(line for line in journal.read_text().splitlines(True) if '"kind": "member"' in line))
    again = InPlacePBT(SPACE, metric="fitness", mode="max")
    for trial in pair.controller.trials:
        again.on_trial_add(pair.controller, trial)
    told = [record.message for record in caplog.records if "line of descent is not whole" in record.message]
    assert len(told) == 1
    assert "does not know how m1 came to its values" in told[0]


@pytest.mark.parametrize("fitness", [None, "high", [0.5]])
def test_a_metric_that_is_no_number_is_refused_by_name(tmp_path, fitness):
    with pytest.raises(ConfigError, match=r"^'fitness' of .* is .*, and no number"):
        Population(tmp_path, [1.0, 0.1]).report(0, fitness, 3)


# A population that waits for each other.


@pytest.fixture
def together(tmp_path):
    return Population(tmp_path, [1.0, 0.1, 0.2, 8.0], synchronous=True)


def end_of_saves(population, fitnesses, step):
    """Each member saves once, and nothing else is asked meanwhile."""
    assert population.controller.saved == population.controller.trials[: len(fitnesses)]
    population.controller.saved.clear()
    for slot, fitness in enumerate(fitnesses):
        population.save(slot, fitness, step)


def test_members_wait_for_the_last_one_and_are_judged_from_one_look(together):
    scores = [0.9, 0.2, 0.5, 0.1]
    for slot, score in enumerate(scores):
        together.scheduler.choose_trial_to_run(together.controller)
        assert together.controller.trained == together.controller.tasks == []
        assert together.report(slot, score, 3) == TrialScheduler.NOOP
    end_of_saves(together, scores, 3)
    together.scheduler.choose_trial_to_run(together.controller)
    assert together.clones() == [("m0", "m3")]
    assert together.controller.trained == [together[1], together[2], together[0]]
    answer(together.controller.tasks[0], together[3])
    assert together.controller.trained[3:] == [together[3]]


def test_nobody_is_judged_while_a_member_saves(together):
    together.report_all([0.9, 0.2, 0.5, 0.1], 3)
    end_of_saves(together, [0.9, 0.2, 0.5, 0.1], 3)
    together[2].temporary_state.saving_to = object()
    together.scheduler.choose_trial_to_run(together.controller)
    assert together.controller.trained == together.controller.tasks == []
    together[2].temporary_state.saving_to = None
    together.scheduler.choose_trial_to_run(together.controller)
    assert len(together.controller.trained) == 3


def test_a_member_that_has_ended_is_not_waited_for(together):
    for slot, score in enumerate([0.9, 0.2, 0.5]):
        together.report(slot, score, 3)
        together.save(slot, score, 3)
    together[3].set_status(Trial.ERROR)
    together.scheduler.choose_trial_to_run(together.controller)
    assert together.clones() == [("m0", "m1")]
    assert together.controller.trained == [together[2], together[0]]


def test_a_waiting_member_that_fails_and_starts_again_is_waited_for_once_more(together):
    """It trains now, and would be asked for a second step beside the first."""
    together.report_all([0.9, 0.2, 0.5], 3)
    for slot, score in enumerate([0.9, 0.2, 0.5]):
        together.save(slot, score, 3)
    together.scheduler.on_trial_add(together.controller, together[2])
    together.report(3, 0.1, 3)
    together.scheduler.choose_trial_to_run(together.controller)
    assert together.controller.trained == together.controller.tasks == []
    together.report(2, 0.5, 3)
    together.scheduler.choose_trial_to_run(together.controller)
    assert together.clones() == [("m0", "m3")]


def test_of_a_chain_each_copies_what_its_donor_had_before_it_was_replaced(tmp_path):
    """m0 copies m1 and m1 copies m2, at the same look."""

    class NextOne(Truncation):
        def donor_for(self, member, standings, interval, rng):
            return {"m0": "m1", "m1": "m2"}.get(member)

    chain = Population(tmp_path, [0.1, 0.2, 1.0], synchronous=True, selection=NextOne())
    chain.report_all([0.1, 0.4, 0.9], 3)
    for slot, score in enumerate([0.1, 0.4, 0.9]):
        chain.save(slot, score, 3)
    chain.scheduler.choose_trial_to_run(chain.controller)
    assert [(event.parent, event.child, event.parent_score) for event in chain.scheduler.lineage.clones.values()] == [
        ("m1", "m0", 0.4),
        ("m2", "m1", 0.9),
    ]


def test_a_member_that_cannot_be_replaced_now_goes_on(together):
    """Nobody has a checkpoint."""
    together.report_all([0.9, 0.2, 0.5, 0.1], 3)
    together.scheduler.choose_trial_to_run(together.controller)
    assert together.scheduler.skipped == {"no_checkpoint": 1}
    assert len(together.controller.trained) == 4
