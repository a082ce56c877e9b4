import numpy as np

from pbt_agents.types import Group, PolicyId, PolicySpan, Trajectory, Turn


def turn(observation, action, logprobs, reward):
    return Turn(np.array(observation, np.int32), np.array(action, np.int32), np.array(logprobs, np.float32), reward)


def trajectory(rewards=(0.5, 0.25), versions=(3, 4)):
    turns = (turn([1, 2, 3], [7, 8], [-0.1, -0.2], rewards[0]), turn([4], [9, 8], [-0.3, -0.4], rewards[1]))
    spans = (PolicySpan(3, 5, PolicyId("agent0", 0, versions[0])), PolicySpan(6, 8, PolicyId("agent0", 0, versions[1])))
    return Trajectory(turns, spans, "terminated")


def test_tokens_mask_and_logprobs_of_a_trajectory_line_up():
    """B20: environment tokens are valid, and never trained on."""
    episode = trajectory()
    np.testing.assert_array_equal(episode.token_ids, [1, 2, 3, 7, 8, 4, 9, 8])
    np.testing.assert_array_equal(episode.loss_mask, [0, 0, 0, 1, 1, 0, 1, 1])
    np.testing.assert_array_equal(episode.behavior_logprobs, np.array([0, 0, 0, -0.1, -0.2, 0, -0.3, -0.4], np.float32))
    assert episode.score == 0.75


def test_a_turn_without_verdict_leaves_the_episode_without_score():
    """B06: no verdict is not reward 0."""
    assert np.isnan(trajectory(rewards=(0.5, float("nan"))).score)


def test_a_group_is_as_old_as_its_oldest_trained_token():
    """B28: the stamp is the smallest version of any span."""
    group = Group("g", "sudoku:tiny", 1, (trajectory(versions=(5, 6)), trajectory(versions=(6, 4))))
    assert group.oldest_version == 4
    assert group.action_tokens == 8
