import importlib.util
import json
import re
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub._tree_cache import TreeCacheEntry, write_tree_cache
from huggingface_hub.errors import IncompleteSnapshotError, LocalEntryNotFoundError

from pbt_agents.assets import tiny_model_path
from pbt_agents.errors import ConfigError
from pbt_agents.models import (
    ARCHITECTURES,
    cache_bytes_per_token,
    check_context,
    check_model,
    resolve_model,
    vocabulary_size,
    weight_bytes,
)


@pytest.fixture
def model(tmp_path):
    """A folder with the files that a model needs, too small to load."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text("{}")
    (folder / "model.safetensors").touch()
    return folder


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
INDEX = json.dumps({"metadata": {}, "weight_map": {"embed": SHARDS[0], "layer": SHARDS[0], "head": SHARDS[1]}})
CONFIGS = {"config.json": "{}", "tokenizer_config.json": "{}"}
SHARDED = {**CONFIGS, "model.safetensors.index.json": INDEX, **dict.fromkeys(SHARDS, "")}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Cache:
    """A cache as huggingface_hub lays it out: a snapshot of links into blobs. Downloads are counted, and bring `on_hub`."""

    def __init__(self, root: Path, on_hub: dict[str, str]) -> None:
        self.model, self.on_hub, self.downloads = root / "models--someone--small", on_hub, 0
        self.folder = self.model / "snapshots" / COMMIT

    def add(self, files: dict[str, str]) -> None:
        for folder in (self.model / "refs", self.model / "blobs", self.folder):
            folder.mkdir(parents=True, exist_ok=True)
        (self.model / "refs" / "main").write_text(COMMIT)
        for name, text in files.items():
            (self.model / "blobs" / name).write_text(text)
            (self.folder / name).unlink(missing_ok=True)
            (self.folder / name).symlink_to(Path("../../blobs") / name)

    def download(self, name: str) -> str:
        self.downloads += 1
        self.add(self.on_hub)
        return str(self.folder)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The model `someone/small`, of two shards: nothing cached, all of it on the hub."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    cache, snapshot_download = Cache(tmp_path, SHARDED), huggingface_hub.snapshot_download

    def served(name, local_files_only=False):
        return snapshot_download(name, local_files_only=True) if local_files_only else cache.download(name)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", served)
    return cache


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """The same model, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return Cache(tmp_path, {})


def without(*names: str) -> dict[str, str]:
    return {name: text for name, text in SHARDED.items() if name not in names}


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


def test_a_missing_shard_is_named(model):
    """B78."""
    (model / "model.safetensors.index.json").write_text(INDEX)
    (model / SHARDS[0]).touch()
    with pytest.raises(ConfigError, match=r"has no model-00002-of-00002\.safetensors\. Save both .* with save_pretrained"):
        resolve_model(str(model))
    (model / SHARDS[1]).touch()
    assert resolve_model(str(model)) == str(model)


def test_what_is_not_cached_is_downloaded(cache):
    assert resolve_model("someone/small") == str(cache.folder)
    assert cache.downloads == 1


@pytest.mark.parametrize("files", [SHARDED, {**CONFIGS, "model.safetensors": ""}], ids=["sharded", "whole"])
def test_a_cached_model_is_taken_without_asking_the_network(cache, files):
    """B78."""
    cache.add(files)
    assert resolve_model("someone/small") == str(cache.folder)
    assert cache.downloads == 0


@pytest.mark.parametrize(
    "missing", [(SHARDS[1],), SHARDS, ("config.json",), ("tokenizer_config.json",), ("model.safetensors.index.json", *SHARDS)]
)
def test_a_partly_cached_model_is_completed(cache, missing):
    """B78: as after loading the tokenizer alone, or an interrupted download."""
    cache.add(without(*missing))
    assert resolve_model("someone/small") == str(cache.folder)
    assert cache.downloads == 1


def test_a_link_to_a_blob_that_is_gone_is_no_file(cache):
    cache.add({**CONFIGS, "model.safetensors": ""})
    (cache.model / "blobs" / "model.safetensors").unlink()
    assert resolve_model("someone/small") == str(cache.folder)
    assert cache.downloads == 1


def test_a_model_without_safetensors_on_the_hub_is_refused_with_the_file(cache):
    """Nobody can save_pretrained into the hub's cache."""
    cache.on_hub = {**CONFIGS, "pytorch_model.bin": ""}
    with pytest.raises(
        ConfigError, match=r"^model 'someone/small' is not complete: .* has no \*\.safetensors file\. Either the hub"
    ) as caught:
        resolve_model("someone/small")
    assert "save_pretrained" not in str(caught.value)


def test_a_partly_cached_model_without_a_network_is_refused_with_the_file(offline):
    offline.add(without(SHARDS[1]))
    with pytest.raises(ConfigError, match=r"^model 'someone/small' is not complete: .* has no model-00002-of-00002\.safetensors\."):
        resolve_model("someone/small")


def test_a_cached_model_is_taken_without_a_network_though_the_hub_has_files_more(offline):
    """As after a download of what is needed only: huggingface_hub then knows of the others, and calls it incomplete."""
    offline.add(SHARDED)
    write_tree_cache(str(offline.model), COMMIT, {name: TreeCacheEntry(1, "0" * 40, None, None, None) for name in (*SHARDED, "model.onnx")})
    with pytest.raises(IncompleteSnapshotError):
        huggingface_hub.snapshot_download("someone/small", local_files_only=True)
    assert resolve_model("someone/small") == str(offline.folder)


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


@pytest.fixture
def own(tmp_path):
    """A copy of the tiny model, to be broken."""
    shutil.copytree(tiny_model_path(), tmp_path / "own")
    check_model(str(tmp_path / "own"))
    return tmp_path / "own"


def changed(model, **values):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({name: value for name, value in (config | values).items() if value is not None}))


@pytest.mark.parametrize(
    ("architectures", "told"),
    [
        (["GPT2LMHeadModel"], "is GPT2LMHeadModel, but adapters are made for LlamaForCausalLM"),
        (["T5Model", "T5ForConditionalGeneration"], "is T5Model or T5ForConditionalGeneration"),
        ([], "is of an architecture that its config.json does not name"),
        (None, "is of an architecture that its config.json does not name"),
    ],
)
def test_an_architecture_that_adapters_are_not_made_for_is_refused(own, architectures, told):
    changed(own, architectures=architectures)
    with pytest.raises(ConfigError, match=told):
        check_model(str(own))


def test_vllm_serves_every_architecture_with_adapters_on_the_projections_that_are_trained():
    """Read from its source, since importing it takes long."""
    models = Path(importlib.util.find_spec("vllm").origin).parent / "model_executor" / "models"
    registry = (models / "registry.py").read_text()
    for name in ARCHITECTURES:
        (module,) = re.search(rf'"{name}": \(\s*"(\w+)",\s*"{name}"', registry).groups()
        source = (models / f"{module}.py").read_text()
        assert re.search(rf"class {name}\((LlamaForCausalLM|[^)]*SupportsLoRA)", source), name


@pytest.mark.parametrize(
    "content", [b"", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", b"\xff" * 64, b"\2\0\0\0\0\0\0\0{]"]
)
def test_weights_that_are_no_safetensors_file_are_refused(own, content):
    """As a pointer is that git-lfs did not follow."""
    (own / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"own/model\.safetensors' are cut off, or are no safetensors file"):
        check_model(str(own))


@pytest.mark.parametrize("change", [-1, 1])
def test_weights_of_another_length_than_they_say_are_refused(own, change):
    content = (own / "model.safetensors").read_bytes()
    (own / "model.safetensors").write_bytes(content[:change] if change < 0 else content + b"x")
    with pytest.raises(ConfigError, match="cut off"):
        check_model(str(own))


@pytest.mark.parametrize(("name", "value"), [("num_hidden_layers", 99), ("vocab_size", 5), ("hidden_size", 7)])
def test_a_config_of_other_weights_is_refused(own, name, value):
    changed(own, **{name: value})
    with pytest.raises(ConfigError, match=rf"own/config\.json' has {name} {value}, but the weights beside it (4|32|128)\."):
        check_model(str(own))


@pytest.mark.parametrize("content", ["[]", "{}", '{"weight_map": 3}', "weights"])
def test_an_index_that_names_no_files_is_refused(own, content):
    (own / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ConfigError, match=r"own/model\.safetensors\.index\.json' is not as it should be"):
        resolve_model(str(own))


@pytest.mark.parametrize("header", [b"[1]", b'{"w": 3}', b'{"w": {"data_offsets": [0]}}', b'{"w": {"data_offsets": 5, "shape": []}}'])
def test_weights_whose_header_says_something_else_are_refused(own, header):
    (own / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ConfigError, match="cut off, or are no safetensors file"):
        check_model(str(own))


def test_a_model_takes_four_bytes_for_each_value_of_its_file_whatever_type_that_has():
    """The tiny model's file: 2 bytes each, and a header of some thousand."""
    file = tiny_model_path() / "model.safetensors"
    assert weight_bytes(str(tiny_model_path())) == pytest.approx(2 * file.stat().st_size, rel=0.01)
    assert vocabulary_size(str(tiny_model_path())) == 32
