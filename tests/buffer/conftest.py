"""Groups small enough to check by hand."""

from collections.abc import Callable

import numpy as np
import pytest

from pbt_agents.types import Group, PolicyId, PolicySpan, Trajectory, Turn

MakeGroup = Callable[..., Group]


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
