"""Who copies whom, on populations small enough to rank by hand."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from pbt_agents.errors import ConfigError
from pbt_agents.scheduling.selection import MultiFrequency, Standing, Tournament, Truncation, certainty, ranking

SCORES = st.dictionaries(st.sampled_from("abcdefgh"), st.floats(allow_nan=True, allow_infinity=True), min_size=1)


def standings(scores, error=0.0):
    return {member: Standing(score, error, place) for place, (member, score) in enumerate(scores.items())}


def copied_by(scores, quantile_fraction=0.25, seed=0):
    """Who would copy whom by truncation if each member reported now."""
    return copied(Truncation(quantile_fraction), standings(scores), seed=seed)


def copied(selection, standings, interval=1, seed=0):
    rng = default_rng(seed)
    donors = {member: selection.donor_for(member, standings, interval, rng) for member in standings}
    return {member: donor for member, donor in donors.items() if donor is not None}


@pytest.mark.parametrize(
    ("scores", "pairs"),
    [
        ({"a": 1.0}, {}),
        ({"a": math.nan}, {}),
        ({"a": 1.0, "b": 2.0}, {"a": "b"}),
        ({"a": 1.0, "b": 2.0, "c": 3.0}, {"a": "c"}),
        ({"a": 1.0, "b": 2.0, "c": 3.0, "d": 0.5}, {"d": "c"}),
    ],
)
def test_the_worst_copies_the_best_and_a_single_member_nobody(scores, pairs):
    assert copied_by(scores) == pairs


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
    assert Truncation().donors(standings(scores)) == ["c"]
    assert Truncation(0.5).donors(standings({**scores, "c": broken, "d": broken})) == ["a"]


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
    donors = Truncation(quantile_fraction).donors(standings(scores))
    pairs = copied_by(scores, quantile_fraction, seed)
    for member, donor in pairs.items():
        assert donor in donors
        assert math.isfinite(scores[donor])
        assert not scores[member] >= scores[donor] or not math.isfinite(scores[member])
    if donors:
        assert donors[0] not in pairs
        assert scores[donors[0]] == max(filter(math.isfinite, scores.values()))


@pytest.mark.parametrize(
    ("one", "other", "probability"),
    [
        (Standing(0.5), Standing(0.4), 1.0),
        (Standing(0.5), Standing(0.5), 0.0),
        (Standing(0.5, math.nan), Standing(0.4, math.nan), 1.0),
        (Standing(0.55, 0.05), Standing(0.5, 0.0), 0.84134),  # one error: nothing to compare the spread with
        (Standing(0.1, 0.1), Standing(math.nan, 0.1), 1.0),
        (Standing(math.inf, 0.1), Standing(0.1, 0.1), 0.0),
        (Standing(math.nan), Standing(math.nan), 0.0),
        (Standing(0.6, 0.1), Standing(0.5, 0.1), 0.0),  # a spread of 0.005 is less than the noise of 0.01: they count as equal
        # A spread of 0.02 beyond a noise of 0.01 draws each to the mean by a third, with errors of 0.1 * sqrt(2/3): 1.63 errors apart.
        (Standing(0.5 + math.sqrt(0.06), 0.1), Standing(0.5, 0.1), 0.92135),
        (Standing(0.5, 0.1), Standing(0.5 + math.sqrt(0.06), 0.1), 0.07865),
    ],
)
def test_how_sure_it_is_that_one_is_better_follows_from_both_errors_and_the_spread(one, other, probability):
    """Worked out by hand; values of the normal distribution are from a table."""
    assert certainty("one", "other", {"one": one, "other": other}) == pytest.approx(probability, abs=1e-5)


@pytest.mark.parametrize(("gap", "error"), [(1e308, 1e300), (0.0, 1e-300), (1e-300, 1e-300), (1e200, 1.0)])
def test_numbers_beyond_measure_are_judged_all_the_same(gap, error):
    four = {"a": Standing(gap, error), "b": Standing(0.0, error), "c": Standing(-gap, error), "d": Standing(math.nan, error)}
    assert 0.0 <= certainty("a", "c", four) <= 1.0


def test_luck_among_equals_is_not_taken_for_certainty():
    """Of twenty equal members the best is far above the worst, and yet not surely better; among members that differ it is."""
    rng = default_rng(0)
    equal = {f"m{number}": Standing(rng.normal(0.5, 0.05), 0.05) for number in range(20)}
    differing = {f"m{number}": Standing(rng.normal(0.3 + 0.02 * number, 0.05), 0.05) for number in range(20)}
    for members, sure in ((equal, False), (differing, True)):
        ranked = ranking(members)
        assert members[ranked[0]].score - members[ranked[-1]].score > 0.15
        assert (certainty(ranked[0], ranked[-1], members) > 0.95) == sure


@pytest.mark.parametrize(("confidence", "pairs"), [(0.0, {"d": "a"}), (0.87, {"d": "a"}), (0.88, {})])
@pytest.mark.parametrize("strategy", [Truncation, Tournament])
def test_a_member_is_replaced_only_when_its_donor_is_better_for_sure(strategy, confidence, pairs):
    """0.876 sure: a spread of 0.01501, of which 0.01 is noise, leaves a weight of 0.334, and 2 * sqrt(0.334) = 1.156 errors."""
    four = standings({"a": 1.0 + 2 * 0.1 * math.sqrt(2), "b": 1.2, "c": 1.1, "d": 1.0}, error=0.1)
    selection = Truncation(0.25, confidence) if strategy is Truncation else Tournament(3, confidence)
    assert {member: donor for member, donor in copied(selection, four).items() if member == "d"} == pairs


def test_noise_alone_seldom_replaces_anybody_who_is_asked_to_be_sure():
    """Of four equal members one is replaced each time by the scores as they are."""
    rng, counts = default_rng(0), Counter()
    for _ in range(400):
        four = {name: Standing(rng.normal(0.5, 0.05), 0.05) for name in "abcd"}
        counts["plain"] += len(copied(Truncation(), four))
        counts["sure"] += len(copied(Truncation(confidence=0.95), four))
    assert counts["plain"] == 400
    assert counts["sure"] < 0.1 * 400


def test_whoever_diverged_is_replaced_whatever_confidence_is_asked_for():
    for selection in (Truncation(confidence=0.999), Tournament(3, confidence=0.999), MultiFrequency((1, 2), Truncation(0.5, 0.999))):
        assert copied(selection, standings({"a": 0.5, "b": 0.4, "c": math.nan, "d": 0.3}, error=0.2))["c"] in "abd"


def test_in_a_tournament_with_everybody_all_but_the_best_copy_it():
    assert copied(Tournament(3), standings({"a": 1.0, "b": 2.0, "c": 3.0, "d": 0.5})) == {"a": "c", "b": "c", "d": "c"}


def test_in_a_tournament_of_two_a_member_copies_its_rival_when_that_is_better():
    """The worst of four always meets a better one, the second one only with probability 1/3."""
    four = standings({"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0})
    seen = [copied(Tournament(1), four, seed=seed) for seed in range(300)]
    assert all("a" not in pairs and "d" in pairs for pairs in seen)
    assert 70 < sum("b" in pairs for pairs in seen) < 130
    assert {pairs["d"] for pairs in seen} == {"a", "b", "c"}


SIX = {"a": 0.1, "b": 0.2, "c": 0.3, "d": 0.4, "e": 0.5, "f": 0.6}
"""Of periods 1, 2 and 4 there are a and d, b and e, c and f."""


@pytest.mark.parametrize(
    ("interval", "pairs"),
    [(1, {"a": "f"}), (2, {"a": "f", "b": "f"}), (3, {"a": "f"}), (4, {"a": "f", "b": "f", "c": "f"})],
)
def test_sub_populations_are_judged_at_their_own_intervals_and_copy_from_slower_ones(interval, pairs):
    assert copied(MultiFrequency(), standings(SIX), interval) == pairs


def test_a_slower_sub_population_never_copies_from_a_faster_one():
    """The best of all are the fast ones, a and d."""
    six = standings({"a": 0.9, "b": 0.2, "c": 0.3, "d": 0.8, "e": 0.5, "f": 0.6})
    assert copied(MultiFrequency(), six, interval=4) == {"d": "a", "b": "f", "c": "f"}


def test_a_member_that_has_ended_leaves_the_others_in_their_sub_populations():
    five = {name: one for name, one in standings(SIX).items() if name != "d"}
    assert copied(MultiFrequency(), five, interval=2) == {"a": "f", "b": "f"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Truncation(confidence=1.0), "confidence is a probability"),
        (lambda: Tournament(0), "rivals must be at least 1"),
        (lambda: Tournament(confidence=-0.1), "confidence is a probability"),
        (lambda: MultiFrequency((1,)), "periods must be"),
        (lambda: MultiFrequency((2, 1)), "periods must be"),
        (lambda: MultiFrequency((0, 1)), "periods must be"),
        (lambda: MultiFrequency(within=0.5), "within must be a Truncation, got 0.5"),
    ],
)
def test_settings_that_cannot_work_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@given(
    scores=st.dictionaries(st.sampled_from("abcdefgh"), st.floats(allow_nan=True, allow_infinity=True), min_size=1),
    error=st.floats(0, 1),
    interval=st.integers(1, 8),
    selection=st.sampled_from([Truncation(0.5, 0.8), Tournament(2), Tournament(3, 0.9), MultiFrequency(), MultiFrequency((1, 3))]),
    seed=st.integers(0, 99),
)
def test_whatever_the_strategy_a_donor_is_finite_and_higher_keeps_a_snapshot_and_the_elite_is_left_alone(
    scores, error, interval, selection, seed
):
    members = standings(scores, error)
    pairs = copied(selection, members, interval, seed)
    for member, donor in pairs.items():
        assert math.isfinite(scores[donor])
        assert not scores[member] >= scores[donor] or not math.isfinite(scores[member])
        assert donor in selection.donors(members)
    finite = [score for score in scores.values() if math.isfinite(score)]
    assert not any(scores[member] == max(finite) for member in pairs if math.isfinite(scores[member]))
