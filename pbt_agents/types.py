"""The values that travel round the ring. numpy and the standard library only.

Everything here is frozen. Stages hand these on and never import each other.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]

Split = Literal["train", "validation", "test"]
StopReason = Literal["terminated", "truncated", "length"]
"""terminated: the environment ended it; truncated: its turn limit; length: the token budget of the episode."""


@dataclass(frozen=True, slots=True, order=True)
class PolicyId:
    """Which weights sampled a token. Nothing is keyed by less: a clone and a restore repeat version numbers."""

    agent: str
    lineage: int
    """Rises at every clone and every restore of this agent."""
    version: int
    """Optimizer steps taken along the line of descent."""

    def __str__(self) -> str:
        return f"{self.agent}.{self.lineage}.{self.version}"


@dataclass(frozen=True, slots=True)
class PolicySpan:
    """One policy sampled the tokens at positions start <= i < stop."""

    start: int
    stop: int
    policy: PolicyId


@dataclass(frozen=True, slots=True)
class Sampling:
    """Everything an engine needs to sample one action. Each field is sent explicitly; top-p and top-k are off."""

    max_tokens: int
    stop_token_ids: tuple[int, ...]
    temperature: float = 1.0
    """0 is greedy."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled action, as the engine sampled it."""

    token_ids: IntArray
    """[A], the stop token included when there was one."""
    logprobs: FloatArray
    """[A], of the sampled tokens under the sampling distribution (temperature applied)."""
    finish_reason: Literal["stop", "length"]
    policy_spans: tuple[PolicySpan, ...]
    """Over the A tokens; more than one when new weights arrived while sampling."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, how many the prefix cache held."""


@dataclass(frozen=True, slots=True)
class AdapterRef:
    """Where an engine finds a published adapter."""

    policy: PolicyId
    path: str
    """A file of float32 values in the engine's slot order, B already scaled by alpha / rank."""
    checksum: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What the policy saw and what it answered."""

    observation_ids: IntArray
    """[O], appended by the environment (prompt, template tokens); never trained on."""
    action_ids: IntArray
    """[A], as sampled."""
    behavior_logprobs: FloatArray
    """[A], from the engine that sampled them."""
    reward: float
    """From the environment, for this action alone; NaN where there was no verdict."""


@dataclass(frozen=True)
class Trajectory:
    """One episode. T is the number of all its tokens."""

    turns: tuple[Turn, ...]
    policy_spans: tuple[PolicySpan, ...]
    """Over positions of token_ids; they cover exactly the action tokens."""
    stop_reason: StopReason
    metrics: Mapping[str, float] = field(default_factory=dict)
    duration_s: float = 0.0

    @cached_property
    def token_ids(self) -> IntArray:
        """[T] int32."""
        return np.concatenate([part for turn in self.turns for part in (turn.observation_ids, turn.action_ids)])

    @cached_property
    def loss_mask(self) -> BoolArray:
        """[T], true where the policy sampled the token."""
        parts = [np.full(len(ids), own) for turn in self.turns for ids, own in _parts(turn)]
        return np.concatenate(parts)

    @cached_property
    def behavior_logprobs(self) -> FloatArray:
        """[T] float32, 0 at observation tokens."""
        parts = []
        for turn in self.turns:
            parts += [np.zeros(len(turn.observation_ids), np.float32), turn.behavior_logprobs]
        return np.concatenate(parts)

    @cached_property
    def rewards(self) -> FloatArray:
        """[turns] float32, NaN where there was no verdict."""
        return np.array([turn.reward for turn in self.turns], np.float32)

    @property
    def score(self) -> float:
        """Sum of the rewards; NaN as soon as one turn had no verdict."""
        return float(self.rewards.sum())

    @property
    def oldest_version(self) -> int:
        return min(span.policy.version for span in self.policy_spans)

    @property
    def newest_version(self) -> int:
        return max(span.policy.version for span in self.policy_spans)


def _parts(turn: Turn) -> tuple[tuple[IntArray, bool], tuple[IntArray, bool]]:
    return (turn.observation_ids, False), (turn.action_ids, True)


@dataclass(frozen=True)
class Group:
    """The attempts at one task: what is stored, evicted and trained on, always whole."""

    group_id: str
    environment: str
    seed: int
    """Of the task; every trajectory of the group started from it."""
    trajectories: tuple[Trajectory, ...]

    @property
    def oldest_version(self) -> int:
        """A group is as stale as its oldest trained token."""
        return min(trajectory.oldest_version for trajectory in self.trajectories)

    @property
    def scores(self) -> FloatArray:
        """[G] float32, NaN without verdict."""
        return np.array([trajectory.score for trajectory in self.trajectories], np.float32)

    @property
    def action_tokens(self) -> int:
        return sum(int(trajectory.loss_mask.sum()) for trajectory in self.trajectories)


def group_prefix(agent: str, lineage: int) -> str:
    """How the ids of all groups begin that one policy line played."""
    return f"{agent}.{lineage}."
