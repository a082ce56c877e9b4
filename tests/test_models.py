import json
import shutil

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError

from pbt_agents.assets import tiny_model_path
from pbt_agents.errors import ConfigError
from pbt_agents.models import cache_bytes_per_token, check_context, resolve_model


@pytest.fixture
def model(tmp_path):
    """A folder with the files that a model needs, too small to load."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    return folder


@pytest.fixture
def hub(monkeypatch):
    """A hub whose downloads are as told: asked(name, local_files_only) -> folder, or raises."""

    def serve(asked):
        monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, local_files_only=False: asked(name, local_files_only))

    return serve


def test_tiny_is_the_model_in_the_package():
    assert resolve_model("tiny") == str(tiny_model_path().resolve())


def test_a_folder_is_given_as_it_can_be_found_from_anywhere(model, monkeypatch):
    monkeypatch.chdir(model.parent)
    assert resolve_model("model") == str(model)


def test_a_home_is_found(model, monkeypatch):
    monkeypatch.setenv("HOME", str(model.parent))
    assert resolve_model("~/model") == str(model)


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json", "model.safetensors"])
def test_a_missing_file_is_named(model, file):
    """B78."""
    (model / file).unlink()
    with pytest.raises(ConfigError, match=r"safetensors" if file.endswith("safetensors") else file):
        resolve_model(str(model))


def test_a_cached_model_is_taken_without_asking_the_network(model, hub):
    """B78."""

    def asked(name, local_files_only):
        assert local_files_only
        return str(model)

    hub(asked)
    assert resolve_model("someone/small") == str(model)


def test_what_is_not_cached_is_downloaded(model, hub):
    def asked(name, local_files_only):
        if local_files_only:
            raise LocalEntryNotFoundError("not here")
        return str(model)

    hub(asked)
    assert resolve_model("someone/small") == str(model)


def test_why_the_hub_could_not_give_a_model_is_told_in_one_line(hub):
    def asked(name, local_files_only):
        raise LocalEntryNotFoundError("no connection\nand many more words")

    hub(asked)
    with pytest.raises(ConfigError, match=r"'someone/small' is neither a folder here nor .*: no connection$"):
        resolve_model("someone/small")


def test_a_path_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="'/no/such/folder' is neither a folder"):
        resolve_model("/no/such/folder")


def test_an_episode_longer_than_the_model_was_made_for_is_refused(model):
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    check_context(str(model), 512)
    with pytest.raises(ConfigError, match=r"max_episode_tokens is 513.*made for 512"):
        check_context(str(model), 513)


def test_a_model_that_names_no_length_is_taken(model):
    check_context(str(model), 1 << 20)


@pytest.mark.parametrize(
    ("config", "size"),
    [
        # key and value, 2 layers, 4 heads of width 8, 4 bytes
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}, 2 * 2 * 4 * 8 * 4),
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "num_key_value_heads": 1}, 2 * 2 * 1 * 8 * 4),
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "head_dim": 16}, 2 * 2 * 4 * 16 * 4),
    ],
)
def test_what_a_token_takes_in_the_cache_follows_from_the_config(model, config, size):
    (model / "config.json").write_text(json.dumps(config))
    assert cache_bytes_per_token(str(model)) == size


def test_a_copy_of_the_tiny_model_is_a_model_of_ones_own(tmp_path):
    shutil.copytree(tiny_model_path(), tmp_path / "own")
    assert resolve_model(str(tmp_path / "own")) == str(tmp_path / "own")
