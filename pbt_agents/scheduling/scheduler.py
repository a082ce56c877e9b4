"""Population-based training that exploits inside the living trial.

Owns clocks, snapshots and the order of a clone. Who copies whom is selection.py's, new values are mutation.py's, history
is lineage.py's, what Tune's controller has to do is controller.py's, and what happens in the trial's actor is in_place.py's.

Asynchronous: each member is judged at its own results, nothing waits for another one and no healthy trial is paused. A population that
is synchronous on request is judged as a whole, from one look at all members; they wait for it where they live.
"""

import copy
import logging
import math
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.result import TRAINING_ITERATION
from ray.tune.schedulers import PopulationBasedTraining, TrialScheduler

from pbt_agents.errors import ConfigError, unknown_name
from pbt_agents.scheduling.adoption import adopt, number_on
from pbt_agents.scheduling.controller import (
    callbacks_of,
    checkpoint_metrics,
    experiment_folder,
    forget_decisions,
    go_on,
    hand_over,
    train_on,
)
from pbt_agents.scheduling.evidence import Evidence
from pbt_agents.scheduling.in_place import CUT_SHORT, check_read_back
from pbt_agents.scheduling.lineage import CloneEvent, Lineage, open_lineage, write_lineage, write_schedule
from pbt_agents.scheduling.mutation import Explore, Perturbation
from pbt_agents.scheduling.search import Search
from pbt_agents.scheduling.selection import Selection, Standing, Truncation, certainty, comparable, ranking
from pbt_agents.scheduling.stability import StabilityBudget
from pbt_agents.scheduling.state import SchedulerState, Snapshots
from pbt_agents.search_space import ray_domain, search_space

logger = logging.getLogger(__name__)

JOURNAL, LINEAGE, SCHEDULE = "lineage.jsonl", "lineage.json", "schedule.json"
"""Files in the experiment's folder."""
_CLOCKS = ("last_score", "last_perturbation_time", "last_train_time")


class InPlacePBT(PopulationBasedTraining):
    """A Tune scheduler for any Trainable with the contract of InPlaceTrainable; others become clones by restart, as Ray does it."""

    # Of a buffered batch of results, those after a clone would be another policy's.
    _supports_buffered_results = False

    def __init__(
        self,
        space: Mapping[str, Any],
        *,
        metric: str | None = None,
        mode: str | None = None,
        time_attr: str = TRAINING_ITERATION,
        perturbation_interval: float = 1,
        burn_in_period: float = 0,
        error_metric: str | None = None,
        selection: Selection | None = None,
        explore: Explore | None = None,
        stability: StabilityBudget | None = None,
        synchronous: bool = False,
        seed: int = 0,
    ) -> None:
        """`time_attr` must count along the line of descent, as `training_iteration` does: a clone goes on from its donor's.

        `error_metric` has the standard error of `metric`, for a selection that asks for confidence; without it scores are exact.
        `synchronous` lets members wait at the end of each interval for all others that run; a clone that restarts is not waited for.
        """
        self.space = search_space(space)
        super().__init__(
            time_attr=time_attr,
            metric=metric,
            mode=mode,
            perturbation_interval=perturbation_interval,
            burn_in_period=burn_in_period,
            hyperparam_mutations={name: ray_domain(domain) for name, domain in self.space.items()},
            log_config=False,
        )
        self._search = Search(self.space, selection or Truncation(), explore or Perturbation(), Evidence(error_metric, stability), seed)
        self._synchronous = synchronous
        self._waiting: list[Trial] = []
        """Members whose interval is over, for the others."""
        self._restored: dict[str, dict[str, Any]] = {}
        self._lineage: Lineage | None = None
        self._folder = Path()
        self._snapshots = Snapshots()
        self._steps: dict[str, Any] = {}
        """Of each member, where its last result or its clone left it."""
        self._in_place: dict[str, bool] = {}
        """Which Trainables, by Tune's name for them, offer the contract."""
        self.skipped: Counter[str] = Counter()
        """Clones that were due and did not happen, by reason."""

    @property
    def lineage(self) -> Lineage:
        assert self._lineage is not None, "the lineage begins with the first trial"
        return self._lineage

    # What Tune calls.

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """A new trial, one that starts again after a crash, or one of a restored experiment."""
        for name in self.space:
            if name not in trial.config:
                raise unknown_name("searched setting of this Trainable", name, trial.config)
        known = self._trial_state.get(trial)
        with warnings.catch_warnings():
            # A clone owns its checkpoint, so its donor may keep as few as it likes.
            warnings.filterwarnings("ignore", message=".*num_to_keep.*")
            super().on_trial_add(tune_controller, trial)
        if known:
            self._trial_state[trial] = known
        else:
            self._meet(tune_controller, trial)
        number_on(trial)
        self._waiting = [other for other in self._waiting if other is not trial]  # it was, when it failed
        # Training goes on from the checkpoint, and so must the clock.
        state, step = self._trial_state[trial], checkpoint_metrics(trial).get(self._time_attr, 0)
        state.last_perturbation_time = min(state.last_perturbation_time, step)
        state.last_train_time = min(state.last_train_time, step)

    def on_trial_result(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> str:
        self._note_score(trial, result)
        step, former = result.get(self._time_attr), self._steps.get(trial.trial_id)
        self._steps[trial.trial_id] = step
        if step == former or (self._is_scored(result) and self._search.evidence.has_collapsed(trial.trial_id)):
            # Due at once: a member that collapsed, or finds nothing to learn from, may never take a step again.
            self._trial_state[trial].last_perturbation_time = -math.inf
        decision: str = super().on_trial_result(tune_controller, trial, result)
        if trial.is_restoring or trial in self._waiting:
            decision = TrialScheduler.NOOP
        elif decision == TrialScheduler.PAUSE and self._lives_on(trial):
            decision = TrialScheduler.CONTINUE
        return decision

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """The last result of a trial comes only here."""
        self._note_score(trial, result)
        if self._is_scored(result):
            self._trial_state[trial].last_score = self._metric_op * result[self._metric]

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Called between any two events, and so the moment for a snapshot, and to see whether all wait."""
        if self._lineage is not None:
            self._snapshots.take_if_due(tune_controller, self._folder)
        if self._waiting:
            self._judge_together(tune_controller)
        return super().choose_trial_to_run(tune_controller)

    def debug_string(self) -> str:
        return f"InPlacePBT: {self._num_perturbations} clones, skipped {dict(self.skipped)}"

    # What SchedulerState calls.

    def state_dict(self) -> dict[str, Any]:
        clocks = {trial.trial_id: {name: getattr(state, name) for name in _CLOCKS} for trial, state in self._trial_state.items()}
        return {"clocks": clocks, "skipped": dict(self.skipped), **self._search.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored = state["clocks"]
        self.skipped = Counter(state["skipped"])
        self._search.load_state_dict(state)

    def write_results(self) -> None:
        """`lineage.json`, and `schedule.json` of the member with the highest score."""
        if self._lineage is None:
            return
        write_lineage(self._lineage, self._folder / LINEAGE)
        last = self._standings(finished=True)
        if last:
            winner = ranking(last)[0]
            write_schedule(self._lineage, self._folder / SCHEDULE, winner, self._metric_op * last[winner].score, self._time_attr)

    # What PopulationBasedTraining calls when a member's interval is over.

    def _quantiles(self) -> tuple[list[Trial], list[Trial]]:
        """The upper one is who keeps a fresh snapshot. Who belongs to the lower one is asked for each member by itself."""
        donors = self._search.donors(self._standings())
        return [], [trial for trial in self._trial_state if trial.trial_id in donors]

    def _checkpoint_or_exploit(self, trial: Trial, tune_controller: Any, upper_quantile: list[Trial], lower_quantile: list[Trial]) -> None:
        if self._synchronous:
            self._waiting.append(trial)
        else:
            self._judge(tune_controller, trial, self._standings(self._steps[trial.trial_id]))
        if _stays(trial) and (self._synchronous or trial in upper_quantile) and not self._saves_anyway(trial):
            tune_controller._schedule_trial_save(trial)

    def _judge_together(self, tune_controller: Any) -> None:
        """Once no member trains, saves or becomes a clone. From the worst on, so that no donor has been replaced itself before."""
        running = [trial for trial in self._trial_state if trial.status == Trial.RUNNING]
        if any(trial not in self._waiting or trial.is_saving or trial.is_restoring for trial in running):
            return
        self._waiting = []
        standings = {trial: self._standings(self._steps[trial.trial_id]) for trial in running}
        order = ranking(self._standings())
        for trial in sorted(running, key=lambda trial: -order.index(trial.trial_id)):
            self._judge(tune_controller, trial, standings[trial])
            if _stays(trial):
                go_on(tune_controller, trial)

    def _judge(self, tune_controller: Any, trial: Trial, standings: Mapping[str, Standing]) -> None:
        chosen = self._search.donor_for(trial.trial_id, standings, int(self._steps[trial.trial_id] // self._perturbation_interval))
        if chosen is not None:
            donor = next(other for other in self._trial_state if other.trial_id == chosen)
            self._exploit(tune_controller, trial, donor)

    def _exploit(self, tune_controller: Any, trial: Trial, trial_to_clone: Trial) -> None:
        """The donor's latest complete checkpoint becomes the trial's own, then the actor takes it over, or a new one starts from it."""
        decided = time.perf_counter()
        reason = self._reason_to_wait(trial, trial_to_clone)
        if reason:
            self.skipped[reason] += 1
            return
        config, proposed = self._get_new_config(trial, trial_to_clone)
        source, name = trial_to_clone.latest_checkpoint_result, f"adopted_{self.lineage.next_number:06d}"
        try:
            adopted = adopt(source, trial, name, config)
        except OSError as error:
            self.skipped["checkpoint_unreadable"] += 1
            logger.warning("%s does not become a clone of %s now: %s", trial, trial_to_clone, error)
            return
        event = self._record(trial, trial_to_clone, config, proposed)
        trial.set_config(config)
        self._num_perturbations += 1
        if self._lives_on(trial):
            hand_over(tune_controller, trial, adopted, config, partial(self._exploited, tune_controller, event, decided))
        else:
            tune_controller.pause_trial(trial, should_checkpoint=False)

    def _get_new_config(self, trial: Trial, trial_to_clone: Trial) -> tuple[dict[str, Any], dict[str, Any]]:
        """The trial's own config with values explored from its donor's: what is not searched (slot, seed, names) stays its own.

        Beside it what was proposed otherwise.
        """
        kept, proposed = self._search.values_from(self._values(trial_to_clone.config))
        return {**copy.deepcopy(trial.config), **kept}, proposed

    # A clone.

    def _reason_to_wait(self, trial: Trial, donor: Trial) -> str | None:
        """Two early scores do not tell who is low among many, and three only who has collapsed. While a donor still saves, its last
        checkpoint may be a poor one."""
        scores = [state.last_score for other, state in self._trial_state.items() if other.status == Trial.RUNNING]
        surely_low = len(scores) - scores.count(None) > 2 and self._search.evidence.has_collapsed(trial.trial_id)
        if None in scores and not surely_low:
            return "members_without_result"
        saved = donor.latest_checkpoint_result
        if saved is None or saved.checkpoint is None:
            return "no_checkpoint"
        score = self._metric_op * checkpoint_metrics(donor).get(self._metric, math.nan)
        return None if comparable(score) > comparable(self._trial_state[trial].last_score) else "checkpoint_not_better"

    def _record(self, trial: Trial, donor: Trial, config: Mapping[str, Any], proposed: Mapping[str, Any]) -> CloneEvent:
        """Note the clone. The trial's clock is the checkpoint's from now on; its score stays the old one until its next result."""
        state, saved = self._trial_state[trial], checkpoint_metrics(donor)
        standings = self._standings(self._steps[trial.trial_id])
        event = CloneEvent(
            number=self.lineage.next_number,
            time_s=time.time(),
            parent=donor.trial_id,
            child=trial.trial_id,
            checkpoint=donor.latest_checkpoint_result.checkpoint.path,
            parent_step=saved[self._time_attr],
            child_step=state.last_train_time,
            values_before=self._values(trial.config),
            parent_values=self._values(donor.config),
            values=self._values(config),
            score_before=self._metric_op * state.last_score,
            parent_score=saved[self._metric],
            certainty=certainty(donor.trial_id, trial.trial_id, standings),
            proposed=proposed,
        )
        self.lineage.add_clone(event)
        self._search.evidence.clone(trial.trial_id, donor.trial_id, event.parent_step)
        state.last_perturbation_time = state.last_train_time = self._steps[trial.trial_id] = event.parent_step
        return event

    def _exploited(self, tune_controller: Any, event: CloneEvent, decided: float, trial: Trial, in_use: Mapping[str, Any]) -> None:
        check_read_back(trial.trial_id, event.values, in_use)
        self.lineage.applied(event.number, time.perf_counter() - decided)
        train_on(tune_controller, trial)
        self._snapshots.due = True

    # A member.

    def _meet(self, tune_controller: Any, trial: Trial) -> None:
        """The first time in this process: open the run's lineage, go on with what a former process knew of this member."""
        member, values = trial.trial_id, self._values(trial.config)
        if self._lineage is None:
            forget_decisions(tune_controller)
            self._folder = experiment_folder(trial)
            self._lineage = open_lineage(self._folder / JOURNAL, member)
            if not any(isinstance(callback, SchedulerState) and callback.scheduler is self for callback in callbacks_of(tune_controller)):
                logger.warning(
                    "Without SchedulerState(scheduler) in RunConfig(callbacks=[...]) a restored run starts new clocks and draws."
                )
        if member in self.lineage.members:
            if not self.lineage.undo_unless(member, values):
                logger.warning("%s does not know how %s came to its values %s: its line of descent is not whole.", JOURNAL, member, values)
        else:
            self.lineage.add_member(member, values)
        step = checkpoint_metrics(trial).get(self._time_attr, 0)
        clocks = self._restored.get(member, {"last_perturbation_time": step, "last_train_time": step})
        for name, value in clocks.items():
            setattr(self._trial_state[trial], name, value)

    def _lives_on(self, trial: Trial) -> bool:
        """Whether the trial's actor can become a clone."""
        name = trial.trainable_name
        if name not in self._in_place:
            self._in_place[name] = hasattr(trial.get_trainable_cls(), "exploit_in_place")
            if not self._in_place[name]:
                logger.warning(
                    "%s is no InPlaceTrainable: each clone restarts its process, and others may be paused, as Ray does it.", name
                )
        return self._in_place[name]

    def _standings(self, step: float = math.inf, finished: bool = False) -> dict[str, Standing]:
        """Members that have been judged, as they were at this step."""
        known = {trial: state.last_score for trial, state in self._trial_state.items() if state.last_score is not None}
        last = {trial.trial_id: score for trial, score in known.items() if finished or not trial.is_finished()}
        places = {member: place for place, member in enumerate(self.lineage.members)}
        fresh = {member for member in last if (clone := self.lineage.latest(member)) and clone.score_after is None}
        return self._search.evidence.standings(last, places, fresh, step)

    def _note_score(self, trial: Trial, result: Mapping[str, Any]) -> None:
        if self._is_scored(result):
            measured = result[self._metric]
            if not hasattr(measured, "__float__"):
                raise ConfigError(f"'{self._metric}' of {trial} is {measured!r}, and no number. Report a number, NaN where there is none.")
            step, score = result.get(self._time_attr, 0), self._metric_op * measured
            self.lineage.scored(trial.trial_id, result[self._metric])
            self._search.evidence.note(trial.trial_id, step, score, self._values(trial.config), result)

    def _is_scored(self, result: Mapping[str, Any]) -> bool:
        return self._metric in result and not result.get(CUT_SHORT)

    def _values(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {name: config[name] for name in self.space}

    def _saves_anyway(self, trial: Trial) -> bool:
        """Whether Tune is about to save this result by itself."""
        iteration = self._trial_state[trial].last_result[TRAINING_ITERATION]
        return bool(trial.checkpoint_freq) and iteration % trial.checkpoint_freq == 0


def _stays(trial: Trial) -> bool:
    """Whether it has not just become a clone."""
    return trial.status == Trial.RUNNING and not trial.is_restoring
