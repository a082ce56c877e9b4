"""What can be told of a run while it goes on: a class for each kind of news, with its figures and its words.

Owns the vocabulary. When something is told is for whoever watches (population_watch.py, stages.py), how it is shown for the reporters.
The fields of a class are the keys of its JSON object; see json_lines.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from pbt_agents.dashboard.words import amount, amount_of_bytes, amount_of_time, setting
from pbt_agents.errors import one_line


class Event(Protocol):
    """One piece of news. A dataclass, too."""

    kind: ClassVar[str]
    """Names it in JSON."""

    def text(self) -> str:
        """One line, or a few."""
        ...


@dataclass(frozen=True)
class Note:
    """Something worth knowing that has no figures."""

    kind: ClassVar = "note"
    note: str

    def text(self) -> str:
        return self.note


@dataclass(frozen=True)
class StageStarted:
    """Stages follow each other: `ray`, `engines`, `training`, `scoring`; a comparison goes through them again."""

    kind: ClassVar = "stage_started"
    stage: str
    doing: str
    usual_s: float | None = None
    """What it took last time; None where that is not known."""

    def text(self) -> str:
        return self.doing if self.usual_s is None else f"{self.doing} ({amount_of_time(self.usual_s)} last time)"


@dataclass(frozen=True)
class StageEnded:
    """Not told when the stage is broken off."""

    kind: ClassVar = "stage_ended"
    stage: str
    result: str
    seconds: float

    def text(self) -> str:
        return self.result


@dataclass(frozen=True)
class Progress:
    """Where the present stage is. Told every two seconds; a reporter shows some of it."""

    kind: ClassVar = "progress"
    stage: str
    seconds: float
    """Since it began; of training, in all sessions of the run."""
    done: int | None = None
    total: int | None = None
    """None where a stage has no count, or no end by it."""
    unit: str = ""
    """What is counted: updates of all members together, or episodes."""
    eta_s: float | None = None
    """Until the stage ends; None while nothing is known."""
    cpu_s: float | None = None
    """Of all processes of the run, while it trained."""
    updates: Mapping[str, int] = field(default_factory=dict)
    """Of each member that trains, as it says itself."""
    waiting: str | None = None
    """What is awaited, once something takes long."""

    def text(self) -> str:
        count = f"{self.done} of {self.total} {self.unit}" if self.total else f"{self.done} {self.unit}" if self.done is not None else ""
        cpu = f"{self.cpu_s:.0f} CPU s" if self.cpu_s is not None else ""
        eta = f"about {amount_of_time(self.eta_s)} left" if self.eta_s is not None else "time left not known yet"
        return f"{self.stage}: " + ", ".join(part for part in (count, cpu, eta, self.waiting or "") if part)


@dataclass(frozen=True)
class MemberResult:
    """A member after an evaluation, with the values that ran, read back from optimizer, objective and buffer."""

    kind: ClassVar = "member_result"
    member: str
    generation: int
    """Clones in its line of descent."""
    updates: int
    """Optimizer steps of its own."""
    score: float
    score_se: float
    learning_rate: float
    ratio_max: float | None
    """None for an objective without a cap."""
    window: int
    lag: float
    """Mean lag of the tokens that were trained on, policy versions."""
    tokens_per_s: float
    """Sampled since its last result, evaluation included."""
    parent: str | None
    """Whose clone it is."""

    def text(self) -> str:
        cap = "   -" if self.ratio_max is None else f"{self.ratio_max:4.1f}"
        return (
            f"{self.member}  update {self.updates:4d}  score {self.score:6.3f} ±{self.score_se:.3f}  rate {self.learning_rate:.1e}  "
            f"cap {cap}  window {self.window:2d}  lag {self.lag:4.1f}  {self.tokens_per_s:5.0f} tokens/s  gen {self.generation}"
            + (f"  from {self.parent}" if self.parent else "")
        )


@dataclass(frozen=True)
class MemberRemark:
    """Why a member took too few steps, and whether it ends by that."""

    kind: ClassVar = "member_remark"
    member: str
    remark: str
    ends: bool

    def text(self) -> str:
        return f"{self.member}{' ends' if self.ends else ''}: {self.remark}"


@dataclass(frozen=True)
class MemberFailure:
    """A member's process or its code failed."""

    kind: ClassVar = "member_failure"
    member: str
    reason: str
    final: bool
    """It does not go on from its last checkpoint."""

    def text(self) -> str:
        return f"{self.member} failed {'for good' if self.final else 'and goes on from its last checkpoint'}: {self.reason}"


@dataclass(frozen=True)
class Cloned:
    """A member has become a copy of a better one, and trains with new values."""

    kind: ClassVar = "clone"
    member: str
    parent: str
    score_before: float
    parent_score: float
    values_before: Mapping[str, Any]
    values: Mapping[str, Any]
    """Read back from what trains."""
    latency_s: float | None
    """From the decision until all is applied."""

    def text(self) -> str:
        moved = ", ".join(
            f"{name} {setting(self.values_before.get(name))} -> {setting(value)}"
            for name, value in self.values.items()
            if value != self.values_before.get(name)
        )
        return (
            f"{self.member} ({self.score_before:.3f}) is now a clone of {self.parent} ({self.parent_score:.3f}): {moved or 'same values'}"
        )


@dataclass(frozen=True)
class Plan:
    """The budget, before the first update; training ends at the first limit that is reached."""

    kind: ClassVar = "plan"
    members: int
    updates: int | None
    minutes: float | None
    cpu_seconds: float | None
    fitness: float | None

    def text(self) -> str:
        limits = {"updates each": self.updates, "minutes": self.minutes, "CPU seconds in all": self.cpu_seconds}
        ends = [f"{limit:g} {name}" for name, limit in limits.items() if limit is not None]
        budget = " or ".join(ends if self.fitness is None else [*ends, f"a score of {self.fitness:g}"])
        return f"budget: {self.members} member{'s' * (self.members > 1)}, {budget}"


@dataclass(frozen=True)
class Estimate:
    """What the whole training will come to, from the first results of every member."""

    kind: ClassVar = "estimate"
    seconds: float
    cpu_hours: float
    gpu_hours: float
    tokens: float
    """Sampled."""
    disk_bytes: float
    money: float | None
    """None without a price."""
    price_per_hour: float | None
    """Of a GPU, or of the machine when no GPU is used."""

    def text(self) -> str:
        gpu = f", {self.gpu_hours:.1f} GPU h" if self.gpu_hours else ""
        money = "" if self.money is None else f", {self.money:.2f} at {self.price_per_hour:.2f} an hour"
        return (
            f"extrapolated: {amount_of_time(self.seconds)}, {self.cpu_hours:.2f} CPU h{gpu}, "
            f"{amount(self.tokens)} tokens sampled, {amount_of_bytes(self.disk_bytes)} on disk{money}"
        )


@dataclass(frozen=True)
class Arm:
    """How one population stands at the end; `scores` and `base` hold sampled, greedy and their standard errors."""

    scores: Any | None
    """Of its best member on the test tasks; None when no member has a score."""
    best: str | None
    validation: Mapping[str, float]
    """Of every member that saved an adapter."""

    def text(self) -> str:
        members = " ".join(f"{score:.2f}" for score in self.validation.values())
        return f"{self.scores}  ({self.best} of {members})" if self.best else "no member has a score"


@dataclass(frozen=True)
class Report:
    """The end of a run that was not interrupted."""

    kind: ClassVar = "report"
    out: str
    clones: int
    seconds: float
    cpu_s: float
    gpu_hours: float
    money: float | None
    """None without a price."""
    tokens: float
    """Sampled by the engines since they were started."""
    disk_bytes: int
    peak_memory_bytes: int
    engines_started: list[int]
    engines_ended: list[int]
    """Process ids before the first update and after the last."""
    base: Any
    """Scores of the base model."""
    arms: Mapping[str, Arm | None]
    """`population`, and its rivals where they were asked for; None for one that was interrupted."""

    def text(self) -> str:
        gpu = f"{self.gpu_hours:.1f} GPU h, " if self.gpu_hours else ""
        cost = "" if self.money is None else f"cost {self.money:.2f}, "
        standings = {"base model": f"{self.base}"} | {name: arm.text() if arm else "interrupted" for name, arm in self.arms.items()}
        return "\n".join(
            [
                f"\n{self.clones} clone{'s' * (self.clones != 1)} in {self.seconds:.0f} s of training, {self.cpu_s:.0f} CPU s, {gpu}{cost}"
                f"{amount_of_bytes(self.disk_bytes)} on disk, at most {amount_of_bytes(self.peak_memory_bytes)} resident; "
                f"engines {self.engines_started} at the start, {self.engines_ended} at the end, sampled {amount(self.tokens)} tokens",
                f"{self.base.episodes} test tasks, none seen in training; in brackets all members, scored anew on as many validation tasks",
                *(f"  {name:<12} {standing}" for name, standing in standings.items()),
                f"adapter (loads with peft and vLLM): {self.out}/best",
                f"lineage and schedule: {self.out}/population/lineage.json, schedule.json beside it",
            ]
        )


@dataclass(frozen=True)
class Interrupted:
    """A signal ended the run; what was saved can be gone on with."""

    kind: ClassVar = "interrupted"
    saved: bool
    """Every member saved what it had; otherwise the checkpoints before stand."""
    resume: str
    """The command that goes on."""

    def text(self) -> str:
        if self.saved:
            return f"interrupted and saved. Go on with: {self.resume}"
        return f"interrupted. From what each member saved last it goes on with: {self.resume}"


@dataclass(frozen=True)
class Failed:
    """The run cannot be started, or ended by an error."""

    kind: ClassVar = "error"
    error: str

    def text(self) -> str:
        return f"error: {one_line(self.error)}"


LAST = Report | Interrupted | Failed
"""After one of these nothing follows."""
