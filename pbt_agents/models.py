"""From what the user calls a model to a folder on this machine, once, before anything else needs it."""

import json
import math
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pbt_agents.assets import tiny_model_path
from pbt_agents.errors import ConfigError
from pbt_agents.json_files import as_written

_LONGEST_NAME = 1000
"""Of a path or a hub id; the system refuses longer ones in words of its own."""
_NEEDED = ("config.json", "tokenizer_config.json")
_INDEX = "model.safetensors.index.json"
_LAYER, _EMBEDDING = re.compile(r"model\.layers\.(\d+)\."), "model.embed_tokens.weight"
"""As the architectures below name them in their weights."""
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
"""Files that hold a vocabulary; a model has one of them."""
ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Those whose blocks have the projections that adapters go on, and that vLLM serves with adapters."""


def resolve_model(name: str) -> str:
    """The local folder of `tiny`, of a path, or of a hub id (downloaded unless all of it is cached).

    Raises ConfigError naming the missing file, or why the hub could not give the model.
    """
    folder = tiny_model_path() if name == "tiny" else Path(name).expanduser()
    if len(name) > _LONGEST_NAME:
        raise ConfigError(f"model has a name of {len(name)} letters, which is no folder here and no hub id: '{name[:40]}...'.")
    if not folder.is_dir():
        return str(_from_hub(name).resolve())
    if missing := _missing(folder):
        raise ConfigError(f"the model folder '{folder}' has no {missing}. Save both model and tokenizer into it with save_pretrained.")
    return str(folder.resolve())


def check_model(folder: str) -> None:
    """Raises ConfigError when the model in a folder has another architecture, no vocabulary, or weights that are cut off."""
    with as_written(Path(folder) / "config.json"):
        cache_bytes_per_token(folder)
        asked = [str(name) for name in _config(folder).get("architectures") or []]
    if not set(asked) & set(ARCHITECTURES):
        raise ConfigError(
            f"the model in '{folder}' is {' or '.join(asked) or 'of an architecture that its config.json does not name'}, "
            f"but adapters are made for {', '.join(ARCHITECTURES)}. Choose a model of one of these."
        )
    if not any((Path(folder) / file).exists() for file in _TOKENIZERS):
        raise ConfigError(
            f"the model folder '{folder}' has no tokenizer, that is none of {', '.join(_TOKENIZERS)}. "
            "Save the model's tokenizer into it with save_pretrained."
        )
    files = _weight_files(folder)
    for file in files:
        if not _is_whole(file):
            raise ConfigError(f"the weights '{file}' are cut off, or are no safetensors file. Copy or download them anew.")
    _check_shapes(folder, {name: tensor["shape"] for file in files for name, tensor in _tensors(file).items()})


def check_context(folder: str, tokens: int) -> None:
    """Raises ConfigError when an episode of so many tokens is longer than the model was made for."""
    made_for = _config(folder).get("max_position_embeddings")
    if made_for is not None and tokens > made_for:
        raise ConfigError(f"max_episode_tokens is {tokens}, but the model in '{folder}' was made for {made_for}. Lower max_episode_tokens.")


def cache_bytes_per_token(folder: str, bytes_per_value: int = 4) -> int:
    """What one token takes in an engine's key-value cache."""
    config: dict[str, int] = _config(folder)
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    return 2 * config["num_hidden_layers"] * (config.get("num_key_value_heads") or heads) * width * bytes_per_value


def vocabulary_size(folder: str) -> int:
    return int(_config(folder)["vocab_size"])


def weight_bytes(folder: str, bytes_per_value: int = 4) -> int:
    """What the weights take in memory, whatever type they have in their files."""
    tensors = [tensor for file in _weight_files(folder) for tensor in _tensors(file).values()]
    return bytes_per_value * sum(int(math.prod(tensor["shape"])) for tensor in tensors)


def _config(folder: str) -> dict[str, Any]:
    file = Path(folder) / "config.json"
    try:
        return dict(json.loads(file.read_text()))
    except ValueError as error:
        raise ConfigError(f"'{file}' is not JSON: {error}. Save the model anew with save_pretrained.") from error


def _check_shapes(folder: str, shapes: Mapping[str, Sequence[int]]) -> None:
    """Raises ConfigError when config.json is that of other weights, which an engine would tell by a traceback."""
    config = _config(folder)
    layers = {int(layer[1]) for name in shapes if (layer := _LAYER.match(name))}
    embedding = shapes.get(_EMBEDDING)
    found = {"num_hidden_layers": len(layers)} | ({"vocab_size": embedding[0], "hidden_size": embedding[1]} if embedding else {})
    for name, value in found.items():
        if value and config.get(name) != value:
            raise ConfigError(
                f"'{Path(folder) / 'config.json'}' has {name} {config.get(name)}, but the weights beside it {value}. "
                "They are of two models: save the model anew with save_pretrained."
            )


def _tensors(file: Path) -> dict[str, dict[str, Any]]:
    """What a safetensors file says of its tensors, by name: dtype, shape and data_offsets."""
    with file.open("rb") as content:
        (length,) = struct.unpack("<Q", content.read(8))
        return {name: tensor for name, tensor in json.loads(content.read(length)).items() if name != "__metadata__"}


def _is_whole(file: Path) -> bool:
    """Whether a safetensors file is as long as it says. A pointer that git-lfs did not follow, and a broken download, are not."""
    try:
        with file.open("rb") as content:
            (length,) = struct.unpack("<Q", content.read(8))
        if length > file.stat().st_size:
            return False
        ends = [int(tensor["data_offsets"][1]) for tensor in _tensors(file).values() if len(tensor["shape"]) >= 0]
        return file.stat().st_size == 8 + int(length) + max(ends, default=0)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False


def _missing(folder: Path) -> str | None:
    """The first file that a model needs and the folder lacks: configs, and every shard of the weights that their index names."""
    for file in (*_NEEDED, *_weights(folder)):
        if not any(found.exists() for found in folder.glob(file)):
            return f"{file} file" if "*" in file else file
    return None


def _weights(folder: Path) -> list[str]:
    """Names of the files that hold the weights. Raises ConfigError for an index that names none."""
    index = folder / _INDEX
    if not index.exists():
        return ["*.safetensors"]
    with as_written(index):
        return sorted(set(json.loads(index.read_text())["weight_map"].values()))


def _weight_files(folder: str) -> list[Path]:
    return [file for name in _weights(Path(folder)) for file in Path(folder).glob(name)]


def _from_hub(name: str) -> Path:
    """The cached folder where it holds a whole model, and otherwise what the hub makes of it."""
    cached = _cached(name)
    if cached and not _missing(cached):
        return cached
    folder = _downloaded(name)
    if missing := _missing(folder):
        raise ConfigError(
            f"model '{name}' is not complete: '{folder}' has no {missing}. Either the hub has none, or it could not be reached for it."
        )
    return folder


def _cached(name: str) -> Path | None:
    """What an earlier download left, of whatever files that was."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def _downloaded(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, IncompleteSnapshotError

    try:
        return Path(snapshot_download(name))
    except IncompleteSnapshotError as error:  # without a network: what is missing need not be needed
        return Path(error.snapshot_path)
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"model '{name}' is neither a folder here nor a model the hub could give: {reason}") from error
