"""One episode, token in and token out.

Owns how turns become a trajectory. Which episodes are played, and what happens to those that fail, is the worker's.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np

from pbt_agents.engine import RolloutEngine
from pbt_agents.environment import Environment
from pbt_agents.errors import EpisodeError
from pbt_agents.rollout.renderer import ChatRenderer
from pbt_agents.rollout.user_environment import UserEnvironment
from pbt_agents.types import Completion, IntArray, PolicySpan, Sampling, StopReason, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class Limits:
    """What one episode may use."""

    max_action_tokens: int
    max_episode_tokens: int


@dataclass
class _Record:
    """An episode as it grows. The ids of turn k are a prefix of those of turn k + 1."""

    ids: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    spans: list[PolicySpan] = field(default_factory=list)

    def observe(self, observation_ids: IntArray) -> None:
        self.ids.extend(observation_ids.tolist())

    def act(self, observation_ids: IntArray, completion: Completion, reward: float) -> None:
        start = len(self.ids)
        self.ids.extend(completion.token_ids.tolist())
        for span in completion.policy_spans:
            self.spans.append(PolicySpan(start + span.start, start + span.stop, span.policy))
        self.turns.append(Turn(observation_ids, completion.token_ids, completion.logprobs, reward))


async def play(
    make_environment: Callable[[], Environment],
    engine: RolloutEngine,
    renderer: ChatRenderer,
    agent: str | None,
    seed: int,
    limits: Limits,
    temperature: float,
    salt: str | None = None,
    executor: Executor | None = None,
) -> Trajectory:
    """Play the task of `seed` to its end, in an environment of its own, with the adapter of `agent` (the base model for None).

    Raises EpisodeError when the environment raises or returns what it may not, EngineError or EngineDiedError when the engine does.
    """
    started = time.perf_counter()
    record = _Record()
    environment = await UserEnvironment.make(make_environment, executor)
    observation_ids = renderer.first(await environment.reset(seed))
    while True:
        record.observe(observation_ids)
        room = limits.max_episode_tokens - len(record.ids)
        if room < 1:
            return _trajectory(record, "length", {}, started)
        sampling = Sampling(min(limits.max_action_tokens, room), renderer.stop_token_ids, temperature)
        completion = await engine.generate(agent, np.array(record.ids, np.int32), sampling, salt)
        result = await environment.step(renderer.text(completion.token_ids))
        record.act(observation_ids, completion, result.reward)
        if result.terminated or result.truncated:
            return _trajectory(record, "terminated" if result.terminated else "truncated", result.metrics, started)
        observation_ids = renderer.later(result.observation, completion.token_ids)


@dataclass(frozen=True)
class Replay:
    """What an environment said to given actions."""

    observations: tuple[str, ...]
    """Before each action, and after the last one if that did not end the episode."""
    rewards: tuple[float, ...]
    stop_reason: StopReason | None
    """None when it was not over."""


async def replay(make_environment: Callable[[], Environment], seed: int, actions: Sequence[str], executor: Executor | None) -> Replay:
    """Take the same actions in a fresh environment, until it ends or there are no more. Raises EpisodeError as `play` does."""
    environment = await UserEnvironment.make(make_environment, executor)
    observations, rewards = [await environment.reset(seed)], []
    for action in actions:
        result = await environment.step(action)
        rewards.append(result.reward)
        if result.terminated or result.truncated:
            return Replay(tuple(observations), tuple(rewards), "terminated" if result.terminated else "truncated")
        observations.append(result.observation)
    return Replay(tuple(observations), tuple(rewards), None)


def _trajectory(record: _Record, reason: StopReason, metrics: Mapping[str, float], started: float) -> Trajectory:
    if not record.turns:
        raise EpisodeError("the first observation already fills max_episode_tokens. Raise it.")
    return Trajectory(tuple(record.turns), tuple(record.spans), reason, metrics, time.perf_counter() - started)
