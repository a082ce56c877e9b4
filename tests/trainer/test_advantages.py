import math
from dataclasses import replace

import numpy as np
import pytest

from pbt_agents.config import RolloutConfig
from pbt_agents.errors import ConfigError, GuardError
from pbt_agents.testing.random_groups import random_group
from pbt_agents.trainer.advantages import draw_lesson, group_advantages, skip_reason
from pbt_agents.types import Group

KINDS = ("group_centered", "group_standardized")


def group(*scores: float) -> Group:
    return random_group(np.random.default_rng(0), scores, turns=1)


def test_centered_subtracts_the_mean_and_standardized_divides_by_the_population_deviation():
    scores = np.array([0.0, 0.0, 0.0, 1.0], np.float32)
    assert group_advantages(scores, "group_centered").tolist() == [-0.25, -0.25, -0.25, 0.75]
    expected = np.array([-1.0, -1.0, -1.0, 3.0]) / math.sqrt(3)  # deviation sqrt(3) / 4
    np.testing.assert_allclose(group_advantages(scores, "group_standardized"), expected, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scores", [[0.5, 0.5, 0.5, 0.5], [1.0, 1.0, 1.0, 1.0000001], [1e6, 1e6 + 0.5]])
def test_equal_scores_give_exactly_zero(scores: list[float], kind: str):
    """B01."""
    assert group_advantages(np.array(scores), kind).tolist() == [0.0] * len(scores)


def test_groups_of_equal_scores_are_skipped_and_counted_by_reason():
    """B01."""
    groups = [group(1, 1, 1, 1.0000001), group(0, 0), group(-0.1, -0.1), group(0.5, 0.5, 0.5, 0.5), group(0, 1)]
    lesson = draw_lesson(groups, "group_standardized")
    assert lesson.skipped == {"solved": 1, "failed": 2, "other": 1, "too_few": 0}
    assert lesson.trajectories == groups[4].trajectories
    assert lesson.advantages == (-1.0, 1.0)


@pytest.mark.parametrize("scores", [[3.0], [3.0, math.nan], []])
def test_a_group_that_shrank_to_one_is_dropped(scores: list[float]):
    """B02: never NaN, never 3."""
    assert skip_reason(np.array(scores)) == "too_few"
    assert group_advantages(np.array(scores), "group_centered").tolist() == [0.0] * len(scores)


def test_group_size_one_is_refused_by_name():
    """B02."""
    with pytest.raises(ConfigError, match="group_size must be at least 2"):
        RolloutConfig(group_size=1)


def test_one_odd_score_does_not_explode():
    """B03: the odd one of eight is sqrt(7) deviations away; single precision with E[x^2] - E[x]^2 gives thousands."""
    advantages = group_advantages(np.array([0.3] * 7 + [0.95], np.float32), "group_standardized")
    np.testing.assert_allclose(advantages[-1], math.sqrt(7), rtol=1e-9)


def test_differences_under_the_floor_are_not_blown_up():
    """B03: scores 1 + 1e-5 i deviate by 2.29e-5, divided by the floor of 1e-4; a plain loop agrees."""
    scores = [1 + 1e-5 * i for i in range(8)]
    mean = math.fsum(scores) / 8
    expected = [(score - mean) / 1e-4 for score in scores]
    np.testing.assert_allclose(group_advantages(np.array(scores), "group_standardized"), expected, atol=1e-6)


def test_a_score_without_verdict_leaves_the_statistics_alone():
    """B06: [1, None, 0, 1] has mean 2/3."""
    advantages = group_advantages(np.array([1, math.nan, 0, 1]), "group_centered")
    np.testing.assert_allclose(advantages, [1 / 3, 0, -2 / 3, 1 / 3], atol=1e-12)
    assert group_advantages(np.array([1, math.inf, 0, 1]), "group_centered")[1] == 0


def test_episodes_without_verdict_are_left_out_and_counted():
    """B06."""
    scored = group(1, math.nan, 0, 1)
    lesson = draw_lesson([scored], "group_centered")
    assert lesson.unscored == 1
    assert lesson.trajectories == tuple(scored.trajectories[i] for i in (0, 2, 3))
    assert lesson.advantages == pytest.approx((1 / 3, -2 / 3, 1 / 3))


def test_a_batch_mostly_without_verdict_stops_the_run():
    """B06."""
    with pytest.raises(GuardError, match="3 of 4 episodes have no verdict"):
        draw_lesson([group(math.nan, math.nan), group(math.nan, 1)], "group_centered")


@pytest.mark.parametrize("kind", KINDS)
def test_an_easy_task_and_a_hard_one_are_judged_alike(kind: str):
    """B09: A = [1, 0] and B = [11, 10]."""
    easy, hard = group(11, 10), group(1, 0)
    lesson = draw_lesson([easy, hard], kind)
    assert lesson.advantages[:2] == lesson.advantages[2:]


def test_order_of_groups_and_rows_changes_nothing_but_the_order():
    """B09."""
    first, second = group(0.0, 0.25, 1.0), group(0.5, 0.0, 0.0)
    shuffled = replace(first, trajectories=first.trajectories[::-1])
    plain, mixed = draw_lesson([first, second], "group_standardized"), draw_lesson([second, shuffled], "group_standardized")
    assert dict(zip(map(id, plain.trajectories), plain.advantages, strict=True)) == pytest.approx(
        dict(zip(map(id, mixed.trajectories), mixed.advantages, strict=True))
    )


def test_shuffled_advantages_are_those_of_the_group_and_say_nothing_of_an_attempt():
    """Over many tasks the best attempt gets every advantage equally often: 1 of 4 within three standard errors, 0.05."""
    scores = (1.0, 0.5, 0.25, 0.0)
    groups = [replace(group(*scores), seed=seed) for seed in range(800)]
    lesson = draw_lesson(groups, "group_shuffled")
    dealt = np.array(lesson.advantages).reshape(-1, 4)
    own = group_advantages(np.array(scores), "group_standardized")
    np.testing.assert_array_equal(np.sort(dealt, axis=1), np.tile(np.sort(own), (800, 1)))
    assert lesson.trajectories == draw_lesson(groups, "group_standardized").trajectories
    assert lesson.advantages == draw_lesson(groups, "group_shuffled").advantages
    for advantage in own:
        assert np.mean(dealt[:, 0] == advantage) == pytest.approx(0.25, abs=0.05)


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="got 'gae'"):
        group_advantages(np.array([0.0, 1.0]), "gae")
