"""The base model with a LoRA adapter on it, and the adapter as a file.

Owns where the adapter sits and how it is stored: PEFT's own format, which peft and vLLM load. The base never changes.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from pbt_agents.config import ModelConfig
from pbt_agents.errors import ConfigError
from pbt_agents.trainer.fused_lora import fuse

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
WEIGHTS_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"


def build_policy(model_path: str, config: ModelConfig, seed: int) -> PeftModel:
    """The base in float32, frozen, with a fresh adapter: A random from `seed`, B zero. Global random state is left as it was."""
    disable_progress_bar()
    local = Path(model_path).is_dir()
    base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, attn_implementation="sdpa", local_files_only=local)
    present = {name.rpartition(".")[2] for name, _ in base.named_modules()}
    if missing := [target for target in TARGETS if target not in present]:
        raise ConfigError(
            f"model '{model_path}' has no {', '.join(missing)}: adapters go on {', '.join(TARGETS)}. Choose a Llama-like model."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = get_peft_model(base, _lora(config))
    fuse(model)
    # No dropout anywhere: the trainer's log-probs are to be the engine's.
    return model.eval()


def adapter_tensors(model: PeftModel) -> dict[str, Tensor]:
    """What is trained and published: the parameters of the adapter, live, by their names in the model."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def adapter_scale(model: PeftModel) -> float:
    """The factor on B A x. One number, read from the layers that apply it."""
    scales = {float(module.scaling["default"]) for module in model.modules() if hasattr(module, "scaling") and hasattr(module, "lora_A")}
    (scale,) = scales
    return scale


def save_adapter(model: PeftModel, folder: Path) -> None:
    save_file({_file_name(name): tensor.detach().contiguous() for name, tensor in adapter_tensors(model).items()}, folder / WEIGHTS_FILE)
    model.peft_config["default"].save_pretrained(str(folder))


def read_adapter(model: PeftModel, folder: Path) -> dict[str, Tensor]:
    """The tensors of a saved adapter by their names in the model. Refuses one that the model would not apply as it was trained."""
    _check_config(json.loads((folder / CONFIG_FILE).read_text()), model.peft_config["default"], folder)
    stored, wanted = _load(folder / WEIGHTS_FILE), {_file_name(name): tensor for name, tensor in adapter_tensors(model).items()}
    _check_names(set(stored), set(wanted), folder)
    _check_shapes(stored, wanted, folder)
    return {name: stored[_file_name(name)] for name in adapter_tensors(model)}


def check_adapter(folder: Path, model_path: str, config: ModelConfig) -> None:
    """Raises ConfigError when the adapter is not one of this base, or is not finite. No weight of the base is read."""
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model_path, local_files_only=Path(model_path).is_dir()))
        model = get_peft_model(base, _lora(config))
    broken = [name for name, tensor in read_adapter(model, folder).items() if not torch.isfinite(tensor).all()]
    if broken:
        raise ConfigError(
            f"adapter in {folder} is not finite in {len(broken)} tensors, such as {broken[0]}. Its training diverged; take another."
        )


def _lora(config: ModelConfig) -> LoraConfig:
    return LoraConfig(r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules=list(TARGETS), task_type="CAUSAL_LM")


def _load(file: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"'{file}' cannot be read: {error}. An adapter is saved by peft's save_pretrained.") from error
    return tensors


def _file_name(name: str) -> str:
    return name.replace(".default.", ".")


def _check_config(stored: Mapping[str, Any], own: Any, folder: Path) -> None:
    expected = {
        "r": own.r,
        "lora_alpha": own.lora_alpha,
        "use_rslora": False,
        "use_dora": False,
        "bias": "none",
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    for field, value in expected.items():
        if (stored.get(field) or None) != (value or None):
            raise ConfigError(f"adapter in {folder} has {field}={stored.get(field)}, but this model applies {field}={value}.")


def _check_names(stored: set[str], wanted: set[str], folder: Path) -> None:
    if stored != wanted:
        matched, foreign, missing = len(stored & wanted), sorted(stored - wanted)[:2], sorted(wanted - stored)[:2]
        raise ConfigError(f"adapter in {folder} matches {matched} of {len(wanted)} tensors; unknown: {foreign}, missing: {missing}.")


def _check_shapes(stored: Mapping[str, Tensor], wanted: Mapping[str, Tensor], folder: Path) -> None:
    for name, tensor in stored.items():
        if tensor.shape != wanted[name].shape:
            raise ConfigError(
                f"adapter in {folder} has {name} of shape {tuple(tensor.shape)}, but this base model takes {tuple(wanted[name].shape)}. "
                "Name the base model that it was trained on."
            )
