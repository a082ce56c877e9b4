import math

import pytest

from pbt_agents.dashboard.pace import Pace, target_updates, time_left, updates_left_s
from pbt_agents.population import Budget


def test_ten_of_a_hundred_steps_at_two_seconds_leave_three_minutes():
    """B84."""
    pace = Pace()
    pace.result(now_s=20.0, updates=10, step_s=20.0)
    assert pace.left_s(20.0, 100) == pytest.approx(180.0, rel=0.1)


def test_the_time_between_results_counts_with_all_that_is_in_it():
    """Ten updates of 1 s, an evaluation of 5 s and a save of 1 s."""
    pace = Pace()
    pace.result(now_s=20.0, updates=10, step_s=15.0)
    pace.result(now_s=36.0, updates=20, step_s=15.0)
    assert pace.seconds_per_update == pytest.approx(31 / 20)


def test_the_start_of_a_member_is_not_taken_for_updates():
    pace = Pace()
    assert pace.result(now_s=60.0, updates=10, step_s=20.0) == 20.0
    assert pace.left_s(60.0, 20) == pytest.approx(20.0)


def test_updates_that_were_heard_of_say_how_long_the_first_result_took_without_the_start():
    """Heard of at 42 s with two updates; the other eight and the evaluation end at 58 s."""
    pace = Pace()
    for now, updates in ((10.0, 0), (42.0, 2), (50.0, 6)):
        pace.heard(now, updates)
    assert pace.result(now_s=58.0, updates=10, step_s=45.0) == pytest.approx(20.0)
    assert pace.left_s(58.0, 20) == pytest.approx(20.0)


def test_a_member_that_was_heard_of_only_at_the_end_of_its_step_is_as_slow_as_it_says():
    pace = Pace()
    pace.heard(57.0, 10)
    assert pace.result(now_s=58.0, updates=10, step_s=45.0) == 45.0


def test_only_the_last_results_count_so_that_a_slow_beginning_is_forgotten():
    pace = Pace()
    for now, updates in ((100.0, 10), (120.0, 20), (140.0, 30), (160.0, 40)):
        pace.result(now, updates, step_s=100.0)
    assert pace.seconds_per_update == pytest.approx(2.0)


def test_between_results_the_time_left_goes_down_with_the_clock_and_stands_when_the_next_is_late():
    pace = Pace()
    pace.result(20.0, 10, 20.0)
    assert [pace.left_s(now, 100) for now in (20.0, 30.0, 40.0, 500.0)] == pytest.approx([180.0, 170.0, 160.0, 160.0])


def test_a_member_without_a_step_has_no_pace():
    pace = Pace()
    assert pace.left_s(0.0, 100) is None
    pace.result(20.0, 0, 20.0)
    assert pace.left_s(20.0, 100) is None


def test_a_member_that_lost_what_it_had_reported_has_no_pace_until_it_is_back():
    """Its process was killed after a result and before the checkpoint."""
    pace = Pace()
    pace.resume(20, 30.0)
    pace.result(40.0, 20, 30.0)
    assert pace.seconds_per_update == pytest.approx(3.0)
    pace.result(50.0, 0, 30.0)
    assert pace.left_s(50.0, 100) is None


def test_a_member_stops_at_the_evaluation_after_its_last_update():
    assert [target_updates(updates, 10) for updates in (1, 10, 11, 100)] == [10, 10, 20, 100]


@pytest.mark.parametrize(
    ("budget", "left"),
    [
        (Budget(updates=100), 180.0),
        (Budget(updates=100, minutes=2), 90.0),
        (Budget(updates=100, cpu_seconds=130), 40.0),
        (Budget(updates=100, minutes=1, cpu_seconds=130), 30.0),
        (Budget(minutes=0.1), 0.0),
    ],
)
def test_the_limit_that_is_reached_first_is_the_end(budget, left):
    """After 30 s and 50 CPU seconds, two a second; the members need 180 s more."""
    assert time_left(budget, 180.0, seconds=30.0, cpu_s=50.0, cpu_per_s=2.0) == pytest.approx(left)


def test_nothing_is_said_while_nothing_is_known():
    assert time_left(Budget(updates=100), None, 30.0, 50.0, 2.0) is None
    assert time_left(Budget(cpu_seconds=100), None, 0.0, 0.0, None) is None


def paced(seconds_per_update, updates):
    pace = Pace()
    pace.resume(updates, seconds_per_update * updates)
    return pace


def test_a_population_of_one_needs_what_its_member_needs():
    assert updates_left_s([paced(2.0, 40)], [], 0.0, 100) == pytest.approx(120.0)


def test_equal_members_need_what_each_of_them_needs():
    assert updates_left_s([paced(2.0, 40)] * 3, [], 0.0, 100) == pytest.approx(120.0)


def test_a_slow_member_is_not_slow_for_ever_since_others_leave_it_what_they_used():
    """20 updates left at 4 s alone are 80 s; together, with the one that has ended at 1 s, 1.25 updates a second make it 16 s."""
    assert updates_left_s([paced(4.0, 80)], [paced(1.0, 100)], 0.0, 100) == pytest.approx(math.sqrt(80 * 16))


def test_members_without_a_pace_are_left_out_and_nobody_with_one_is_no_answer():
    assert updates_left_s([Pace(), paced(2.0, 40)], [Pace()], 0.0, 100) == pytest.approx(120.0)
    assert updates_left_s([Pace()], [paced(2.0, 100)], 0.0, 100) is None
