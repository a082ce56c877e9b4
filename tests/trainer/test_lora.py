import json
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from pbt_agents.config import ModelConfig
from pbt_agents.errors import ConfigError
from pbt_agents.testing.tiny_model import random_model
from pbt_agents.trainer.lora import TARGETS, adapter_scale, adapter_tensors, build_policy, read_adapter, save_adapter

CONFIG = ModelConfig(lora_rank=8, lora_alpha=16)


@pytest.fixture
def policy(model_path: str) -> PeftModel:
    return build_policy(model_path, CONFIG, seed=0)


def randomise(model: PeftModel) -> None:
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in adapter_tensors(model).values():
            tensor.copy_(0.1 * torch.randn(tensor.shape, generator=rng))


def logits(model: PeftModel) -> Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(20)[None]).logits


def test_a_fresh_adapter_is_the_base_on_every_projection_and_nothing_else_trains(policy: PeftModel, model_path: str):
    base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    torch.testing.assert_close(logits(policy), logits(base), rtol=0, atol=0)
    tensors = adapter_tensors(policy)
    assert len(tensors) == 4 * len(TARGETS) * 2
    assert all("lora_A" in name or "lora_B" in name for name in tensors)
    assert tensors["base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"].shape == (8, 128)


def test_the_seed_alone_draws_the_adapter_and_global_random_state_is_kept(model_path: str):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, again, other = (adapter_tensors(build_policy(model_path, CONFIG, seed)) for seed in (3, 3, 4))
    assert torch.equal(torch.rand(1), expected)
    a = [name for name in first if "lora_A" in name]
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in a)


@pytest.mark.parametrize(("rank", "alpha", "scale"), [(8, 16, 2.0), (16, 16, 1.0), (8, 4, 0.5)])
def test_the_adapter_acts_at_alpha_over_rank(model_path: str, rank: int, alpha: int, scale: float):
    """B40: output = W x + scale B A x."""
    model = build_policy(model_path, ModelConfig(lora_rank=rank, lora_alpha=alpha), seed=0)
    randomise(model)
    assert adapter_scale(model) == scale
    layer = model.get_submodule("base_model.model.model.layers.1.mlp.down_proj")
    x = torch.randn(5, 384, generator=torch.Generator().manual_seed(0))
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    torch.testing.assert_close(layer(x), x @ layer.base_layer.weight.T + scale * (x @ a.T) @ b.T, rtol=1e-5, atol=1e-5)


def test_a_saved_adapter_is_loaded_by_peft_itself(policy: PeftModel, model_path: str, tmp_path: Path):
    """B43: wrapped once, and the same policy."""
    randomise(policy)
    save_adapter(policy, tmp_path)
    base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, str(tmp_path))
    torch.testing.assert_close(logits(loaded), logits(policy), rtol=0, atol=1e-5)
    assert not torch.allclose(logits(loaded), logits(build_policy(model_path, CONFIG, seed=0)))
    names = set(load_file(tmp_path / "adapter_model.safetensors"))
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in names


def test_reading_gives_back_the_bytes(policy: PeftModel, model_path: str, tmp_path: Path):
    """B43."""
    randomise(policy)
    save_adapter(policy, tmp_path)
    read = read_adapter(build_policy(model_path, CONFIG, seed=9), tmp_path)
    assert all(torch.equal(read[name], tensor) for name, tensor in adapter_tensors(policy).items())


@pytest.mark.parametrize(
    ("field", "value"),
    [("modules_to_save", ["lm_head"]), ("use_rslora", True), ("lora_alpha", 8), ("r", 16), ("bias", "all"), ("use_dora", True)],
)
def test_an_adapter_of_another_kind_is_refused_by_name(policy: PeftModel, tmp_path: Path, field: str, value: object):
    """B43, B40."""
    save_adapter(policy, tmp_path)
    file = tmp_path / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    with pytest.raises(ConfigError, match=field):
        read_adapter(policy, tmp_path)


def test_an_adapter_with_foreign_names_is_refused_with_the_count(policy: PeftModel, tmp_path: Path):
    """B39."""
    save_adapter(policy, tmp_path)
    file = tmp_path / "adapter_model.safetensors"
    save_file({f"other.{name}": tensor for name, tensor in load_file(file).items()}, file)
    with pytest.raises(ConfigError, match=r"matches 0 of 56 tensors.*other\."):
        read_adapter(policy, tmp_path)


def test_another_architecture_takes_the_same_adapter(tmp_path: Path):
    model = build_policy(random_model(tmp_path, "llama", vocabulary=260), CONFIG, seed=0)
    assert len(adapter_tensors(model)) == 56


def test_a_model_without_the_projections_is_refused(tmp_path: Path):
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2)).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="has no q_proj"):
        build_policy(str(tmp_path), CONFIG, seed=0)
