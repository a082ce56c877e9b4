"""Groups of random tokens in the shape of real episodes, for whatever trains, stores or carries them."""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from pbt_agents.types import Group, PolicyId, PolicySpan, Trajectory, Turn


def random_group(
    rng: Generator, scores: Sequence[float], *, version: int = 0, turns: int = 6, action_tokens: int = 8, vocabulary: int = 32
) -> Group:
    """One trajectory for each score, paid at its last turn. The first has `turns` turns, later ones up to two fewer."""
    policy = PolicyId("agent", 0, version)
    lengths = [max(1, turns - index % 3) for index in range(len(scores))]
    trajectories = [
        _trajectory(rng, score, policy, length, action_tokens, vocabulary) for score, length in zip(scores, lengths, strict=True)
    ]
    return Group(f"group-{rng.integers(1 << 40)}", "arithmetic", int(rng.integers(1 << 31)), tuple(trajectories))


def _trajectory(rng: Generator, score: float, policy: PolicyId, turns: int, action_tokens: int, vocabulary: int) -> Trajectory:
    played, spans, position = [], [], 0
    for turn in range(turns):
        observation = rng.integers(0, vocabulary, 3 * action_tokens).astype(np.int32)
        action = rng.integers(0, vocabulary, action_tokens).astype(np.int32)
        logprobs = np.log(rng.uniform(0.02, 0.9, action_tokens)).astype(np.float32)
        played.append(Turn(observation, action, logprobs, reward=score if turn == turns - 1 else 0.0))
        start = position + len(observation)
        position = start + action_tokens
        spans.append(PolicySpan(start, position, policy))
    return Trajectory(tuple(played), tuple(spans), "terminated")
