"""Trajectories as padded arrays, in micro-batches of a bounded size.

Owns padding, masks and the spreading of advantages and versions over tokens. numpy only; the forward pass is logprobs.py's.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pbt_agents.types import BoolArray, FloatArray, IntArray, PolicyId, Trajectory

PADDING_ID = 0
"""Any id of the vocabulary serves: padding is known by lengths, never by ids."""


@dataclass(frozen=True)
class MicroBatch:
    """B trajectories padded on the right to T tokens. Causal attention never looks right, so no attention mask is needed."""

    token_ids: NDArray[np.int64]
    """[B, T]"""
    loss_mask: BoolArray
    """[B, T], true where the policy sampled the token: false at observations, at padding, and at a first token, which nothing predicts."""
    behavior_logprobs: FloatArray
    """[B, T], as the engine sampled; 0 at untrained tokens."""
    advantages: FloatArray
    """[B, T], at every token that of its trajectory."""
    lags: IntArray
    """[B, T] policy versions (optimizer steps) behind the current one, or ahead on a branch that was given up; 0 at untrained tokens."""
    on_policy: BoolArray
    """[B, T], true at the trained tokens of an episode that the current policy played from its first to its last."""


def micro_batches(
    trajectories: Sequence[Trajectory], advantages: Sequence[float], *, version: int, max_tokens: int, current: PolicyId | None = None
) -> Iterator[MicroBatch]:
    """All trajectories, shortest first, at most `max_tokens` padded tokens at a time; one that is longer goes alone.

    `current` is the policy in training, as the engines know it; without it no token counts as on-policy.
    """
    order = sorted(range(len(trajectories)), key=lambda i: len(trajectories[i].token_ids))
    rows: list[int] = []
    for i in order:
        if rows and (len(rows) + 1) * len(trajectories[i].token_ids) > max_tokens:
            yield _padded([trajectories[r] for r in rows], [advantages[r] for r in rows], version, current)
            rows = []
        rows.append(i)
    if rows:
        yield _padded([trajectories[r] for r in rows], [advantages[r] for r in rows], version, current)


def _padded(trajectories: Sequence[Trajectory], advantages: Sequence[float], version: int, current: PolicyId | None) -> MicroBatch:
    shape = (len(trajectories), max(len(trajectory.token_ids) for trajectory in trajectories))
    batch = MicroBatch(
        token_ids=np.full(shape, PADDING_ID, np.int64),
        loss_mask=np.zeros(shape, np.bool_),
        behavior_logprobs=np.zeros(shape, np.float32),
        advantages=np.repeat(np.array(advantages, np.float32)[:, None], shape[1], axis=1),
        lags=np.zeros(shape, np.int32),
        on_policy=np.zeros(shape, np.bool_),
    )
    for row, trajectory in enumerate(trajectories):
        length = len(trajectory.token_ids)
        batch.token_ids[row, :length] = trajectory.token_ids
        batch.loss_mask[row, :length] = trajectory.loss_mask
        batch.behavior_logprobs[row, :length] = trajectory.behavior_logprobs
        for span in trajectory.policy_spans:
            batch.lags[row, span.start : span.stop] = abs(version - span.policy.version)
        batch.on_policy[row, :length] = trajectory.loss_mask & all(span.policy == current for span in trajectory.policy_spans)
    batch.loss_mask[:, 0] = False
    return batch
