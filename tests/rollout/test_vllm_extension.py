"""Slots as vLLM keeps them: matrices of all slots stacked, and a registered copy of each adapter."""

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pbt_agents.engine import SlotTensor
from pbt_agents.rollout.vllm_extension import AdapterSlots

RANK, INPUT, OUTPUTS = 2, 4, (4, 3)


class Manager:
    """As much of vLLM's LoRA managers as the extension uses: two slots of rank up to 8, a fused module and a plain one."""

    def __init__(self, dtype: torch.dtype = torch.float32):
        self._adapter_manager = self
        self.lora_index_to_id: list[int | None] = [None, None]
        self.loras: dict[int, Any] = {}
        self.modules = {
            "layers.0.qkv_proj": SimpleNamespace(
                lora_a_stacked=tuple(torch.zeros(2, 1, 8, INPUT, dtype=dtype) for _ in OUTPUTS),
                lora_b_stacked=tuple(torch.zeros(2, 1, output, 8, dtype=dtype) for output in OUTPUTS),
            ),
            "layers.0.o_proj": SimpleNamespace(
                lora_a_stacked=(torch.zeros(2, 1, 8, INPUT, dtype=dtype),), lora_b_stacked=(torch.zeros(2, 1, 5, 8, dtype=dtype),)
            ),
        }
        self._dtype = dtype

    def dummy_lora_cache(self) -> Any:
        return contextlib.nullcontext()

    def add_dummy_lora(self, request: Any, rank: int) -> None:
        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=self._dtype)

        fused = SimpleNamespace(lora_a=[zeros(rank, INPUT) for _ in OUTPUTS], lora_b=[zeros(output, rank) for output in OUTPUTS])
        plain = SimpleNamespace(lora_a=zeros(rank, INPUT), lora_b=zeros(5, rank))
        self.loras[request.lora_int_id] = SimpleNamespace(loras={"layers.0.qkv_proj": fused, "layers.0.o_proj": plain})

    def pin_adapter(self, lora_id: int) -> None:
        self.lora_index_to_id[self.lora_index_to_id.index(None)] = lora_id

    def get_adapter(self, lora_id: int) -> Any:
        return self.loras[lora_id]


def slots(manager: Manager) -> tuple[AdapterSlots, Any]:
    extension = AdapterSlots()
    extension.model_runner = SimpleNamespace(lora_manager=manager)
    layout = extension.register_slots([SimpleNamespace(lora_int_id=7), SimpleNamespace(lora_int_id=5)], rank=RANK)
    return extension, layout


COUNT = RANK * INPUT + 4 * RANK + RANK * INPUT + 3 * RANK + RANK * INPUT + 5 * RANK


def test_the_layout_names_every_matrix_in_order():
    _, layout = slots(Manager())
    assert layout == (
        SlotTensor("layers.0.qkv_proj", 0, "a", (2, 4)),
        SlotTensor("layers.0.qkv_proj", 0, "b", (4, 2)),
        SlotTensor("layers.0.qkv_proj", 1, "a", (2, 4)),
        SlotTensor("layers.0.qkv_proj", 1, "b", (3, 2)),
        SlotTensor("layers.0.o_proj", 0, "a", (2, 4)),
        SlotTensor("layers.0.o_proj", 0, "b", (5, 2)),
    )


def test_an_adapter_lands_in_its_own_slot_and_in_the_registered_copy():
    manager = Manager()
    extension, _ = slots(manager)
    values = torch.arange(1, COUNT + 1, dtype=torch.float32)

    assert extension.write_slot(5, values)

    torch.testing.assert_close(extension.read_slot(5), values)
    assert not extension.read_slot(7).any()
    stacked = manager.modules["layers.0.qkv_proj"].lora_b_stacked[1]
    assert stacked[1, 0, :, :RANK].flatten().tolist() == [25, 26, 27, 28, 29, 30]
    assert not stacked[1, 0, :, RANK:].any(), "beyond the rank there is nothing"
    registered = manager.loras[5].loras["layers.0.qkv_proj"].lora_b[1]
    assert registered.flatten().tolist() == [25, 26, 27, 28, 29, 30]


def test_the_tensors_stay_where_they_were():
    """Captured graphs hold their addresses."""
    manager = Manager()
    extension, _ = slots(manager)
    before = [tensor.data_ptr() for module in manager.modules.values() for tensor in (*module.lora_a_stacked, *module.lora_b_stacked)]
    extension.write_slot(5, torch.ones(COUNT))
    after = [tensor.data_ptr() for module in manager.modules.values() for tensor in (*module.lora_a_stacked, *module.lora_b_stacked)]
    assert before == after


def test_a_slot_that_does_not_read_back_gets_its_old_values_back(monkeypatch):
    extension, _ = slots(Manager())
    assert extension.write_slot(5, torch.ones(COUNT))
    with monkeypatch.context() as fault:
        fault.setattr(torch, "equal", lambda *_: False)
        assert not extension.write_slot(5, torch.full((COUNT,), 2.0))
    assert extension.read_slot(5).unique().tolist() == [1.0]


@pytest.mark.parametrize("value", [1.0, 1.0009765625])
def test_a_bfloat16_slot_holds_the_rounded_values(value):
    extension, _ = slots(Manager(torch.bfloat16))
    assert extension.write_slot(7, torch.full((COUNT,), value))
    assert extension.read_slot(7).unique().tolist() == [1.0]


def test_a_value_beyond_the_slots_type_is_not_written():
    extension, _ = slots(Manager(torch.float16))
    assert not extension.write_slot(7, torch.full((COUNT,), 1e6))
    assert not extension.read_slot(7).any()


def test_a_cleaned_cache_keeps_what_is_finite():
    cache = torch.tensor([1.0, torch.nan, torch.inf, -torch.inf, -2.0])
    extension = AdapterSlots()
    extension.model_runner = SimpleNamespace(kv_caches=[cache])
    extension.clean_cache()
    assert cache.tolist() == [1.0, 0.0, 0.0, 0.0, -2.0]
