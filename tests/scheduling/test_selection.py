"""Who copies whom, on populations small enough to rank by hand."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from pbt_agents.errors import ConfigError
from pbt_agents.scheduling.selection import Truncation

SCORES = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(allow_nan=True, allow_infinity=True), min_size=1)


def copied_by(scores, quantile_fraction=0.25, seed=0):
    """Who would copy whom if each member reported now."""
    selection, rng = Truncation(quantile_fraction), default_rng(seed)
    donors = {member: selection.donor_for(member, scores, rng) for member in scores}
    return {member: donor for member, donor in donors.items() if donor is not None}


@pytest.mark.parametrize(
    ("scores", "copied"),
    [
        ({"a": 1.0}, {}),
        ({"a": math.nan}, {}),
        ({"a": 1.0, "b": 2.0}, {"a": "b"}),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": "c"}),
        ({"a": 1.0, "b": 2.0, "c": 3.0, "d": 0.5}, {"d": "c"}),
    ],
)
def test_the_worst_copies_the_best_and_a_single_member_nobody(scores, copied):
    assert copied_by(scores) == copied


def test_of_eight_members_two_copy_and_two_are_copied():
    scores = {name: float(rank) for rank, name in enumerate("abcdefgh")}
    picked = [copied_by(scores, seed=seed) for seed in range(40)]
    assert all(set(pairs) == {"a", "b"} for pairs in picked)
    donors = Counter(pairs["a"] for pairs in picked)
    assert set(donors) == {"g", "h"}
    assert min(donors.values()) > 8


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_replaced_and_never_copied(broken):
    """B47."""
    scores = {"a": 1.0, "b": broken, "c": 3.0, "d": 2.0}
    assert copied_by(scores) == {"b": "c"}
    assert Truncation().donors(scores) == ["c"]
    assert Truncation(0.5).donors({**scores, "c": broken, "d": broken}) == ["a"]


def test_all_members_that_diverged_are_replaced_even_beyond_the_quantile():
    """B47."""
    assert copied_by({"a": math.nan, "b": math.inf, "c": 0.1, "d": math.nan}) == {"a": "c", "b": "c", "d": "c"}
    assert copied_by({"a": math.nan, "b": math.nan}) == {}


def test_no_member_counts_as_both_high_and_low():
    assert copied_by({"a": 1.0, "b": 2.0, "c": 3.0}, quantile_fraction=0.5) == {"a": "c"}


def test_equal_scores_replace_nobody():
    assert copied_by({"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5}) == {}


def test_a_quantile_of_zero_switches_copying_off():
    assert copied_by({"a": 0.1, "b": 0.9}, quantile_fraction=0.0) == {}


def test_a_quantile_above_a_half_is_refused():
    with pytest.raises(ConfigError, match=r"quantile_fraction.*0\.6"):
        Truncation(0.6)


@given(scores=SCORES, quantile_fraction=st.floats(0.0, 0.5), seed=st.integers(0, 99))
def test_every_copy_goes_from_a_higher_finite_score_and_the_elite_is_left_alone(scores, quantile_fraction, seed):
    donors = Truncation(quantile_fraction).donors(scores)
    copied = copied_by(scores, quantile_fraction, seed)
    for member, donor in copied.items():
        assert donor in donors
        assert math.isfinite(scores[donor])
        assert not scores[member] >= scores[donor] or not math.isfinite(scores[member])
    if donors:
        assert donors[0] not in copied
        assert scores[donors[0]] == max(filter(math.isfinite, scores.values()))
