"""The main example with a chat model of another architecture: its own template, full prompts, and engines for each agent."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from peft import PeftModel
from transformers import AutoModelForCausalLM

from pbt_agents.config import EnvironmentConfig
from pbt_agents.environment import environment_maker
from pbt_agents.rollout.renderer import load_renderer
from pbt_agents.testing.session import RunningSession
from pbt_agents.testing.tiny_model import BYTE_VOCABULARY, random_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parents[1] / "experiments" / "sudoku_pbt.py"
OPTIONS = {"format_penalty": 0.1}
ACTION_TOKENS, TURNS = 40, 3


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return random_model(tmp_path_factory.mktemp("llama"), "llama", BYTE_VOCABULARY)


def informative_length(model_path):
    """A random model finds no move, so a score only tells how many format errors fit into an episode. After three actions of full
    length nothing fits any more, and after any shorter one a fourth does.
    """
    renderer, task = load_renderer(model_path), environment_maker(EnvironmentConfig("sudoku:hard", OPTIONS), "train")()
    opening = len(renderer.first(task.reset(0)))
    turn = ACTION_TOKENS + len(renderer.later(task.step("no move").observation, np.zeros(1, np.int32)))
    return opening + TURNS * turn


@pytest.fixture(scope="module")
def ended(model_path, tmp_path_factory):
    out = tmp_path_factory.mktemp("another") / "run"
    lengths = [f"max_action_tokens={ACTION_TOKENS}", f"max_episode_tokens={informative_length(model_path)}", f"options={OPTIONS}"]
    batches = ["group_size=4", "groups_per_batch=1", "updates_per_evaluation=2", "evaluation_episodes=4"]
    flags = ["--population", 2, "--updates", 4, "--test-episodes", 4, "--window", 0, "--out", out]
    command = [sys.executable, SCRIPT, *flags, "--model", model_path, "--environment", "sudoku:hard"]
    with RunningSession([*command, "--set", "fleet=per_agent", *lengths, *batches], out, 2, {"WANDB_MODE": "offline"}) as play:
        return play.end(lambda: None, 0, within_s=500)


def test_every_agent_trains_with_the_log_probs_that_its_engine_sampled_with(ended):
    for rows in ended.rows.values():
        stepped = [row for row in rows if row["trainer/stepped"]]
        assert len(stepped) >= 4
        assert all(0 < row["trainer/log_ratio_abs_max"] < 1e-3 for row in stepped)
        assert {row["trainer/lag_steps_max"] for row in stepped} == {0}


def test_each_agent_has_an_engine_of_its_own_to_the_end(ended):
    engines = json.loads((ended.out / "results.json").read_text())["engines"]
    started, finished = ([engine["pid"] for engine in engines[when]] for when in ("start", "end"))
    assert started == finished
    assert len(set(started)) == 2
    adapters = [after["swaps"] - before["swaps"] for before, after in zip(engines["start"], engines["end"], strict=True)]
    assert adapters == [1 + sum(row["trainer/stepped"] for row in rows) for rows in ended.rows.values()]


def test_the_best_adapter_loads_with_peft(ended, model_path):
    """Its B matrices are what training moved: they begin at zero."""
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model_path), ended.out / "best")
    moved = [bool(tensor.abs().max() > 0) for name, tensor in model.named_parameters() if "lora_B" in name]
    assert len(moved) > 0
    assert all(moved)
