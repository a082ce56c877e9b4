import json
import math
from dataclasses import replace

import pytest
from ray import tune

from pbt_agents.config import AgentConfig
from pbt_agents.errors import ConfigError
from pbt_agents.plugins import load, names
from pbt_agents.population import Budget, PopulationSpec
from pbt_agents.scheduling.mutation import Perturbation
from pbt_agents.scheduling.selection import MultiFrequency, Tournament
from pbt_agents.scheduling.stability import StabilityBudget
from pbt_agents.search_space import agent_search_space


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", 0),
        ("perturbation_updates", 0),
        ("initial", ({},)),
        ("initial", ({"learning_rate": 1e-3}, {"learning_rate": 1e-3})),
        ("selection", "truncation"),
        ("selection", Tournament),
        ("selection", None),
        ("explore", "perturb"),
        ("explore", Perturbation),
        ("stability", True),
        ("perturbation_updates", 2.5),
        ("size", 2.0),
        ("synchronous", "yes"),
    ],
)
def test_a_value_that_makes_no_population_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=f"^{field} "):
        PopulationSpec(**{"size": 2, field: value})


def test_sub_populations_need_two_members_each():
    selection = MultiFrequency((1, 2, 4))
    with pytest.raises(ConfigError, match=r"^size is 5, but periods \(1, 2, 4\) need 6 members"):
        PopulationSpec(AgentConfig().with_values({"slots": 6}), size=5, selection=selection)
    assert PopulationSpec(AgentConfig().with_values({"slots": 6}), size=6, selection=selection).size == 6


@pytest.mark.parametrize(
    ("names", "told"),
    [
        ({"rate": "lerning_rate"}, "'lerning_rate'. Did you mean 'learning_rate'"),
        ({"window": "windoww"}, "unknown setting 'windoww'. Did you mean 'window'"),
    ],
)
def test_a_stability_budget_of_settings_that_are_not_there_is_refused_with_the_nearest_known_one(names, told):
    with pytest.raises(ConfigError) as refused:
        PopulationSpec(search_space={"learning_rate": [1e-3, 1e-2]}, stability=StabilityBudget(**names))
    assert told in str(refused.value)


def test_strategies_are_told_with_all_their_settings_and_ones_own_by_its_name():
    def mine(values, space, rng):
        return dict(values)

    told = PopulationSpec(
        search_space={"learning_rate": [1e-3, 1e-2]}, selection=Tournament(3, confidence=0.9), explore=mine, stability=StabilityBudget()
    ).to_dict()
    assert told["selection"] == {"kind": "Tournament", "rivals": 3, "confidence": 0.9}
    assert told["explore"]["kind"].endswith(":test_strategies_are_told_with_all_their_settings_and_ones_own_by_its_name.<locals>.mine")
    assert told["stability"]["rate"] == "learning_rate"
    assert PopulationSpec().to_dict()["stability"] is None


@pytest.mark.parametrize("field", ["updates", "minutes", "cpu_seconds"])
def test_a_budget_of_nothing_is_refused_by_name(field):
    with pytest.raises(ConfigError, match=f"^{field} must be above 0, got 0"):
        Budget(**{field: 0})


@pytest.mark.parametrize("limits", [{}, {"fitness": 0.5}])
def test_a_budget_without_an_end_is_refused(limits):
    with pytest.raises(ConfigError, match="all are None"):
        Budget(**limits)


@pytest.mark.parametrize("fitness", [math.nan, math.inf])
def test_a_fitness_that_cannot_be_reached_is_refused_by_name(fitness):
    with pytest.raises(ConfigError, match=r"^fitness must be finite"):
        Budget(updates=10, fitness=fitness)


def test_a_population_of_another_size_has_a_slot_for_each_member_and_is_the_same_else():
    small = PopulationSpec(AgentConfig().with_values({"seed": 5}), {"learning_rate": [1e-3, 1e-2]}, size=4)
    large = small.of_size(8)
    assert large.size == 8
    assert large.agent == small.agent.with_values({"slots": 8})
    assert large.search_space == small.search_space
    with pytest.raises(ConfigError, match=r"^size "):
        small.of_size(0)


def test_first_values_are_kept_for_as_many_members_and_dropped_for_others():
    first = ({"learning_rate": 1e-3}, {"learning_rate": 1e-2})
    spec = PopulationSpec(search_space={"learning_rate": [1e-3, 1e-2]}, size=2, initial=first)
    assert spec.of_size(2).initial == first
    assert spec.of_size(1).initial is None
    assert spec.of_size(3).initial is None


def test_more_members_than_slots_are_refused_before_they_fail_one_by_one():
    with pytest.raises(ConfigError, match=r"^size is 8, but the fleet has slots for 4\..*of_size\(8\)"):
        replace(PopulationSpec(), size=8)
    assert PopulationSpec(AgentConfig().with_values({"slots": 8}), size=4).agent.fleet.slots == 8


@pytest.mark.parametrize("name", [*names("population"), "treasure.population:POPULATION"])
def test_a_recipe_searches_settings_that_an_agent_has(name):
    recipe, _ = load("population", name)
    agent_search_space(recipe.agent, recipe.search_space)


def test_written_out_it_has_every_setting_of_the_agent_and_every_range():
    agent = AgentConfig().with_values({"learning_rate": 2e-3, "slots": 2})
    written = PopulationSpec(agent, {"window": [1, 4], "ratio_max": tune.uniform(2.0, 8.0)}, size=2).to_dict()
    assert AgentConfig.from_dict(json.loads(json.dumps(written["agent"]))) == agent
    ladder, line = {"kind": "Ladder", "values": (1, 4)}, {"kind": "LinearRange", "low": 2.0, "high": 8.0}
    assert written["search_space"] == {"window": ladder, "ratio_max": line}
    assert (written["size"], written["budget"]["updates"], written["exploit"]) == (2, 60, True)
