"""Members at the same amount of training, and those that have collapsed."""

import json
import math

import pytest

from pbt_agents.scheduling.progress import Measured, Progress


@pytest.fixture
def progress():
    progress = Progress()
    for step, score in ((10, 0.3), (20, 0.4), (30, 0.5)):
        progress.add("fast", step, score, 0.03)
    progress.add("slow", 15, 0.2, 0.02)
    return progress


@pytest.mark.parametrize(("step", "score"), [(5, 0.3), (10, 0.3), (19, 0.3), (20, 0.4), (25, 0.4), (30, 0.5), (math.inf, 0.5)])
def test_a_member_that_is_ahead_is_taken_as_it_was_at_the_step(progress, step, score):
    """Before its first result, at that."""
    assert progress.at("fast", step).score == score


def test_a_member_that_is_behind_is_taken_as_it_is_and_one_without_a_result_not_at_all(progress):
    assert progress.at("slow", 30) == Measured(15, 0.2, 0.02)
    assert progress.at("nobody") is None


def test_a_clone_has_its_parents_past_up_to_the_checkpoint_and_its_own_from_there(progress):
    progress.clone("slow", "fast", 20)
    assert progress.at("slow") == Measured(20, 0.4, 0.03)
    progress.add("slow", 30, 0.1)
    assert [progress.at("slow", step).score for step in (10, 20, 30)] == [0.3, 0.4, 0.1]
    assert progress.at("fast").score == 0.5


def test_results_that_were_lost_with_a_crash_are_replaced_by_those_that_come_again(progress):
    progress.add("fast", 20, 0.35)
    assert [progress.at("fast", step).score for step in (10, 20, 30)] == [0.3, 0.35, 0.35]


@pytest.mark.parametrize(("score", "collapsed"), [(0.26, False), (0.24, True), (math.nan, True), (math.inf, True)])
def test_a_member_has_collapsed_when_it_falls_below_half_of_its_best(progress, score, collapsed):
    progress.add("fast", 40, score)
    assert progress.has_collapsed("fast", 0.5) == collapsed


def test_a_clone_that_falls_below_half_of_its_parents_best_has_collapsed(progress):
    progress.clone("slow", "fast", 30)
    progress.add("slow", 40, 0.2)
    assert progress.has_collapsed("slow", 0.5)


@pytest.mark.parametrize(("score", "collapsed"), [(0.0, True), (0.1, True), (0.2, False)])
def test_a_first_score_is_compared_with_the_first_ones_of_the_others(progress, score, collapsed):
    """Their median is 0.25."""
    progress.add("new", 10, score)
    assert progress.has_collapsed("new", 0.5) == collapsed


def test_a_member_that_had_collapsed_before_its_first_score_and_before_those_of_the_others_is_seen_later():
    progress = Progress()
    progress.add("one", 10, 0.0)
    for other in ("two", "three"):
        progress.add(other, 10, 0.4)
    progress.add("one", 16, 0.0)
    assert progress.has_collapsed("one", 0.5)


def test_a_first_score_that_nothing_can_be_compared_with_has_not_collapsed():
    progress = Progress()
    progress.add("one", 10, 0.0)
    progress.add("other", 10, 0.5)
    assert not progress.has_collapsed("one", 0.5)


def test_scores_below_zero_have_no_share_to_fall_below():
    progress = Progress()
    for step, score in ((10, -5.0), (20, -20.0)):
        progress.add("one", step, score)
    assert not progress.has_collapsed("one", 0.5)


def test_what_is_kept_for_a_resumed_run_is_the_same_and_json(progress):
    again = Progress()
    again.load_state_dict(json.loads(json.dumps(progress.state_dict())))
    assert again.at("fast", 20) == Measured(20, 0.4, 0.03)
    assert again.state_dict() == progress.state_dict()
