"""Which adapter, base model and environment a command takes, and what it refuses."""

import json
import shutil

import pytest

from pbt_agents.commands._subject import subject
from pbt_agents.config import AgentConfig
from pbt_agents.errors import ConfigError
from pbt_agents.models import resolve_model
from pbt_agents.populations.sudoku import POPULATION
from pbt_agents.run_folder import new_run
from pbt_agents.testing.random_adapter import random_adapter
from pbt_agents.testing.tiny_model import BYTE_VOCABULARY, random_model


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return random_adapter(tmp_path_factory.mktemp("adapter"))


@pytest.fixture
def adapter(saved, tmp_path):
    """In a folder `best`, to be spoilt."""
    return shutil.copytree(saved, tmp_path / "run" / "best")


def chat_model(folder):
    model = random_model(folder, "llama", BYTE_VOCABULARY)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 8192}))
    return model


def run_around(adapter, settings, population=None):
    """A run whose directory holds the adapter."""
    aside = adapter.parent.rename(adapter.parents[1] / "aside")
    with new_run(adapter.parent, settings, population):
        (aside / adapter.name).rename(adapter)


def test_outside_a_run_it_is_the_recipes_agent_with_the_adapters_rank(tmp_path):
    alone = subject(random_adapter(tmp_path / "alone", rank=16), None, None, None)
    assert alone.config == POPULATION.agent.with_values({"lora_rank": 16, "slots": 1})
    assert (alone.model_path, alone.run) == (resolve_model("tiny"), None)


def test_in_a_run_it_plays_as_the_agents_of_the_run_played_on_one_engine(adapter):
    values = {"id": "sudoku:easy", "seed": 5, "max_action_tokens": 33, "engines": 3, "slots": 4}
    run_around(adapter, {"seed": 1}, {"agent": AgentConfig().with_values(values).to_dict()})
    found = subject(adapter, None, None, None)
    assert found.config == AgentConfig().with_values({**values, "engines": 1, "slots": 1})
    assert str(found) == f"environment sudoku:easy, base model tiny, seed 5, by {adapter.parent}/run.json"


def test_of_a_run_that_noted_only_its_flags_they_are_what_there_is(adapter):
    run_around(adapter, {"environment": "sudoku:easy", "model": "tiny", "seed": 4})
    found = subject(adapter, None, None, None).config
    assert (found.environment.id, found.seed) == ("sudoku:easy", 4)


def test_what_is_given_holds_before_what_the_run_says(adapter, tmp_path):
    run_around(adapter, {"seed": 1}, {"agent": AgentConfig().with_values({"options": {"size": 4}, "seed": 5}).to_dict()})
    copy = shutil.copytree(resolve_model("tiny"), tmp_path / "copy")
    found = subject(adapter, "arithmetic", str(copy), 6)
    assert (found.config.environment.id, found.config.environment.options, found.config.seed) == ("arithmetic", {}, 6)
    assert found.model_path == str(copy.resolve())


def test_another_models_chat_lengths_are_those_of_the_recipe(tmp_path):
    assert subject(None, None, chat_model(tmp_path / "model"), None).config.rollout.max_action_tokens == 512


def spoil_config(adapter, **fields):
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda adapter: (adapter / "adapter_config.json").unlink(), "has no adapter_config.json"),
        (lambda adapter: (adapter / "adapter_config.json").write_text("{"), "is no configuration of a LoRA adapter"),
        (lambda adapter: (adapter / "adapter_config.json").write_text('{"peft_type": "IA3"}'), "is no configuration of a LoRA adapter"),
        (lambda adapter: (adapter / "adapter_model.safetensors").unlink(), "adapter_model.safetensors' cannot be read"),
        (lambda adapter: (adapter / "adapter_model.safetensors").write_bytes(b"torn"), "adapter_model.safetensors' cannot be read"),
        (lambda adapter: spoil_config(adapter, r=5), "the engine cannot serve the adapter.*lora_rank must be one"),
        (lambda adapter: spoil_config(adapter, r=16), "takes"),
        (lambda adapter: spoil_config(adapter, use_dora=True), "use_dora=True"),
        (lambda adapter: spoil_config(adapter, alpha_pattern={"q_proj": 4}), "alpha_pattern="),
    ],
)
def test_a_folder_that_holds_no_adapter_of_this_base_is_refused_by_name(adapter, spoil, told):
    spoil(adapter)
    with pytest.raises(ConfigError, match=told):
        subject(adapter, None, None, None)


def test_another_models_adapter_is_refused_by_the_first_shape_that_differs(adapter, tmp_path):
    model = chat_model(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"adapter in .*best has .* of shape \(128, 8\), but this base model takes \(64, 8\)"):
        subject(adapter, None, model, None)


def test_an_adapter_on_some_of_the_layers_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"matches \d+ of \d+ tensors"):
        subject(random_adapter(tmp_path / "part", target_modules=["q_proj"]), None, None, None)


def test_a_base_model_whose_config_is_of_other_weights_is_refused(tmp_path):
    shutil.copytree(resolve_model("tiny"), tmp_path / "base")
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    (tmp_path / "base" / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 99}))
    with pytest.raises(ConfigError, match="has num_hidden_layers 99, but the weights beside it 4"):
        subject(None, None, str(tmp_path / "base"), None)
