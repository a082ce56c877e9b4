import numpy as np
import pytest

from pbt_agents.testing.random_groups import random_group
from pbt_agents.trainer.batch import MicroBatch, micro_batches
from pbt_agents.types import PolicyId, PolicySpan, Trajectory, Turn


def turn(observation: list[int], action: list[int]) -> Turn:
    logprobs = -np.arange(1, len(action) + 1, dtype=np.float32)
    return Turn(np.array(observation, np.int32), np.array(action, np.int32), logprobs, 0.0)


def episode(*turns: Turn, versions: tuple[tuple[int, int, int], ...] = ()) -> Trajectory:
    return Trajectory(turns, tuple(PolicySpan(start, stop, PolicyId("a", 0, v)) for start, stop, v in versions), "terminated")


def one_batch(*trajectories: Trajectory, version: int = 0) -> MicroBatch:
    (batch,) = micro_batches(trajectories, [1.0] * len(trajectories), version=version, max_tokens=1000)
    return batch


def test_a_stop_token_that_equals_the_padding_is_trained_and_padding_is_not():
    """B24, B23: lengths decide. Padding and stop id are 0; the row has three tokens, the longest six."""
    batch = one_batch(episode(turn([7], [6, 0])), episode(turn([7, 7], [1, 2, 3, 0])))
    assert batch.token_ids.tolist() == [[7, 6, 0, 0, 0, 0], [7, 7, 1, 2, 3, 0]]
    assert batch.loss_mask.astype(int).tolist() == [[0, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1]]


def test_only_what_the_policy_sampled_is_trained():
    """B20: 3 model, 4 environment, 2 model tokens after the prompt -> 5 trained."""
    batch = one_batch(episode(turn([9], [1, 2, 3]), turn([8, 8, 8, 8], [4, 5])))
    assert batch.loss_mask.sum() == 5
    assert batch.behavior_logprobs.tolist() == [[0, -1, -2, -3, 0, 0, 0, 0, -1, -2]]
    assert batch.token_ids[batch.loss_mask].tolist() == [1, 2, 3, 4, 5]


def test_a_first_token_is_not_trained_since_nothing_predicts_it():
    assert one_batch(episode(turn([], [1, 2]))).loss_mask.tolist() == [[False, True]]


def test_lag_is_counted_from_the_version_that_sampled_each_token():
    """B28: a rollout of version 3 finished by version 4, trained at 6."""
    spans = ((1, 3, 3), (3, 4, 4))
    batch = one_batch(episode(turn([9], [1, 2, 3]), versions=spans), version=6)
    assert batch.lags.tolist() == [[0, 3, 3, 2]]


def test_every_token_of_an_episode_has_its_advantage():
    episodes = [episode(turn([1], [2])), episode(turn([1, 1], [2]))]
    (batch,) = micro_batches(episodes, [0.5, -1.5], version=0, max_tokens=100)
    assert batch.advantages.tolist() == [[0.5] * 3, [-1.5] * 3]


def test_batches_hold_every_episode_once_within_the_limit_shortest_first():
    group = random_group(np.random.default_rng(0), [0.0] * 12)
    batches = list(micro_batches(group.trajectories, list(range(12)), version=0, max_tokens=600))
    assert len(batches) > 1
    assert all(batch.token_ids.size <= 600 for batch in batches)
    assert [batch.token_ids.shape[1] for batch in batches] == sorted(batch.token_ids.shape[1] for batch in batches)
    assert sorted(np.concatenate([batch.advantages[:, 0] for batch in batches])) == list(range(12))
    assert sum(int(batch.loss_mask.sum()) for batch in batches) == group.action_tokens


def test_an_episode_longer_than_the_limit_goes_alone():
    short, long = episode(turn([1], [2])), episode(turn([1], [2] * 9))
    shapes = [batch.token_ids.shape for batch in micro_batches([long, short], [1.0, 1.0], version=0, max_tokens=4)]
    assert shapes == [(1, 2), (1, 10)]


@pytest.mark.parametrize("field", ["token_ids", "loss_mask", "behavior_logprobs", "advantages", "lags"])
def test_equal_input_gives_equal_batches(field: str):
    group = random_group(np.random.default_rng(0), [0.0] * 6)
    first, second = (micro_batches(group.trajectories, [1.0] * 6, version=2, max_tokens=500) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field))


CURRENT = PolicyId("a", 0, 4)
ONE_TURN = turn([9], [1, 2])


@pytest.mark.parametrize(
    ("policies", "counts"),
    [
        ([CURRENT, CURRENT], 3),
        ([PolicyId("a", 0, 3), CURRENT], 0),  # the later turn was sampled by it, after a context that was not
        ([PolicyId("a", 1, 4), PolicyId("a", 1, 4)], 0),  # the same version of another line of descent has other weights
    ],
)
def test_on_policy_is_what_the_current_policy_played_from_first_to_last(policies: list[PolicyId], counts: int):
    spans = (PolicySpan(1, 3, policies[0]), PolicySpan(4, 5, policies[1]))
    trajectory = Trajectory((ONE_TURN, turn([9], [3])), spans, "terminated")
    (batch,) = micro_batches([trajectory], [1.0], version=4, max_tokens=9, current=CURRENT)
    assert batch.on_policy.sum() == counts
    assert not (batch.on_policy & ~batch.loss_mask).any()


def test_without_a_current_policy_no_token_is_on_policy():
    assert not one_batch(episode(ONE_TURN, versions=((1, 3, 4),)), version=4).on_policy.any()


def test_what_was_sampled_ahead_on_a_branch_that_was_given_up_is_as_far_away_as_it_is_ahead():
    """A restore goes back to version 4, and what versions 6 and 3 played is still there."""
    batch = one_batch(episode(turn([9], [1, 2]), versions=((1, 2, 6), (2, 3, 3))), version=4)
    assert batch.lags.tolist() == [[0, 2, 1]]
