"""Strategies of a search on simulated agents, all on the same number of optimizer steps.

A population takes the scheduler's own decisions.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import optuna
from _dynamics import Dynamics, Learner
from numpy.random import Generator, default_rng
from optuna.trial import TrialState

from pbt_agents.scheduling.evidence import Evidence
from pbt_agents.scheduling.mutation import Explore, Perturbation
from pbt_agents.scheduling.search import Search
from pbt_agents.scheduling.selection import Selection, Truncation
from pbt_agents.scheduling.stability import StabilityBudget
from pbt_agents.search_space import Range, initial_values

INTERVAL = 10
"""Steps between two evaluations."""
_LAG, _ERROR = "trainer/lag_steps_mean", "fitness_se"
_LEARNERS, _DURATIONS = 1, 2
"""Streams of chance beside those of first values and of the search, which have the seed itself."""
Values = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """What all strategies are given."""

    dynamics: Dynamics
    space: Mapping[str, Range]
    start: Mapping[str, Range]
    """Where first values lie: the space, or a part of it."""
    steps: int
    """Of all agents together."""


@dataclass(frozen=True)
class Found:
    """How one strategy ended with one seed."""

    score: float
    """The true one, of the agent that was chosen by its last evaluations."""
    steps_to: Mapping[float, float]
    """Threshold -> steps of all agents until the first of them had a score above it; infinite where none had."""
    collapsed: float
    """Collapses for each agent."""
    agents: int
    clones: int


class Ledger:
    """Counts the steps of all agents, and notes when one of them first passed a threshold."""

    def __init__(self, task: Task, thresholds: Sequence[float]) -> None:
        self._task, self.spent = task, 0
        self.steps_to = dict.fromkeys(thresholds, math.inf)

    @property
    def left(self) -> int:
        return self._task.steps - self.spent

    def train(self, learner: Learner, values: Values) -> None:
        """One interval."""
        learner.train(values, INTERVAL)
        self.spent += INTERVAL
        for threshold in self.steps_to:
            if learner.score > threshold:
                self.steps_to[threshold] = min(self.steps_to[threshold], self.spent)


Strategy = Callable[[Task, Ledger, int], Found]


def chosen(learners: Sequence[Learner], ledger: Ledger, clones: int = 0) -> Found:
    """All are scored once more on four times as many tasks, and the best is taken."""
    scores = [np.mean([learner.evaluate() for _ in range(4)]) for learner in learners]
    best = learners[int(np.argmax(scores))]
    collapses = sum(learner.collapses for learner in learners)
    return Found(best.score, ledger.steps_to, collapses / len(learners), len(learners), clones)


def one_agent(values: Values | None) -> Strategy:
    """All steps for one agent, with these values or with first ones."""

    def run(task: Task, ledger: Ledger, seed: int) -> Found:
        learner, used = Learner(task.dynamics, default_rng([seed, _LEARNERS])), values or initial_values(task.start, 1, seed)[0]
        while ledger.left > 0:
            ledger.train(learner, used)
        return chosen([learner], ledger)

    return run


def random_search(count: int) -> Strategy:
    """So many agents one after the other, each with first values of its own."""

    def run(task: Task, ledger: Ledger, seed: int) -> Found:
        rng, learners = default_rng([seed, _LEARNERS]), []
        for values in initial_values(task.start, count, seed):
            learner = Learner(task.dynamics, rng)
            for _ in range(task.steps // count // INTERVAL):
                ledger.train(learner, values)
            learners.append(learner)
        return chosen(learners, ledger)

    return run


def halving(task: Task, ledger: Ledger, seed: int) -> Found:
    """Optuna's TPE sampler proposes, successive halving (ASHA) ends what falls behind; no agent has more than a quarter of all steps."""
    rng, learners = default_rng([seed, _LEARNERS]), []
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=2, reduction_factor=3)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=4), pruner=pruner)
    while ledger.left > 0:
        trial, learner, pruned = study.ask(), Learner(task.dynamics, rng), False
        values = {name: domain.at(trial.suggest_float(name, 0, 1)) for name, domain in task.start.items()}
        learners.append(learner)
        for interval in range(1, task.steps // 4 // INTERVAL + 1):
            ledger.train(learner, values)
            trial.report(learner.evaluate(), interval)
            pruned = trial.should_prune()
            if ledger.left <= 0 or pruned:
                break
        study.tell(trial, state=TrialState.PRUNED) if pruned else study.tell(trial, learner.evaluate())
    return chosen(learners, ledger)


@dataclass(frozen=True)
class Population:
    """A population under the scheduler's own decisions. Nobody waits; members are not equally fast."""

    size: int = 4
    selection: Selection = field(default_factory=Truncation)
    explore: Explore = field(default_factory=Perturbation)
    stability: StabilityBudget | None = None
    same_step: bool = True
    """Members are compared at the same amount of training."""

    def __call__(self, task: Task, ledger: Ledger, seed: int) -> Found:
        rng, durations = default_rng([seed, _LEARNERS]), default_rng([seed, _DURATIONS])
        search = Search(task.space, self.selection, self.explore, Evidence(_ERROR, self.stability), seed)
        first = enumerate(initial_values(task.start, self.size, seed))
        members = [_Member(str(place), values, Learner(task.dynamics, rng)) for place, values in first]
        by_name, places = {member.name: member for member in members}, {member.name: place for place, member in enumerate(members)}
        due = [(_duration(durations), member.name) for member in members]
        heapq.heapify(due)
        clones = 0
        while ledger.left > 0:
            now, name = heapq.heappop(due)
            member = by_name[name]
            member.play(ledger, search)
            if all(other.last is not None for other in members):
                clones += self._judge(member, by_name, places, search)
            heapq.heappush(due, (now + _duration(durations), name))
        return chosen([member.learner for member in members], ledger, clones)

    def _judge(self, member: "_Member", by_name: Mapping[str, "_Member"], places: Mapping[str, int], search: Search) -> bool:
        last = {name: other.last for name, other in by_name.items() if other.last is not None}
        fresh = [name for name, other in by_name.items() if other.fresh]
        standings = search.evidence.standings(last, places, fresh, member.step if self.same_step else math.inf)
        donor = search.donor_for(member.name, standings, member.step // INTERVAL)
        if donor is None or by_name[donor].saved_score <= standings[member.name].score:
            return False
        member.become(by_name[donor], search)
        return True


class _Member:
    def __init__(self, name: str, values: Values, learner: Learner) -> None:
        self.name, self.values, self.learner = name, values, learner
        self.step, self.fresh = 0, False
        self.last: float | None = None
        self.saved_step, self.saved_score, self.saved = 0, math.nan, learner.score

    def play(self, ledger: Ledger, search: Search) -> None:
        """One interval, and its result."""
        ledger.train(self.learner, self.values)
        self.step += INTERVAL
        self.last, self.fresh = self.learner.evaluate(), False
        self.saved_step, self.saved_score, self.saved = self.step, self.last, self.learner.score
        result = {_LAG: self.learner.lag(self.values), _ERROR: self.learner.noise}
        search.evidence.note(self.name, self.step, self.last, self.values, result)

    def become(self, donor: "_Member", search: Search) -> None:
        """A clone from the donor's last checkpoint."""
        self.values, _ = search.values_from(donor.values)
        self.learner.score, self.step, self.fresh = donor.saved, donor.saved_step, True
        self.saved_step, self.saved_score, self.saved = donor.saved_step, donor.saved_score, donor.saved
        search.evidence.clone(self.name, donor.name, donor.saved_step)


def _duration(rng: Generator) -> float:
    """Of an interval: members are not equally fast."""
    return float(rng.uniform(0.8, 1.25))
