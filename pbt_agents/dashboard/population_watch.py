"""What Tune and the members say of a training, told as news.

Owns which news there are and their figures: results with the values that ran, clones, failures, progress, and what is awaited.
"""

import json
import math
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray.tune import Callback

from pbt_agents.beacon import beacon_file, read_beacon
from pbt_agents.dashboard.cost import Measured, estimate
from pbt_agents.dashboard.events import Cloned, Estimate, MemberFailure, MemberRemark, MemberResult, Note, Progress
from pbt_agents.dashboard.pace import Pace, target_updates, time_left, updates_left_s
from pbt_agents.dashboard.reporter import Reporter
from pbt_agents.dashboard.waiting import awaited
from pbt_agents.population import PopulationSpec
from pbt_agents.resources import Usage, disk_bytes
from pbt_agents.scheduling.in_place import CUT_SHORT
from pbt_agents.scheduling.lineage import CloneEvent, Lineage

STAGE = "training"
_PERIOD_S = 2.0
_CPU_WINDOW = 30
"""Looks at the CPU seconds that a rate is taken over."""


class PopulationWatch(Callback):
    """`name(trial id)` names a member; `lineage()` is asked once there are trials, and members are heard in the folder `beacons`."""

    def __init__(
        self,
        reporter: Reporter,
        spec: PopulationSpec,
        name: Callable[[str], str],
        lineage: Callable[[], Lineage],
        usage: Callable[[], Usage],
        beacons: Path,
        out: Path,
        gpus: int = 0,
        price_per_hour: float | None = None,
    ) -> None:
        self._out, self._gpus, self._price_per_hour = out, gpus, price_per_hour
        self.estimated = False
        """Whether it was told what all comes to."""
        self.reached = False
        """Whether a member has had the fitness at which the run is to end early."""
        self._reporter, self._spec, self._name, self._lineage, self._usage, self._beacons = reporter, spec, name, lineage, usage, beacons
        self._paces: dict[str, Pace] = {}
        self._ended: set[str] = set()
        self._tokens_per_s: dict[str, float] = {}
        self._tokens: dict[str, float] = {}
        """That each member's process had sampled at its last result."""
        self._told: set[int] | None = None
        """Numbers of the clones that need not be told any more."""
        self._cpu: deque[Usage] = deque(maxlen=_CPU_WINDOW)
        self._heard: set[str] = set()
        self._looked = -math.inf
        self._repeatable = True
        """The environment, as far as audits have shown."""

    # What Tune calls.

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        if self._told is None:
            self._told = {event.number for event in self._lineage().clones.values() if _applied(event)}
        name = self._name(trial.trial_id)
        self._tokens.pop(name, None)  # of a former process
        if name not in self._paces:
            former = former_results(Path(trial.storage.trial_fs_path) / "result.json")
            self._paces[name] = former_pace(former)
            for result in former:
                self._tell_reached(name, result.get("fitness", math.nan))

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        if result.get(CUT_SHORT):
            return
        name = self._name(trial.trial_id)
        seconds = self._paces[name].result(time.monotonic(), result["updates"], result["time_this_iter_s"])
        self._tell_clones()
        self._reporter.tell(self._result(name, trial.trial_id, result, seconds))
        self._tell_audit(result.get("audit/not_reproducible", 0))
        self._tell_reached(name, result["fitness"])
        if remark := result.get("remark"):
            self._reporter.tell(MemberRemark(name, textwrap.shorten(remark, 240), bool(result.get("done"))))

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._reporter.tell(MemberFailure(self._name(trial.trial_id), why(trial), final=False))

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._ended.add(self._name(trial.trial_id))
        self._reporter.tell(MemberFailure(self._name(trial.trial_id), why(trial), final=True))

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._ended.add(self._name(trial.trial_id))

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Many times a second."""
        if time.monotonic() - self._looked >= _PERIOD_S:
            self._looked = time.monotonic()
            self._tell_clones()
            self._look()

    # What is told.

    def _result(self, name: str, trial_id: str, result: Mapping[str, Any], seconds: float) -> MemberResult:
        line, sampled = line_of_descent(self._lineage(), trial_id), result.get("rollout/action_tokens", math.nan)
        self._tokens_per_s[name] = (sampled - self._tokens.get(name, 0.0)) / seconds
        self._tokens[name] = sampled
        return MemberResult(
            member=name,
            generation=len(line),
            updates=result["updates"],
            score=result["fitness"],
            score_se=result.get("fitness_se", math.nan),
            learning_rate=result["learning_rate"],
            ratio_max=result.get("ratio_max"),
            window=result["window"],
            lag=result.get("trainer/lag_steps_mean", math.nan),
            tokens_per_s=self._tokens_per_s[name],
            parent=self._name(line[0].parent) if line else None,
        )

    def _tell_clones(self) -> None:
        """Those that were applied since."""
        if self._told is None:
            return
        for event in list(self._lineage().clones.values()):
            if event.number not in self._told and _applied(event):
                self._told.add(event.number)
                self._reporter.tell(
                    Cloned(
                        self._name(event.child),
                        self._name(event.parent),
                        event.score_before,
                        event.parent_score,
                        event.values_before,
                        event.values,
                        event.latency_s,
                    )
                )

    def _tell_audit(self, differing: float) -> None:
        """Once in a run: it is the environment's nature, and not a member's."""
        if differing and self._repeatable:
            self._repeatable = False
            self._reporter.tell(
                Note(
                    "the environment does not repeat itself: played again with the same seed and actions, it answered otherwise. "
                    "What is trained on cannot be audited then, and members are not scored on equal tasks."
                )
            )

    def _tell_reached(self, name: str, fitness: float) -> None:
        wanted = self._spec.budget.fitness
        if wanted is not None and fitness >= wanted and not self.reached:
            self.reached = True
            self._reporter.tell(Note(f"{name} has a score of {fitness:.3f}, and {wanted:g} was to be reached: training ends"))

    def _look(self) -> None:
        usage, said = self._usage(), self._said()
        if len(self._heard) < len(said):  # while members start, the CPU seconds say nothing of those that follow
            self._heard.update(said)
            self._cpu.clear()
        self._cpu.append(usage)
        eta_s = self._eta_s(usage)
        self._reporter.tell(self._progress(usage, said, eta_s))
        training = [pace for name, pace in self._paces.items() if name not in self._ended]
        everybody = len(self._paces) == self._spec.size and training and all(pace.measured for pace in training)
        if everybody and eta_s is not None and not self.estimated:
            self.estimated = True
            self._reporter.tell(self._estimate(usage, eta_s))

    def _estimate(self, usage: Usage, eta_s: float) -> Estimate:
        agent, experience = self._spec.agent, sum(map(disk_bytes, self._out.glob("*/*/ring")))
        measured = Measured(
            usage.seconds,
            usage.cpu_s,
            self._cpu_per_s(usage) or usage.cpu_s / usage.seconds,
            sum(self._tokens_per_s.values()),
            experience,
            disk_bytes(self._out) - experience,
        )
        return estimate(measured, eta_s, self._gpus, self._price_per_hour, self._spec.size * agent.buffer.capacity_bytes)

    def _progress(self, usage: Usage, said: Mapping[str, Mapping[str, Any]], eta_s: float | None) -> Progress:
        budget = self._spec.budget
        updates = {name: max(int(beacon["updates"]), self._paces[name].updates) for name, beacon in said.items()}
        for name, reached in updates.items():
            self._paces[name].heard(time.monotonic(), reached)
        done = sum(updates.get(name, pace.updates) for name, pace in self._paces.items())
        total = budget.updates and self._spec.size * self._target
        return Progress(
            stage=STAGE,
            seconds=usage.seconds,
            done=min(done, total) if total else done,
            total=total,
            unit="updates",
            eta_s=eta_s,
            cpu_s=usage.cpu_s,
            updates=updates,
            waiting=awaited(said),
        )

    def _said(self) -> dict[str, dict[str, Any]]:
        """By the members that train."""
        heard = {name: read_beacon(beacon_file(self._beacons, name)) for name in self._paces if name not in self._ended}
        return {name: beacon for name, beacon in heard.items() if beacon}

    def _eta_s(self, usage: Usage) -> float | None:
        training = [pace for name, pace in self._paces.items() if name not in self._ended]
        ended = [pace for name, pace in self._paces.items() if name in self._ended]
        left_s = updates_left_s(training, ended, time.monotonic(), self._target)
        return time_left(self._spec.budget, left_s, usage.seconds, usage.cpu_s, self._cpu_per_s(usage))

    def _cpu_per_s(self, usage: Usage) -> float | None:
        """Of the last minute."""
        first = self._cpu[0]
        seconds = usage.seconds - first.seconds
        return (usage.cpu_s - first.cpu_s) / seconds if seconds > 0 else None

    @property
    def _target(self) -> int:
        return target_updates(self._spec.budget.updates or 0, self._spec.agent.evaluation.updates_per_evaluation)


def line_of_descent(lineage: Lineage, trial_id: str) -> list[CloneEvent]:
    """The clones that made a member what its result comes from, the latest first; one that is only decided has no result yet."""
    latest = lineage.latest(trial_id)
    return lineage.descent(trial_id, None if latest is None or _applied(latest) else latest.number)


def _applied(event: CloneEvent) -> bool:
    return event.latency_s is not None or event.score_after is not None


def former_results(file: Path) -> list[dict[str, Any]]:
    """What a former process of this member reported, if there was one and its results can be read from here."""
    return [result for result in _rows(file) if not result.get(CUT_SHORT)]


def former_pace(results: Sequence[Mapping[str, Any]]) -> Pace:
    pace = Pace()
    for result in results:
        pace.resume(result["updates"], result["time_this_iter_s"])
    return pace


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        try:
            yield json.loads(line)
        except json.JSONDecodeError:  # torn when the driver was killed
            continue


def why(trial: Any) -> str:
    """The last line of a trial's error, cut short, and where the whole of it will be."""
    try:
        lines = [text.strip() for text in Path(trial.error_file).read_text().splitlines()]
    except OSError as error:
        lines = [str(error)]
    reason = next((text for text in reversed(lines) if text), "no reason is known")
    return f"{textwrap.shorten(reason, 200)} ({trial.storage.trial_fs_path}/{Path(trial.error_file).name})"
