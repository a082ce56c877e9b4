"""Mutations stay inside their ranges, keep types and cancel."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from pbt_agents.errors import ConfigError
from pbt_agents.scheduling.mutation import Perturbation
from pbt_agents.search_space import Ladder, LinearRange, LogRange

SPACE = {"learning_rate": LogRange(1e-6, 1e-3), "ratio_max": LinearRange(1.5, 8.0), "window": Ladder((1, 2, 4, 8))}
STEPS_ONLY = Perturbation(resample_probability=0.0)

values = st.fixed_dictionaries(
    {"learning_rate": st.floats(1e-6, 1e-3), "ratio_max": st.floats(1.5, 8.0), "window": st.sampled_from([1, 2, 4, 8])}
)


def test_a_step_stops_at_the_bound():
    """B45."""
    assert Perturbation(factor=1.2).step(9.5e-4, LogRange(1e-6, 1e-3), up=True) == 1e-3
    assert Perturbation(span_fraction=0.1).step(7.9, LinearRange(1.5, 8.0), up=True) == 8.0
    assert Perturbation().step(8, Ladder((1, 2, 4, 8)), up=True) == 8


def test_steps_have_the_configured_size():
    assert Perturbation(factor=1.25).step(1e-4, LogRange(1e-6, 1e-3), up=True) == pytest.approx(1.25e-4)
    assert Perturbation(factor=1.25).step(1e-4, LogRange(1e-6, 1e-3), up=False) == pytest.approx(8e-5)
    assert Perturbation(span_fraction=0.1).step(0.0, LinearRange(-1.0, 1.0), up=False) == pytest.approx(-0.2)


@pytest.mark.parametrize(("rung", "neighbours"), [(1, {1, 2}), (2, {1, 4}), (4, {2, 8}), (8, {4, 8})])
def test_a_ladder_moves_to_a_neighbour(rung, neighbours):
    """B45."""
    rng = default_rng(0)
    space = {"window": SPACE["window"], "learning_rate": SPACE["learning_rate"]}
    moved = {STEPS_ONLY({"window": rung, "learning_rate": 1e-4}, space, rng)["window"] for _ in range(60)}
    assert moved == neighbours


@given(start=values, seed=st.integers(0, 10_000))
def test_mutated_values_stay_in_range_keep_their_types_and_differ(start, seed):
    """B45."""
    new = Perturbation()(start, SPACE, default_rng(seed))
    assert list(new) == list(SPACE)
    assert all(domain.clip(new[name]) == new[name] for name, domain in SPACE.items())
    assert {name: type(value) for name, value in new.items()} == {"learning_rate": float, "ratio_max": float, "window": int}
    assert new != start


def test_a_thousand_mutations_in_a_row_stay_in_range_and_do_not_drift():
    """B45. Ray's factors 1.2 and 0.8 lose 0.020 of the logarithm a step: 64 % after 50 steps."""
    space, ends = {"learning_rate": LogRange(1e-30, 1e30)}, []
    for seed in range(200):
        rng, now = default_rng(seed), {"learning_rate": 1.0}
        for _ in range(50):
            now = STEPS_ONLY(now, space, rng)
        ends.append(math.log(now["learning_rate"]))
    assert abs(sum(ends) / len(ends)) < 3 * math.log(1.25) * math.sqrt(50 / len(ends))
    rng, now = default_rng(0), {"learning_rate": 9.5e-4, "ratio_max": 7.9, "window": 8}
    for _ in range(1000):
        now = Perturbation()(now, SPACE, rng)
        assert all(domain.clip(now[name]) == now[name] for name, domain in SPACE.items())


def test_a_value_at_its_bound_still_moves_when_nothing_else_does():
    for seed in range(20):
        assert STEPS_ONLY({"window": 8}, {"window": Ladder((1, 2, 4, 8))}, default_rng(seed)) == {"window": 4}
        assert STEPS_ONLY({"rate": 1.0}, {"rate": LogRange(1e-3, 1.0)}, default_rng(seed)) == {"rate": 0.8}


def test_a_donors_value_outside_the_range_is_brought_into_it():
    new = STEPS_ONLY({"learning_rate": 1.0, "ratio_max": 0.0, "window": 7}, SPACE, default_rng(0))
    assert new["learning_rate"] in (1e-3, 8e-4)
    assert new["ratio_max"] in (1.5, 2.15)
    assert new["window"] in (4, 8)


def test_resampling_reaches_the_whole_range_as_often_as_asked():
    rng = default_rng(0)
    perturb, space = Perturbation(resample_probability=0.25), {"learning_rate": SPACE["learning_rate"]}
    rates = [perturb({"learning_rate": 3e-5}, space, rng)["learning_rate"] for _ in range(2000)]
    far = [rate for rate in rates if not 2e-5 < rate < 4e-5]
    assert 0.18 < len(far) / 2000 < 0.27
    assert min(far) < 2e-6
    assert max(far) > 5e-4


def test_equal_generators_give_equal_mutations():
    start = {"learning_rate": 1e-4, "ratio_max": 5.0, "window": 4}
    assert Perturbation()(start, SPACE, default_rng(7)) == Perturbation()(start, SPACE, default_rng(7))


@pytest.mark.parametrize("settings", [{"factor": 1.0}, {"span_fraction": 0.0}, {"resample_probability": 1.5}])
def test_settings_that_cannot_work_are_refused(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        Perturbation(**settings)
