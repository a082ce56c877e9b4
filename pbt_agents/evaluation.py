"""Scores of finished adapters on fresh tasks, with the engines of a fleet whose agents have stopped.

Which adapters, and what is said about them, is the caller's. Fitness during a run is the ring's.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from pbt_agents.config import AgentConfig
from pbt_agents.environment import Environment, environment_maker
from pbt_agents.errors import EpisodeError
from pbt_agents.ring import fitness
from pbt_agents.rollout.fleet import FleetInfo, agent_names
from pbt_agents.rollout.renderer import load_renderer
from pbt_agents.rollout.worker import RolloutWorker, Task
from pbt_agents.sync.adapter_sync import AdapterPublisher
from pbt_agents.trainer.lora import adapter_scale, build_policy, read_adapter
from pbt_agents.types import PolicyId, Split, Trajectory

logger = logging.getLogger(__name__)

_GUEST_LINEAGE = 1 << 40
"""Above any that an agent reaches, so that engines take a finished adapter into a slot an agent has used."""
_AT_ONCE = 256
"""Episodes. Their time limit counts from the moment when they are handed over, so that more of them would wait it out."""
_SPLIT_STREAMS: dict[Split, int] = {"train": 10, "validation": 11, "test": 12}


@dataclass(frozen=True)
class Scores:
    """Mean score and its standard error over `episodes` tasks, sampled at temperature 1 and greedy; NaN when most have no verdict."""

    episodes: int
    sampled: float
    sampled_se: float
    greedy: float
    greedy_se: float
    lost: int
    """Episodes without verdict, sampled and greedy together; they are in no mean."""

    def __str__(self) -> str:
        lost = f", {self.lost} of {2 * self.episodes} episodes lost" if self.lost else ""
        return f"sampled {self.sampled:.3f} ±{self.sampled_se:.3f}, greedy {self.greedy:.3f} ±{self.greedy_se:.3f}{lost}"


class Evaluator:
    """Borrows the first agent's slot, so no agent may be training. Use as a context manager."""

    def __init__(self, fleet: FleetInfo, config: AgentConfig, model_path: str) -> None:
        self._config = config
        self._agent = agent_names(1)[0]
        self._model = build_policy(model_path, config.model, seed=0)
        self._published = 0
        task = Task(self._agent, config.environment.id, environment_maker(config.environment, "test"), config.rollout)
        self._worker = RolloutWorker(task, lambda: fleet.connect(self._agent), load_renderer(model_path), lambda _: 0, lambda _: None)
        folder = Path(fleet.folder) / "evaluation"
        self._publisher = AdapterPublisher(fleet.layout, self._worker.engines, folder, adapter_scale(self._model))

    def __enter__(self) -> "Evaluator":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._worker.close()

    def base(self, split: Split, episodes: int) -> Scores:
        """The base model without any adapter."""
        return self._score(None, split, episodes)

    def adapter(self, folder: Path, split: Split, episodes: int) -> Scores:
        """An adapter in PEFT's format.

        Raises GuardError when it is not finite or has no place in the engines, EngineError when one of them refuses it, ConfigError
        when it does not fit the base.
        """
        self._publish(folder)
        return self._score(self._agent, split, episodes)

    def sampled(self, folder: Path, split: Split, episodes: int) -> float:
        """Only the sampled score of an adapter, for half the episodes. Raises what `adapter` does."""
        self._publish(folder)
        return self._fitness(self._agent, split, self.tasks(split, episodes), 1.0)["fitness"]

    def scores(self, folder: Path | None, split: Split, episodes: int, temperature: float) -> np.ndarray:
        """[episodes] Of an adapter, or of the base model for None, on each task; NaN without verdict. Raises what `adapter` does."""
        return self._scores(self._guest(folder), split, self.tasks(split, episodes), temperature)

    def watch(self, folder: Path | None, make_environment: Callable[[], Environment], task: int, temperature: float) -> Trajectory:
        """One episode in an environment of the caller's. Raises EpisodeError when it is lost, and what `adapter` does."""
        played = self._worker.evaluate([task], make_environment, temperature, self._guest(folder))
        assert played is not None, "nobody asks it to stop"
        if played[0] is None:
            raise EpisodeError(f"the episode was lost: {self._worker.last_abort}") from self._worker.last_abort
        return played[0]

    def tasks(self, split: Split, episodes: int) -> list[int]:
        """Seeds of the tasks that are scored."""
        tasks: list[int] = np.random.default_rng([self._config.seed, _SPLIT_STREAMS[split]]).integers(1 << 62, size=episodes).tolist()
        return tasks

    def _guest(self, folder: Path | None) -> str | None:
        """By which name engines know an adapter, once they have it."""
        if folder is None:
            return None
        self._publish(folder)
        return self._agent

    def played(self) -> int:
        """Episodes so far, lost ones too. May be asked from any thread."""
        counts = self._worker.stats()
        lost = (count for name, count in counts.items() if name.startswith("rollout/aborted_"))
        return int(counts.get("rollout/episodes", 0) + counts.get("rollout/evaluation_episodes_timed_out", 0) + sum(lost))

    def _publish(self, folder: Path) -> None:
        self._published += 1
        policy = PolicyId(self._agent, _GUEST_LINEAGE, self._published)
        self._worker.run(self._publisher.publish(read_adapter(self._model, folder), policy))

    def _score(self, agent: str | None, split: Split, episodes: int) -> Scores:
        tasks = self.tasks(split, episodes)
        sampled, greedy = (self._fitness(agent, split, tasks, temperature) for temperature in (1.0, 0.0))
        lost = int(sampled["evaluation_lost"] + greedy["evaluation_lost"])
        return Scores(episodes, sampled["fitness"], sampled["fitness_se"], greedy["fitness"], greedy["fitness_se"], lost)

    def _fitness(self, agent: str | None, split: Split, tasks: Sequence[int], temperature: float) -> dict[str, float]:
        return fitness(self._scores(agent, split, tasks, temperature))

    def _scores(self, agent: str | None, split: Split, tasks: Sequence[int], temperature: float) -> np.ndarray:
        make = environment_maker(self._config.environment, split)
        trajectories: list[Trajectory | None] = []
        for start in range(0, len(tasks), _AT_ONCE):
            played = self._worker.evaluate(tasks[start : start + _AT_ONCE], make, temperature, agent)
            assert played is not None, "nobody asks it to stop"
            trajectories += played
        if None in trajectories:  # a lost episode is data: it has no verdict
            lost, last = trajectories.count(None), self._worker.last_abort
            logger.warning("%d of %d evaluation episodes were lost, the last to: %s", lost, len(tasks), last)
        return np.array([np.nan if trajectory is None else trajectory.score for trajectory in trajectories])
