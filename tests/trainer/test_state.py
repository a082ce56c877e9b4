import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pbt_agents.config import ModelConfig
from pbt_agents.errors import GuardError
from pbt_agents.trainer.lora import adapter_tensors, build_policy
from pbt_agents.trainer.state import copy_into, read_state, save_state, start_moments, weights_checksum


def test_moments_started_here_step_as_those_that_adam_starts_itself():
    steps = []
    for started in (True, False):
        weight = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
        moments = start_moments(optimizer, {"w": weight}) if started else {}
        weight.grad = torch.tensor([1.0, -2.0, 0.5])
        optimizer.step()
        assert moments.get("step/w", torch.ones(())).item() == 1
        steps.append(weight.detach().clone())
    assert torch.equal(*steps)


def test_the_checksum_follows_names_and_values_and_not_the_order_they_came_in():
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])
    assert weights_checksum({"a": a, "b": b}) == weights_checksum({"b": b, "a": a})
    assert weights_checksum({"a": a, "b": b}) != weights_checksum({"a": a, "b": b.nextafter(torch.tensor(4.0))})


def test_values_are_copied_in_place():
    live = {"a": torch.nn.Parameter(torch.zeros(2))}
    address = live["a"].data_ptr()
    copy_into(live, {"a": torch.ones(2)})
    assert live["a"].tolist() == [1, 1]
    assert live["a"].data_ptr() == address


@pytest.fixture
def saved(model_path: str, tmp_path: Path) -> tuple[Path, dict[str, Tensor]]:
    model = build_policy(model_path, ModelConfig(), seed=0)
    adapter = adapter_tensors(model)
    moments = start_moments(torch.optim.AdamW(list(adapter.values()), fused=True), adapter)
    save_state(tmp_path, model, adapter, moments, version=7)
    return tmp_path, adapter


def test_what_was_saved_is_read_with_its_version(saved: tuple[Path, dict[str, Tensor]], model_path: str):
    folder, adapter = saved
    read, moments, version = read_state(folder, build_policy(model_path, ModelConfig(), seed=1))
    assert version == 7
    assert weights_checksum(read) == weights_checksum(adapter) == json.loads((folder / "trainer.json").read_text())["weights_checksum"]
    assert len(moments) == 3 * len(adapter)


@pytest.mark.parametrize(("file", "kind"), [("adapter_model.safetensors", "weights"), ("optimizer.safetensors", "moments")])
def test_weights_other_than_those_that_were_saved_are_refused(saved: tuple[Path, dict[str, Tensor]], model_path: str, file: str, kind: str):
    """B48: a clone that reads something else than its donor's snapshot must not go on."""
    folder, _ = saved
    tensors = load_file(folder / file)
    name = next(iter(tensors))
    save_file(tensors | {name: tensors[name] + 1e-3}, folder / file)
    with pytest.raises(GuardError, match=f"the {kind} in"):
        read_state(folder, build_policy(model_path, ModelConfig(), seed=1))
