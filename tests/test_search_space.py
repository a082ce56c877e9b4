"""Declarations become ranges, and what cannot be searched is refused at once."""

import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray import tune
from ray.tune.experiment import Experiment
from ray.tune.search import BasicVariantGenerator

from pbt_agents.config import AgentConfig, RolloutConfig
from pbt_agents.errors import ConfigError
from pbt_agents.search_space import Ladder, LinearRange, LogRange, agent_search_space, initial_values, param_space, search_space

BASE = AgentConfig()
DECLARED = {"learning_rate": tune.loguniform(1e-4, 1e-2), "ratio_max": tune.uniform(1.5, 8.0), "window": [1, 2, 4, 8, 16]}


def test_rays_domains_and_lists_become_ranges_with_their_bounds():
    space = agent_search_space(BASE, {**DECLARED, "advantage": tune.choice(["group_standardized", "group_centered"])})
    assert space == {
        "learning_rate": LogRange(1e-4, 1e-2),
        "ratio_max": LinearRange(1.5, 8.0),
        "window": Ladder((1, 2, 4, 8, 16)),
        "advantage": Ladder(("group_standardized", "group_centered")),
    }


def test_ranges_pass_through_unchanged():
    space = search_space(DECLARED)
    assert search_space(space) == space


def test_a_misspelt_name_is_refused_with_the_nearest_known_one():
    """B82."""
    with pytest.raises(ConfigError, match=r"'leanring_rate'.*Did you mean 'learning_rate'"):
        param_space(BASE, {"leanring_rate": tune.loguniform(1e-4, 1e-2)})


@pytest.mark.parametrize(
    ("name", "domain", "reason"),
    [
        ("seed", [0, 1], "luck"),
        ("lora_rank", [8, 16], "donor's adapter"),
        ("model.lora_alpha", [8, 16], "donor's adapter"),
        ("environment.id", ["sudoku:tiny", "sudoku:hard"], "different tasks"),
        ("engines", [1, 2], "outlive"),
        ("evaluation_episodes", [32, 64], "measurements"),
        ("capacity_bytes", [1 << 20, 1 << 30], "log on disk"),
        ("max_episode_tokens", [480, 960], "engines are sized"),
        ("environment_threads", [0, 4], "started once"),
    ],
)
def test_what_a_living_agent_cannot_change_is_refused_with_the_reason(name, domain, reason):
    with pytest.raises(ConfigError, match=rf"'{name}' cannot be searched.*{reason}"):
        agent_search_space(BASE, {name: domain})


@pytest.mark.parametrize("name", ["group_size", "temperature", "normalizer", "rollout.groups_in_flight", "adam_beta1", "max_reuse"])
def test_other_fields_may_be_searched(name):
    value = BASE.value(name)
    domain = ["token", "constant"] if name == "normalizer" else [value, value + 1] if isinstance(value, int) else tune.uniform(0.5, 0.9)
    assert list(agent_search_space(BASE, {name: domain})) == [name]


@pytest.mark.parametrize(
    ("domain", "complaint"),
    [
        (tune.randint(1, 9), "ordered list"),
        (tune.quniform(1.0, 8.0, 0.5), "ordered list"),
        (tune.randn(0.0, 1.0), "ordered list"),
        (tune.sample_from(lambda: 3.0), "ordered list"),
        (5.0, "ordered list"),
        (tune.uniform(0.5, 8.0), "must be above 1"),
        ([4, 2, 8], r"must rise.*\[2, 4, 8\]"),
        ([2.0], "at least two values"),
        ([2.0, 2.0], "all different"),
    ],
)
def test_a_domain_that_cannot_be_searched_is_refused_with_the_name_and_the_remedy(domain, complaint):
    with pytest.raises(ConfigError, match=rf"'ratio_max'.*{complaint}"):
        agent_search_space(BASE, {"ratio_max": domain})


def test_a_whole_number_is_searched_over_a_list_only():
    with pytest.raises(ConfigError, match=r"'window': it is a whole number.*ordered list"):
        agent_search_space(BASE, {"window": tune.uniform(1, 16)})
    with pytest.raises(ConfigError, match=r"'window' holds 2\.5"):
        agent_search_space(BASE, {"window": [1, 2.5, 4]})


def test_a_field_that_was_written_as_an_integer_is_searched_over_its_range():
    base = AgentConfig(rollout=RolloutConfig(temperature=1))
    assert agent_search_space(base, {"temperature": tune.uniform(0.5, 1.5)}) == {"temperature": LinearRange(0.5, 1.5)}


@pytest.mark.parametrize("bound", ["ratio_max", "objective.ratio_min"])
@pytest.mark.parametrize("searched", [{}, {"objective": ["cispo", "reinforce"]}], ids=["chosen", "searched"])
def test_a_bound_that_an_objective_does_not_use_cannot_be_searched(bound, searched):
    """Its mutations would be written down, and move nothing."""
    base = BASE if searched else BASE.with_values({"objective": "reinforce"})
    domain = tune.uniform(1.5, 8.0) if bound == "ratio_max" else tune.uniform(0.0, 0.9)
    with pytest.raises(ConfigError, match=rf"'{bound}' cannot be searched: objective 'reinforce' does not use it.*Take it out"):
        param_space(base, {**searched, bound: domain})


def test_a_searched_list_of_objectives_names_files_that_there_are():
    with pytest.raises(ConfigError, match=r"'objective' holds cisppo.*Did you mean 'cispo'"):
        agent_search_space(BASE, {"objective": ["grpo", "cisppo"]})


def test_one_setting_under_two_names_is_refused():
    with pytest.raises(ConfigError, match=r"twice: 'learning_rate' and 'trainer\.learning_rate'"):
        agent_search_space(BASE, {"learning_rate": tune.loguniform(1e-4, 1e-2), "trainer.learning_rate": tune.loguniform(1e-4, 1e-2)})


def test_an_empty_space_is_refused():
    with pytest.raises(ConfigError, match="empty"):
        search_space({})


def test_a_fraction_of_a_log_range_is_geometric_and_of_a_ladder_a_rung():
    assert LogRange(1e-4, 1e-2).at(0.5) == pytest.approx(1e-3)
    assert LinearRange(2.0, 8.0).at(0.25) == 3.5
    assert [Ladder((1, 2, 4, 8)).at(fraction) for fraction in (0.0, 0.26, 0.5, 0.999, 1.0)] == [1, 2, 4, 8, 8]


def test_clipping_moves_to_the_nearest_allowed_value_and_keeps_types():
    assert LogRange(1e-4, 1e-2).clip(1.0) == 1e-2
    assert LinearRange(0.0, 1.0).clip(-3.0) == 0.0
    assert Ladder((1, 2, 4, 8)).clip(7) == 8
    assert type(Ladder((1, 2)).clip(2.0)) is int
    assert Ladder(("token", "constant")).clip("sequence") == "token"


@given(size=st.integers(1, 9), seed=st.integers(0, 99))
def test_first_values_lie_one_in_each_part_of_a_range(size, seed):
    members = initial_values(DECLARED, size, seed)
    parts = sorted(int(math.log(member["learning_rate"] / 1e-4) / math.log(100) * size) for member in members)
    assert parts == list(range(size))
    assert members == initial_values(DECLARED, size, seed)


def test_as_many_members_as_rungs_start_on_all_of_them():
    assert sorted(member["window"] for member in initial_values(DECLARED, 5, seed=3)) == [1, 2, 4, 8, 16]


def test_first_values_change_with_the_seed_and_are_not_aligned_between_names():
    assert initial_values(DECLARED, 4, seed=0) != initial_values(DECLARED, 4, seed=1)
    by_rate = [sorted(initial_values(DECLARED, 5, seed), key=lambda member: member["learning_rate"]) for seed in range(9)]
    rising = [seed for seed, members in enumerate(by_rate) if [member["window"] for member in members] == [1, 2, 4, 8, 16]]
    assert len(rising) < 3


def test_param_space_hands_ray_the_agent_and_a_domain_for_each_name():
    space = param_space(BASE, DECLARED)
    assert AgentConfig.from_dict(space["agent"]) == BASE
    assert (space["learning_rate"].lower, space["learning_rate"].upper, str(space["learning_rate"].sampler)) == (1e-4, 1e-2, "LogUniform")
    assert space["window"].categories == [1, 2, 4, 8, 16]


def test_ray_starts_the_members_from_the_first_values_when_given_them():
    first = initial_values(DECLARED, 4, seed=0)
    searcher = BasicVariantGenerator(points_to_evaluate=first)
    searcher.add_configurations([Experiment("run", tune.Trainable, config=param_space(BASE, DECLARED), num_samples=4)])
    configs = [searcher.next_trial().config for _ in range(4)]
    assert [{name: config[name] for name in DECLARED} for config in configs] == first
    assert all(AgentConfig.from_dict(config["agent"]) == BASE for config in configs)


def test_importing_it_does_not_import_ray():
    code = "import sys, pbt_agents.search_space; assert not {'ray', 'torch', 'pyarrow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
