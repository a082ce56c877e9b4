"""The simulated agents, their fit to recorded runs, and the strategies on them."""

import json
import math
from dataclasses import replace

import pytest
from _dynamics import Dynamics, Learner
from _simulated import Ledger, Population, Task, halving, one_agent, random_search
from fit_surrogate import Interval, collapsed, fit, predicted, read_intervals, recorded, write_intervals
from numpy.random import default_rng
from simulate_search import STARTS, STRATEGIES, Args, main, run, summary

from pbt_agents.errors import ConfigError
from pbt_agents.scheduling.selection import Truncation
from pbt_agents.search_space import LinearRange, LogRange, search_space

SPACE = {"learning_rate": LogRange(1e-4, 1e-2), "ratio_max": LinearRange(1.5, 8.0), "window": [1, 4]}


@pytest.fixture
def dynamics():
    """At a rate of 1e-3, lag 0: 0.08 * 1/2 = 0.04 of what lacks to 0.60 in each step."""
    return Dynamics(0.3, 0.63, 0.03, 0.08, 1e-3, 0.5, 0.02, 4.0, {1: 0.0, 4: 2.0}, 0.0)


def task(dynamics, steps=400):
    space = search_space(SPACE)
    return Task(dynamics, space, space, steps)


# One agent.


def test_a_step_goes_a_share_of_the_way_to_the_ceiling_of_its_rate(dynamics):
    assert dynamics.step(0.3, 1e-3, 0.0) == pytest.approx(0.3 + 0.04 * (0.60 - 0.3))


def test_stale_experience_teaches_less(dynamics):
    """1 / (1 + 0.5 * 2) = 1/2."""
    assert dynamics.step(0.3, 1e-3, 2.0) == pytest.approx(0.3 + 0.02 * (0.60 - 0.3))


def test_above_the_ceiling_of_its_rate_a_score_falls(dynamics):
    """3e-3 has the ceiling 0.63 - 3 * 0.03 = 0.54."""
    assert dynamics.step(0.6, 3e-3, 0.0) == pytest.approx(0.6 + 0.08 * 0.75 * (0.54 - 0.6))


def test_half_collapse_within_ten_steps_at_the_limit_and_few_below_it(dynamics):
    """2e-2 = 5e-3 * (1 + 3). Half of it has the hazard 2 ** -4 of that."""
    assert (1 - dynamics.hazard(5e-3, 3.0)) ** 10 == pytest.approx(0.5)
    assert (1 - dynamics.hazard(1e-2, 0.0)) ** 10 == pytest.approx(0.5 ** (1 / 16))


def test_an_agent_over_the_limit_collapses_and_one_below_it_learns(dynamics):
    over, below = Learner(dynamics, default_rng(0)), Learner(dynamics, default_rng(0))
    over.train({"learning_rate": 0.1, "window": 4}, 20)
    below.train({"learning_rate": 1e-3, "window": 1}, 20)
    assert (over.score, below.score, below.collapses) == (0.0, pytest.approx(0.6 - 0.3 * 0.96**20), 0)
    assert over.collapses == 1


# The fit.


def interval(start, end, score, after, rate=1e-3, lag=0.0, **other):
    return Interval("run", "agent0", start, end, score, after, 0.03, rate, 4, lag, **other)


def test_what_was_known_is_found_again():
    """Intervals of known dynamics without noise: predictions are met within a fraction of an error, the limit within a third."""
    known = Dynamics(0.3, 0.65, 0.02, 0.1, 1e-3, 0.1, 0.02, 4.0, {4: 1.0}, 0.03)
    rows = []
    for rate in (1e-4, 3e-4, 1e-3, 2e-3, 4e-3):
        for lag in (0.5, 2.0):
            score = math.nan
            for start in range(0, 60, 10):
                after = predicted(known, interval(start, start + 10, score, 0.0, rate, lag))
                rows.append(interval(start, start + 10, score, after, rate, lag))
                score = after
    for rate in (1e-2, 2e-2, 4e-2):
        rows += [
            interval(0, 10, math.nan, 0.0 if chance < 1 - (1 - known.hazard(rate, 0.0)) ** 10 else 0.4, rate) for chance in (0.1, 0.3, 0.5)
        ]
    found, figures = fit([one for one in rows if not (one.learning_rate > 5e-3 and one.score_after == 0.4)] + rows, trials=400, seed=0)
    assert figures["misfit_in_errors_rms"] < 0.5 < figures["misfit_of_no_change_in_errors_rms"]
    assert found.limit == pytest.approx(known.limit, rel=0.34)
    assert found.noise == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("score", "after", "expected"), [(0.4, 0.19, True), (0.4, 0.21, False), (math.nan, 0.09, True), (math.nan, 0.11, False)]
)
def test_an_interval_has_collapsed_that_ends_below_half(score, after, expected):
    assert collapsed(interval(0, 10, score, after)) == expected


def test_intervals_are_kept_as_a_table(tmp_path):
    rows = [interval(0, 10, math.nan, 0.4), interval(10, 20, 0.4, 0.5, 2e-3, 1.5)]
    write_intervals(tmp_path / "intervals.csv", rows)
    again = read_intervals(tmp_path / "intervals.csv")
    assert again[1] == rows[1]
    assert math.isnan(again[0].score)
    assert replace(again[0], score=0.0) == replace(rows[0], score=0.0)


def test_a_clones_first_interval_begins_at_its_parents_checkpoint(tmp_path):
    """agent1 is cloned right after its first result, from agent0's checkpoint at step 20."""
    shared = {"ratio_max": 5.0, "window": 4, "fitness_se": 0.03, "trainer/lag_steps_mean": 1.0, "lineage": 0}
    rows = {
        "agent0": [(10, 0.4, 1e-3, 100), (20, 0.5, 1e-3, 110)],
        "agent1": [(10, 0.1, 9e-3, 112), (30, 0.6, 2e-3, 125)],
    }
    for name, results in rows.items():
        (tmp_path / "a" / "population" / name).mkdir(parents=True)
        told = {"trial_id": name.replace("agent", "x_0000"), **shared}
        lines = [
            json.dumps({**told, "version": version, "updates": version, "fitness": fitness, "learning_rate": rate, "timestamp": then})
            for version, fitness, rate, then in results
        ]
        (tmp_path / "a" / "population" / name / "result.json").write_text("\n".join(lines) + "\n")
    clone = {"child": "x_00001", "time_s": 112.5, "child_step": 10, "parent_step": 20, "parent_score": 0.5, "values": {}}
    lineage = {"members": {"x_00000": {}, "x_00001": {}}, "clones": [clone]}
    (tmp_path / "a" / "population" / "lineage.json").write_text(json.dumps(lineage))
    found = [(one.run, one.member, one.start, one.end, one.score, one.score_after) for one in recorded(tmp_path / "a")]
    assert found[1:2] + found[3:] == [("a", "agent0", 10, 20, 0.4, 0.5), ("a", "agent1", 20, 30, 0.5, 0.6)]
    assert [math.isnan(one[4]) for one in found] == [True, False, True, False]


# Strategies.


@pytest.mark.parametrize("steps", [160, 400])
@pytest.mark.parametrize("strategy", [one_agent(None), random_search(4), random_search(8), halving, Population(), Population(8)])
def test_every_strategy_has_the_same_number_of_steps(dynamics, strategy, steps):
    ledger = Ledger(task(dynamics, steps), ())
    strategy(task(dynamics, steps), ledger, 0)
    assert ledger.spent == steps


def test_one_seed_gives_the_same_search_and_another_seed_another(dynamics):
    noisy = replace(dynamics, noise=0.03, lags=dict.fromkeys((1, 2, 4, 8, 16), 1.0))
    assert run("population of 4", "anywhere", noisy, 100, 3) == run("population of 4", "anywhere", noisy, 100, 3)
    assert run("population of 4", "anywhere", noisy, 100, 3) != run("population of 4", "anywhere", noisy, 100, 4)


def test_a_population_without_selection_is_its_agents_alone(dynamics):
    """Without noise and with no collapse, the best of four first values after about 100 steps each: members are not equally fast."""
    safe = replace(dynamics, limit=1e9)
    alone = random_search(4)(task(safe), Ledger(task(safe), ()), 5)
    still = Population(selection=Truncation(0.0))(task(safe), Ledger(task(safe), ()), 5)
    assert (still.score, still.clones) == (pytest.approx(alone.score, abs=0.02), 0)


def test_a_population_leaves_agents_behind_that_collapse(dynamics):
    """At a rate of 1e-2 and lag 2 half collapse within two steps, and alone nobody comes back. The ceiling of 5e-3 is 0.48."""
    wide, high = ({**SPACE, "learning_rate": LogRange(*ends)} for ends in ((1e-4, 2e-2), (5e-3, 2e-2)))
    hot = Task(dynamics, search_space(wide), search_space(high), 400)
    alone = [random_search(4)(hot, Ledger(hot, ()), seed).score for seed in range(8)]
    searched = [Population()(hot, Ledger(hot, ()), seed).score for seed in range(8)]
    assert sum(searched) > sum(alone) + 8 * 0.05


def test_thresholds_are_passed_at_the_steps_of_all_agents(dynamics):
    """0.6 - 0.3 * 0.96 ** n > 0.45 for n >= 17, seen at the end of the second interval."""
    ledger = Ledger(task(dynamics), (0.45, 0.9))
    found = one_agent({"learning_rate": 1e-3, "window": 1})(task(replace(dynamics, limit=1e9)), ledger, 0)
    assert found.steps_to == {0.45: 20, 0.9: math.inf}


def test_the_table_holds_quarters_shares_and_medians(dynamics):
    found = [run("one agent, the rate known", "anywhere", replace(dynamics, limit=1e9), 100, seed) for seed in range(3)]
    figures = summary([replace(one, score=score) for one, score in zip(found, (0.1, 0.2, 0.6), strict=True)])
    assert (figures["score_median"], figures["score_quarter"], figures["score_three_quarters"]) == pytest.approx((0.2, 0.15, 0.4))
    assert (figures["reached_nine_tenths_share"], figures["clones"]) == (1.0, 0.0)


def test_every_strategy_runs_from_every_start(tmp_path, dynamics, capsys):
    noisy = {**vars(dynamics), "noise": 0.03, "lags": {str(window): 1.0 for window in (1, 2, 4, 8, 16)}}
    (tmp_path / "surrogate.json").write_text(json.dumps({"dynamics": noisy}))
    main(Args(tmp_path / "surrogate.json", seeds=2, out=tmp_path / "out.json"))
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["simulation"] is True
    assert all(set(written[start]) == set(STRATEGIES) for start in STARTS)
    assert capsys.readouterr().out.startswith("SIMULATION: ")


def test_a_collapsed_agent_does_not_come_back(dynamics):
    learner = Learner(dynamics, default_rng(0))
    learner.train({"learning_rate": 0.1, "window": 4}, 20)
    learner.train({"learning_rate": 1e-3, "window": 1}, 20)
    assert (learner.score, learner.collapses) == (0.0, 1)


def test_a_misspelt_strategy_and_a_fit_that_is_damaged_or_lacks_a_window_are_refused(tmp_path, dynamics):
    (tmp_path / "surrogate.json").write_text(json.dumps({"dynamics": vars(dynamics)}))
    with pytest.raises(ConfigError, match=r"no lag for the windows \[2, 8, 16\]"):
        main(Args(tmp_path / "surrogate.json"))
    with pytest.raises(ConfigError, match="no strategy 'population'"):
        main(Args(tmp_path / "surrogate.json", only=("population",)))
    with pytest.raises(ConfigError, match="updates must be a multiple of 20, got 30"):
        main(Args(tmp_path / "surrogate.json", updates=30))
    (tmp_path / "surrogate.json").write_text(json.dumps({"dynamics": {"base": 1}}))
    with pytest.raises(ConfigError, match=r"surrogate\.json' is not as it should be"):
        main(Args(tmp_path / "surrogate.json"))
