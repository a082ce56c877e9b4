"""What every file of environments/ keeps to, in each of its variants, and the example that the documentation gives."""

import importlib
import math
import random
from typing import get_args

import numpy as np
import pytest

from pbt_agents import plugins
from pbt_agents.environment import Environment, EnvironmentFactory
from pbt_agents.errors import ConfigError
from pbt_agents.types import Split

ACTIONS = (
    "", "x", "\n", "\\boxed{", "}{", "\\boxed{}", "\\boxed{1 1 1}", "\\boxed{1 1 2} or \\boxed{2 1 1}", "\\boxed{0 0 0}", "\\boxed{-1}",
    "\\boxed{\\frac{1}{2}}", "\\boxed{²}", "\\boxed{٣ ٣ ٣}", "\\boxed{" + "9" * 5000 + "}", "\x00", "\ud800", "é" * 1000, "\\boxed{579}",
)  # fmt: skip
"""Garbage, and a little that is not."""
MOST_TURNS = 1000
EXAMPLE = "treasure.environment"


def variants() -> list[tuple[str, str]]:
    files = {name: importlib.import_module(f"pbt_agents.environments.{name}") for name in plugins.names("environment")}
    files[f"{EXAMPLE}:ENVIRONMENT"] = importlib.import_module(EXAMPLE)
    return [(name, variant) for name, file in files.items() for variant in file.VARIANTS]


def make(name: str, variant: str, split: Split = "train", **options: object) -> Environment:
    factory: EnvironmentFactory
    factory, _ = plugins.load("environment", name)
    return factory(variant, split, **options)


def play(environment: Environment, seed: int) -> list[object]:
    """All that an episode shows under a fixed sequence of actions."""
    chance = np.random.default_rng(seed)
    seen: list[object] = [environment.reset(seed)]
    for _ in range(MOST_TURNS):
        result = environment.step(ACTIONS[chance.integers(len(ACTIONS))])
        seen.append(result)
        if result.terminated or result.truncated:
            break
    return seen


every_variant = pytest.mark.parametrize(("name", "variant"), variants())


def test_every_file_is_found():
    assert {"arithmetic", "sudoku"} <= {name for name, _ in variants()}


@every_variant
def test_equal_seeds_give_equal_episodes(name: str, variant: str):
    used = make(name, variant)
    for seed in (0, 1, 2**31 - 1):
        assert play(used, seed) == play(make(name, variant), seed)


@every_variant
def test_other_seeds_and_splits_give_other_tasks(name: str, variant: str):
    tasks = {(split, seed): make(name, variant, split).reset(seed) for split in get_args(Split) for seed in range(4)}
    assert len(set(tasks.values())) == len(tasks)


@every_variant
def test_interleaved_instances_share_nothing(name: str, variant: str):
    apart = [play(make(name, variant), seed) for seed in range(3)]
    environments = [make(name, variant) for _ in range(3)]
    chances = [np.random.default_rng(seed) for seed in range(3)]
    together: list[list[object]] = [[environment.reset(seed)] for seed, environment in enumerate(environments)]
    for turn in range(1, max(map(len, apart))):
        for seed, environment in enumerate(environments):
            if turn < len(apart[seed]):
                together[seed].append(environment.step(ACTIONS[chances[seed].integers(len(ACTIONS))]))
    assert together == apart


@every_variant
def test_the_global_random_state_is_neither_read_nor_moved(name: str, variant: str):
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), [str(part) for part in np.random.get_state()]
    episode = play(make(name, variant), 7)
    assert (random.getstate(), [str(part) for part in np.random.get_state()]) == before
    random.seed(2)
    np.random.seed(2)
    assert play(make(name, variant), 7) == episode


@every_variant
def test_garbage_gets_text_and_a_finite_reward_until_the_episode_ends(name: str, variant: str):
    """B86: an unreadable action is a format error, never a crash or a None."""
    environment = make(name, variant)
    for seed, action in enumerate(ACTIONS):
        assert isinstance(environment.reset(seed), str)
        for _ in range(MOST_TURNS):
            result = environment.step(action)
            assert isinstance(result.observation, str)
            assert math.isfinite(result.reward)
            if result.terminated or result.truncated:
                break
            assert result.metrics == {}
        else:
            pytest.fail(f"still running after {MOST_TURNS} turns of {action!r}")
        assert result.metrics
        assert all(math.isfinite(value) for value in result.metrics.values())


@every_variant
def test_unknown_options_variants_and_splits_are_refused_with_the_known_ones(name: str, variant: str):
    """B82."""
    for wrong in (
        lambda: make(name, variant, no_such_option=1),
        lambda: make(name, variant + "x"),
        lambda: make(name, variant, split="trian"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match=r"unknown .* Known: "):
            wrong()
