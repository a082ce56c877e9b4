"""The ring of one agent, closed: environment -> rollout -> buffer -> trainer -> sync -> rollout.

The only file that imports every stage. Values go round: the worker's groups into the buffer, batches into the trainer, the new
adapter to the engines, and their confirmation back to the buffer as its version. Ray is not needed here; pipeline.py adds it.
"""

import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np

from pbt_agents.audit import Verdict, audit
from pbt_agents.buffer.manifest import Manifest
from pbt_agents.buffer.replay import ReplayBuffer
from pbt_agents.config import AgentConfig
from pbt_agents.engine import AdapterLayout, RolloutEngine
from pbt_agents.environment import environment_maker
from pbt_agents.errors import GuardError, NoExperienceError, NothingToLearnError
from pbt_agents.rollout.renderer import load_renderer
from pbt_agents.rollout.worker import RolloutWorker, Task
from pbt_agents.sync.adapter_sync import AdapterPublisher
from pbt_agents.trainer.advantages import skip_reason
from pbt_agents.trainer.trainer import Trainer
from pbt_agents.turnstile import Turnstile
from pbt_agents.types import Group, PolicyId, Trajectory, group_prefix

Answer = TypeVar("Answer")
_VALIDATION_STREAM, _TASK_STREAM, _SAMPLE_STREAM, _AUDIT_STREAM = 1, 2, 3, 4
_LOOK_S = 0.5
"""Between looks for a reason not to wait for groups any longer."""
_WINDOWS = 8
"""A buffer that got so many windows full of groups, and still has no batch of them, will not have one."""
_CANARIES = 4
"""Episodes of each evaluation whose log-probs the trainer computes, too."""


@dataclass(frozen=True)
class Place:
    """Where one agent's ring runs."""

    agent: str
    slot: int
    model_path: str
    folder: Path
    """The agent's own, durable: its experience and its snapshots."""
    run_folder: Path
    """Shared by the agents of a run, private and short-lived: adapters on their way, the trainers' turnstile."""
    trainers_at_once: int
    first_lineage: int = 0
    """Above those of whoever had the slot before."""


class Ring:
    """One agent at work. Rollouts go on in a thread of their own from `start` to `close`; all else happens in the caller's."""

    def __init__(
        self, place: Place, config: AgentConfig, layout: AdapterLayout, connect: Callable[[], Awaitable[Sequence[RolloutEngine]]]
    ) -> None:
        self._place, self.config = place, config
        self.trainer = Trainer(config, place.model_path, seed=config.seed * 1000 + place.slot)
        self.buffer = ReplayBuffer(place.folder / "experience", config.buffer, config.trainer.groups_per_batch)
        self._turnstile = Turnstile(place.run_folder / "trainers", place.trainers_at_once, place.slot)
        self._renderer = load_renderer(place.model_path)
        task = Task(place.agent, config.environment.id, environment_maker(config.environment, "train"), config.rollout)
        self.worker = RolloutWorker(task, connect, self._renderer, self.buffer.room, self._deliver)
        self._publisher = AdapterPublisher(layout, self.worker.engines, place.run_folder / place.agent, self.trainer.scale)
        self._seconds: dict[str, float] = defaultdict(float)
        self._uninformative: Counter[str] = Counter()
        self._alike: Counter[str] = Counter()
        """Of them, those that came since the last group that told something."""
        self._queues = True
        self._doing = ("", time.monotonic())
        self._audits: Counter[str] = Counter()
        self._trained: Sequence[Group] = ()
        """By the last update."""
        self.playing = False
        self.lineage = 0
        self.updates = _read_number(place.folder / "updates", 0)
        """Optimizer steps this member has taken; it only rises, while the version is the donor's after a clone."""

    def start(self) -> None:
        """Publish the trainer's adapter under a new lineage, and play. An agent that is restored starts by that."""
        file = self._place.folder / "lineage"
        self.lineage = max(_read_number(file, -1) + 1, self._place.first_lineage)
        _write_number(file, self.lineage)  # before anything is known by it
        self._sampler, self._auditor = self._stream(_SAMPLE_STREAM), self._stream(_AUDIT_STREAM)
        self._trained = ()
        self._alike.clear()
        self.publish()
        self.worker.start(self.lineage, self._stream(_TASK_STREAM))
        self.playing = True

    def apply(self, config: AgentConfig) -> None:
        """Take new hyper-parameters in place, and read them back from what trains."""
        self.config = config
        self.trainer.apply(config)
        self.buffer.window = config.buffer.window
        self.buffer.max_reuse = config.buffer.max_reuse
        self.worker.config = config.rollout
        wrong = {name: (config.value(name), value) for name, value in self.settings_in_use().items() if config.value(name) != value}
        if wrong:
            raise GuardError(f"{self._place.agent} does not use the hyper-parameters it was given (given, used): {wrong}.")

    def in_use(self) -> dict[str, float]:
        """The values that are searched as a rule, from the optimizer, the objective and the buffer."""
        return {**self.trainer.in_use(), "window": self.buffer.window}

    def settings_in_use(self) -> dict[str, Any]:
        """Every setting that may change in a living agent, by its name, as it is read from what acts by it."""
        buffer = {"window": self.buffer.window, "max_reuse": self.buffer.max_reuse}
        return {**asdict(self.worker.config), **self.trainer.settings_in_use(), **buffer}

    def update(self, should_stop: Callable[[], bool]) -> dict[str, Any] | None:
        """Train on one batch and publish; None when told to stop while waiting for it, or for one's turn.

        Raises NoExperienceError when the agent cannot play, NothingToLearnError when groups for a whole evaluation interval told
        nothing. A batch that was skipped whole, or whose step was not finite, is reported with `trainer/stepped` 0 and not published.
        """
        groups = self._when_there(lambda count: self.buffer.sample(count, self._sampler, _LOOK_S), should_stop)
        if groups is None:
            return None
        asked = time.perf_counter()
        self._doing = ("wait_for_turn", time.monotonic())
        with self._turn():
            self._seconds["wait_for_turn_s"] += time.perf_counter() - asked
            if should_stop():
                return None
            started = time.time()
            with self._timed("train_s"):
                report = self.trainer.update(groups, self._policy())
        self._trained = groups
        row: dict[str, Any] = {"started": started, **report.metrics, "trainer/stepped": float(report.stepped)}
        row["by_lag"] = {str(lag): asdict(stats) for lag, stats in report.by_lag.items()}
        if report.stepped:
            self.updates += 1
            with self._timed("publish_s"):
                row["sync/publish_s"] = self.publish()
        else:
            self.buffer.advance(self.trainer.version)
        return row

    def _turn(self) -> AbstractContextManager[None]:
        """A place among the trainers of this machine. A clone does not queue for its first update: its ring has stood still."""
        queues, self._queues = self._queues, True
        return self._turnstile.hold() if queues else nullcontext()

    def publish(self) -> float:
        """Bring the adapter to every engine; only then is the new version the current one. Seconds until the last engine confirmed."""
        report = self.worker.run(self._publisher.publish(self.trainer.adapter, self._policy()))
        self.buffer.advance(self.trainer.version)
        return report.seconds

    def _policy(self) -> PolicyId:
        """In training, and once it is published that of the engines."""
        return PolicyId(self._place.agent, self.lineage, self.trainer.version)

    def evaluate(self, should_stop: Callable[[], bool]) -> dict[str, float] | None:
        """Fitness on fixed tasks of the validation split, sampled at temperature 1: mean, standard error and episodes without verdict.

        None when told to stop meanwhile. Raises GuardError when the engines did not play with this agent's adapter as it is, or when
        what was trained on is not what a fresh environment gives.
        """
        settings = self.config.evaluation
        self.buffer.demand_fresh(self.config.trainer.groups_per_batch)  # they are played meanwhile; see `prepare`
        tasks = np.random.default_rng([self.config.seed, _VALIDATION_STREAM]).integers(1 << 62, size=settings.evaluation_episodes)
        make = environment_maker(self.config.environment, "validation")
        with self._timed("evaluate_s"):
            trajectories = self.worker.evaluate(tasks.tolist(), make, 1.0, self._place.agent, should_stop)
        if trajectories is None:
            return None
        scores = np.array([np.nan if trajectory is None else trajectory.score for trajectory in trajectories])
        with self._timed("guard_s"):
            return {**fitness(scores), **self._canary([played for played in trajectories if played]), **self._audit()}

    def _canary(self, played: Sequence[Trajectory]) -> dict[str, float]:
        """Whether the engines' slot of this agent holds its adapter: nothing was published while it was evaluated."""
        own = self._policy()
        if foreign := {span.policy for trajectory in played for span in trajectory.policy_spans} - {own}:
            raise GuardError(f"{own} was evaluated, but engines played with {', '.join(map(str, foreign))}.")
        chosen = self._auditor.permutation(len(played))[:_CANARIES]
        return self.trainer.canary([played[i] for i in chosen], 1.0, own)

    def _audit(self) -> dict[str, float]:
        """Attempts at random from the last batch, played again."""
        for _ in range(self.config.evaluation.audited_trajectories if self._trained else 0):
            group = self._trained[int(self._auditor.integers(len(self._trained)))]
            trajectory = group.trajectories[int(self._auditor.integers(len(group.trajectories)))]
            self._audits[audit(trajectory, group.seed, self.worker.replay, self._renderer)] += 1
        return {f"audit/{verdict}": float(self._audits[verdict]) for verdict in get_args(Verdict)}

    def prepare(self, should_stop: Callable[[], bool]) -> None:
        """Wait until there are groups of the current version for an update: whoever goes on from a snapshot taken now can train at once,
        however narrow its window. Where none are likely to come soon, it does not wait.
        """
        with suppress(NoExperienceError, NothingToLearnError):  # the next update will say so
            self._when_there(lambda count: self.buffer.wait_fresh(count, _LOOK_S), should_stop, batches=1)

    def snapshot(self, folder: Path) -> dict[str, Any]:
        """Everything a clone or a restart needs, consistent: weights and moments in `folder`, experience pinned by hard links."""
        self.trainer.save(folder / "trainer")
        pins = self._place.folder / "pins"
        pinned = pins / f"{self.lineage}-{self.updates}-{time.time_ns()}"
        manifest = self.buffer.snapshot(pinned)
        _keep_newest(pins, 4)
        _write_number(self._place.folder / "updates", self.updates)
        return {"agent": self._place.agent, "lineage": self.lineage, "updates": self.updates, "pinned": str(pinned), "experience": manifest}

    def restore(self, folder: Path, state: dict[str, Any], config: AgentConfig) -> None:
        """Become the agent of a snapshot, one's own or a donor's, under a new lineage and with `config` applied last.

        Of a donor's snapshot the experience is the donor's, and one's own is dropped: another policy made it. After a restart of one's
        own there is also what was played since the snapshot. Experience that is no longer there, since the run was moved or the donor
        went on for long, is played anew.
        """
        self.worker.stop()
        self.trainer.load(folder / "trainer")
        experience, pinned = state["experience"], Path(state["pinned"])
        if not pinned.exists():
            experience = Manifest(version=experience["version"], segments=[], groups=[])
        if state["agent"] == self._place.agent:
            self.buffer.recover(experience, pinned, group_prefix(self._place.agent, state["lineage"]))
            self.updates = max(self.updates, state["updates"])
        else:
            self.buffer.restore(experience, pinned)
        _write_number(self._place.folder / "updates", self.updates)
        self._queues = False
        self.apply(config)
        self.start()

    def stats(self) -> dict[str, float]:
        """Totals of this process, and the state of the buffer."""
        seconds = {f"time/{name}": value for name, value in self._seconds.items()}
        uninformative = {f"rollout/groups_{reason}": float(count) for reason, count in self._uninformative.items()}
        return {**seconds, **self.worker.stats(), **uninformative, **self.buffer.stats()}

    def standing(self) -> dict[str, Any]:
        """What it is at, and for how long: to tell slow from stuck. May be asked from any thread."""
        doing, since = self._doing
        return {"updates": self.updates, "doing": doing, "doing_s": time.monotonic() - since, **asdict(self.worker.in_flight())}

    def close(self) -> None:
        self.buffer.close()
        self.worker.close()
        self._turnstile.close()

    def _deliver(self, group: Group) -> None:
        """A group whose attempts all scored the same teaches nothing: it is counted by its reason, and another is played."""
        if reason := skip_reason(group.scores):
            self._uninformative[reason] += 1
            self._alike[reason] += 1
        else:
            self._alike.clear()
            self.buffer.append(group)

    def _when_there(self, ask: Callable[[int], Answer], should_stop: Callable[[], bool], batches: int | None = None) -> Answer | None:
        """What the buffer answers once it holds the groups of a batch; None when told to stop before.

        Raises NothingToLearnError after so many batches of groups without a difference, those of a whole step when not given.
        """
        count = self.config.trainer.groups_per_batch
        enough = (batches or self.config.evaluation.updates_per_evaluation) * count
        appended = self.buffer.stats()["buffer/appended"]
        with self._timed("wait_for_groups_s"):
            while not should_stop():
                self.worker.check()
                try:
                    return ask(count)
                except TimeoutError as error:
                    self._check_groups_differ(enough)
                    if self.buffer.stats()["buffer/appended"] - appended > _WINDOWS * count * (self.buffer.window + 1):
                        raise GuardError(f"{self._place.agent} plays, and never has a batch: {error}") from error
        return None

    def _check_groups_differ(self, enough: int) -> None:
        alike = dict(self._alike)
        if sum(alike.values()) >= enough:
            self._alike.clear()
            raise NothingToLearnError(
                f"{sum(alike.values())} groups in a row had no two attempts of different score ({alike}). Is the task solved, too hard for "
                "this model, or without a reward that tells attempts apart?"
            )

    def _stream(self, purpose: int) -> np.random.Generator:
        """Chance of this agent's own, never repeated after a clone or a restart."""
        return np.random.default_rng([self.config.seed, self._place.slot, self.lineage, purpose])

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        self._doing = (name.removesuffix("_s"), time.monotonic())
        try:
            yield
        finally:
            self._seconds[name] += time.perf_counter() - started
            self._doing = ("", time.monotonic())


def fitness(scores: np.ndarray) -> dict[str, float]:
    """Mean and standard error [episodes]; NaN scores are episodes without verdict. NaN fitness when most have none."""
    judged = scores[np.isfinite(scores)]
    result = {"evaluation_episodes": float(len(judged)), "evaluation_lost": float(len(scores) - len(judged))}
    if 2 * len(judged) <= len(scores) or len(judged) < 2:
        return {"fitness": float("nan"), "fitness_se": float("nan"), **result}
    return {"fitness": float(judged.mean()), "fitness_se": float(judged.std(ddof=1) / np.sqrt(len(judged))), **result}


def _read_number(file: Path, otherwise: int) -> int:
    return int(file.read_text()) if file.exists() else otherwise


def _write_number(file: Path, number: int) -> None:
    aside = file.with_suffix(".tmp")
    aside.write_text(str(number))
    aside.replace(file)


def _keep_newest(folder: Path, count: int) -> None:
    for old in sorted(folder.iterdir(), key=lambda pin: pin.stat().st_mtime_ns)[:-count]:
        shutil.rmtree(old)
