"""Strategies as populations with their parts of the CPU seconds, and the table from files that were written by hand."""

import json
import math

import pytest
from compare_search import ARMS, STARTS, SWEEP, WIDE, Args, curve, main, table, task

from pbt_agents.errors import ConfigError
from pbt_agents.population import PopulationSpec


def populations(name, start="anywhere", seed=3):
    spec, first = task(Args(start=start, cpu_seconds=400), seed)
    return ARMS[name](spec, first)


@pytest.mark.parametrize("name", ARMS)
def test_every_strategy_has_the_same_cpu_seconds_and_no_other_limit(name):
    made = populations(name)
    assert sum(one.budget.cpu_seconds for one in made) == pytest.approx(400)
    assert {(one.budget.updates, one.budget.minutes, one.budget.fitness) for one in made} == {(None, None, None)}
    assert {one.agent.seed for one in made} == {3}


def test_a_search_in_turn_and_a_population_of_as_many_begin_alike():
    [population], [alone] = populations("population"), populations("independent_4")
    in_turn = populations("random_4")
    assert population.initial == alone.initial == tuple(values for one in in_turn for values in one.initial)
    assert (population.exploit, alone.exploit, {one.exploit for one in in_turn}) == (True, False, {False})
    assert [one.size for one in in_turn] == [1, 1, 1, 1]


@pytest.mark.parametrize("start", ["low", "high"])
def test_from_a_bad_start_nobody_begins_elsewhere_and_a_population_may_leave(start):
    rates = STARTS[start]
    for name in ("random_8", "population"):
        for one in populations(name, start):
            assert all(rates.low <= values["learning_rate"] <= rates.high for values in one.initial)
    [population] = populations("population", start)
    assert population.search_space["learning_rate"] == WIDE


def test_arms_differ_from_the_population_in_what_their_names_say():
    [ours], [small], [confident] = (populations(name) for name in ("population", "population_small_steps", "population_confident"))
    assert (ours.explore.factor, small.explore.factor) == (3.0, 1.25)
    assert (ours.selection.confidence, confident.selection.confidence) == (0.0, 0.8)
    [agent] = populations("default")
    assert agent.initial == ({name: PopulationSpec().agent.value(name) for name in agent.search_space},)


def test_evaluations_lie_on_the_cpu_seconds_by_their_share_of_the_time(tmp_path):
    """From 100 s, when the first began, to 300 s, 50 CPU seconds were used."""
    rows = {"agent0": [(200, 100.0, 0.4), (300, 200.0, 0.5)], "agent1": [(250, 130.0, 0.3)]}
    for name, results in rows.items():
        (tmp_path / "population" / name).mkdir(parents=True)
        lines = [json.dumps({"timestamp": then, "time_total_s": total, "fitness": fitness}) for then, total, fitness in results]
        lines.append(json.dumps({"timestamp": 999, "time_total_s": 999, "fitness": 9, "cut_short": True}))
        (tmp_path / "population" / name / "result.json").write_text("\n".join(lines) + "\n")
    assert curve(tmp_path, 50.0) == [(25.0, 0.4), (37.5, 0.3), (50.0, 0.5)]


def test_the_table_has_medians_what_was_needed_and_who_collapsed(tmp_path):
    """The best median is 0.6, so 0.54 is to be reached: by "a" at 20, never and 40 CPU seconds."""
    runs = [
        ("a", 0, 0.6, [(10, 0.3), (20, 0.55), (30, 0.6)], [0.6, 0.0]),
        ("a", 1, 0.5, [(10, 0.3), (30, 0.5)], [0.5, 0.5]),
        ("a", 2, 0.7, [(10, 0.3), (40, 0.54)], [0.7, 0.05]),
        ("b", 0, 0.2, [(10, 0.2)], [math.nan]),
    ]
    for strategy, seed, score, points, validation in runs:
        one = {"strategy": strategy, "start": "anywhere", "seed": seed, "score": score, "greedy": score - 0.1, "cpu_s": 50.0}
        scores = {str(number): str(value) if math.isnan(value) else value for number, value in enumerate(validation)}
        (tmp_path / f"{strategy}-{seed}.json").write_text(json.dumps({**one, "curve": points, "validation": scores}))
    head, _, a, b = table(tmp_path)
    assert "first learning rates: anywhere" in head
    assert "0.540" in head
    assert a.split() == ["a", "3", "0.600", "(0.550", "to", "0.650)", "0.500", "50", "40", "33%"]
    assert b.split() == ["b", "1", "0.200", "(0.200", "to", "0.200)", "0.100", "50", "inf", "100%"]


def test_wrong_use_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError, match="there is no strategy 'ours'"):
        main(Args(tmp_path, only=("ours",)))
    with pytest.raises(ConfigError, match="start is one of anywhere, low, high"):
        main(Args(tmp_path, start="middle"))
    main(Args(tmp_path, seeds=0, only=(SWEEP,)))
    assert list(tmp_path.iterdir()) == []
