"""Products of learning rate and lag that were stable, those that were not, and values that are kept among the former."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from pbt_agents.errors import ConfigError
from pbt_agents.scheduling.mutation import Perturbation
from pbt_agents.scheduling.stability import Stability, StabilityBudget
from pbt_agents.search_space import Ladder, LinearRange, LogRange

SPACE = {"learning_rate": LogRange(1e-4, 1e-2), "ratio_max": LinearRange(1.5, 8.0), "window": Ladder((1, 2, 4, 8, 16))}


def seen(stable=(), collapsed=(), window=4, lag=1.0):
    """Products, as of members that all had this lag."""
    stability = Stability(StabilityBudget())
    for products, fell in ((stable, False), (collapsed, True)):
        for product in products:
            stability.observe({"learning_rate": product / (1 + lag), "window": window}, lag, fell)
    return stability


@pytest.mark.parametrize(
    ("stable", "collapsed", "limit"),
    [
        ([], [], math.inf),
        ([1.0, 2.0, 4.0], [], math.inf),
        ([1.0, 2.0, 4.0], [9.0], 6.0),  # sqrt(4 * 9)
        ([1.0, 4.0], [9.0, 100.0], 6.0),
        ([], [9.0, 10.0], 4.5),  # half of the lowest: nothing is known below it
        ([1.0, 2.0, 4.0, 16.0], [3.0, 64.0, 65.0], 32.0),  # one collapse at 3 has another reason: more were stable above it
        ([1.0, 3.0, 4.0], [2.0], math.inf),
    ],
)
def test_the_limit_parts_what_was_stable_from_what_collapsed(stable, collapsed, limit):
    assert seen(stable, collapsed).limit == pytest.approx(limit)


def test_products_are_of_the_lag_as_it_was_measured():
    stability = Stability(StabilityBudget(rate="rate", lag="age"))
    stability.observe({"rate": 0.1, "window": 4}, 1.0, collapsed=False)
    stability.observe({"rate": 0.1, "window": 16}, 8.0, collapsed=True)
    assert stability.limit == pytest.approx(math.sqrt(0.2 * 0.9))


@pytest.mark.parametrize("lag", [None, math.nan])
def test_a_result_without_a_lag_tells_nothing(lag):
    stability = Stability(StabilityBudget())
    stability.observe({"learning_rate": 1e-2, "window": 4}, lag, collapsed=True)
    assert stability.limit == math.inf


@pytest.mark.parametrize(("window", "lag"), [(4, 1.5), (8, 3.0), (1, 0.6), (16, 5.1), (2, 0.9)])
def test_the_lag_of_a_window_is_its_mean_or_the_nearest_ones_in_proportion(window, lag):
    """Window 4 has shown 1 and 2, window 8 has shown 3; 16 is taken as 3 * 17 / 9 = 5.67, and so on."""
    stability = Stability(StabilityBudget())
    for known, measured in ((4, 1.0), (4, 2.0), (8, 3.0)):
        stability.observe({"learning_rate": 1e-3, "window": known}, measured, collapsed=False)
    expected = {16: 3.0 * 17 / 9, 1: 1.5 * 2 / 5, 2: 1.5 * 3 / 5}.get(window, lag)
    assert stability.expected_lag(window) == pytest.approx(expected)


def test_a_lag_is_never_expected_beyond_its_window():
    stability = Stability(StabilityBudget())
    stability.observe({"learning_rate": 1e-3, "window": 1}, 0.9, collapsed=False)
    assert stability.expected_lag(0) == 0.0


def test_values_within_the_limit_are_left_as_they_are():
    values = {"learning_rate": 2e-3, "ratio_max": 3.0, "window": 4}
    assert seen([4e-3], [9e-3]).within(values, SPACE) == values


def test_values_over_the_limit_get_a_lower_rate():
    """The limit is 6e-3, the lag 1."""
    values = {"learning_rate": 8e-3, "ratio_max": 3.0, "window": 4}
    assert seen([4e-3], [9e-3]).within(values, SPACE) == {**values, "learning_rate": pytest.approx(3e-3)}


def test_where_the_lowest_rate_is_over_the_limit_the_window_shrinks_too():
    """Limit 6e-4; the lag of window 16 is 6.8 * 17 / 5 / ... in proportion to what window 4 has shown, 2: at 1 it is 0.8."""
    stability = seen([4e-4], [9e-4], window=4, lag=2.0)
    space = {**SPACE, "learning_rate": LogRange(3e-4, 1e-2)}
    scaled = stability.within({"learning_rate": 5e-3, "ratio_max": 3.0, "window": 16}, space)
    assert scaled == {"learning_rate": pytest.approx(6e-4 / 1.8), "ratio_max": 3.0, "window": 1}


def test_what_cannot_be_brought_within_the_limit_is_the_nearest_to_it():
    space = {**SPACE, "learning_rate": LogRange(5e-3, 1e-2)}
    scaled = seen([1e-4], [2e-4]).within({"learning_rate": 8e-3, "ratio_max": 3.0, "window": 8}, space)
    assert (scaled["learning_rate"], scaled["window"]) == (5e-3, 1)


def test_a_rate_that_is_not_searched_is_left_alone():
    space = {"ratio_max": SPACE["ratio_max"]}
    assert seen([1e-4], [2e-4]).within({"ratio_max": 3.0}, space) == {"ratio_max": 3.0}


def test_ten_thousand_mutations_keep_range_type_and_budget():
    """B45: a line of clones, each of the one before, under a limit of sqrt(2e-3 * 8e-3) = 4e-3."""
    stability = Stability(StabilityBudget())
    for window in (1, 2, 4, 8, 16):
        stability.observe({"learning_rate": 2e-3 / (1 + 0.4 * window), "window": window}, 0.4 * window, collapsed=False)
    stability.observe({"learning_rate": 8e-3 / 2.6, "window": 4}, 1.6, collapsed=True)
    assert stability.limit == pytest.approx(4e-3)
    rng, now, scaled_back = default_rng(0), {"learning_rate": 1e-3, "ratio_max": 5.0, "window": 4}, 0
    for _ in range(10_000):
        proposed = Perturbation()(now, SPACE, rng)
        now = stability.within(proposed, SPACE)
        scaled_back += now != proposed
        assert all(domain.clip(now[name]) == now[name] for name, domain in SPACE.items())
        assert {name: type(value) for name, value in now.items()} == {"learning_rate": float, "ratio_max": float, "window": int}
        assert now["learning_rate"] * (1 + 0.4 * now["window"]) <= 4e-3 * (1 + 1e-9)
        assert now["ratio_max"] == proposed["ratio_max"]
    assert 1_000 < scaled_back < 9_000


@given(
    products=st.lists(st.tuples(st.floats(1e-5, 1.0), st.booleans()), max_size=30),
    rate=st.floats(1e-4, 1e-2),
    window=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_scaling_back_never_raises_a_rate_or_a_window(products, rate, window):
    stability = seen([product for product, fell in products if not fell], [product for product, fell in products if fell])
    values = {"learning_rate": rate, "ratio_max": 2.0, "window": window}
    scaled = stability.within(values, SPACE)
    assert scaled["learning_rate"] <= rate
    assert scaled["window"] <= window
    if scaled != values:
        assert scaled["learning_rate"] * (1 + stability.expected_lag(scaled["window"])) < rate * (1 + stability.expected_lag(window))


def test_what_is_kept_for_a_resumed_run_is_the_same_and_json():
    stability, again = seen([4e-3], [9e-3]), Stability(StabilityBudget())
    again.load_state_dict(json.loads(json.dumps(stability.state_dict())))
    assert (again.limit, again.expected_lag(4)) == (stability.limit, stability.expected_lag(4))


def test_only_the_newest_products_are_remembered():
    stability = seen([1.0] * 1500, [4.0])
    assert len(stability.state_dict()["stable"]) == 1000


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_that_tells_nothing_is_refused(share):
    with pytest.raises(ConfigError, match="collapse_share must lie in"):
        StabilityBudget(collapse_share=share)
