"""Groups small enough to check by hand, and buffers that are closed at the end."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pbt_agents.buffer.replay import ReplayBuffer
from pbt_agents.config import BufferConfig
from pbt_agents.types import Group, PolicyId, PolicySpan, Trajectory, Turn

MakeGroup = Callable[..., Group]
OpenBuffer = Callable[..., ReplayBuffer]

ONE_EACH = BufferConfig(window=2, segment_groups=1)
"""Every group a file of its own, so that files can be counted."""


@pytest.fixture(scope="session")
def make_group() -> MakeGroup:
    """group_id, version, trajectories, tokens per action -> a group of one-turn episodes, its tokens drawn from the id."""

    def make(group_id: str = "g0", version: int = 0, size: int = 2, tokens: int = 3) -> Group:
        rng = np.random.default_rng(list(group_id.encode()))

        def trajectory() -> Trajectory:
            turn = Turn(
                observation_ids=rng.integers(0, 99, 2, np.int32),
                action_ids=rng.integers(0, 99, tokens, np.int32),
                behavior_logprobs=-rng.random(tokens, np.float32),
                reward=rng.random(),
            )
            return Trajectory((turn,), (PolicySpan(2, 2 + tokens, PolicyId("a", 1, version)),), "terminated", {"solved": 1.0}, 0.5)

        return Group(group_id, "sudoku:tiny", 7, tuple(trajectory() for _ in range(size)))

    return make


@pytest.fixture
def open_buffer() -> Iterator[OpenBuffer]:
    """folder, config, groups per batch, version -> a buffer."""
    buffers: list[ReplayBuffer] = []

    def open_one(folder: Path, config: BufferConfig = ONE_EACH, groups_per_batch: int = 2, version: int = 0) -> ReplayBuffer:
        buffers.append(ReplayBuffer(folder, config, groups_per_batch, version))
        return buffers[-1]

    yield open_one
    for buffer in buffers:
        buffer.close()
