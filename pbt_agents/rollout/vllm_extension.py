"""Adapter slots inside a vLLM worker: registered once, then written in place.

vLLM mixes this class into its worker and reaches it by `collective_rpc`; it runs in the engine's step thread, between two
steps. It owns the slots' tensors. Who may write what, and under which name, is the engine's business (vllm_engine.py).
"""

from typing import Any

import torch

from pbt_agents.engine import AdapterLayout, SlotTensor


class AdapterSlots:
    """One slot per agent, each pinned where the forward pass reads it."""

    model_runner: Any
    """Given by vLLM's worker."""

    def register_slots(self, requests: list[Any], rank: int) -> AdapterLayout:
        """Give every LoRA request a slot of zeros, which equals the base model; returns the order of a slot's values."""
        manager = self.model_runner.lora_manager
        adapters = manager._adapter_manager
        self._slots: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        layout: AdapterLayout = ()
        with manager.dummy_lora_cache():
            for request in requests:
                manager.add_dummy_lora(request, rank=rank)
                adapters.pin_adapter(request.lora_int_id)
        for request in requests:
            layout, live, registered = _slot_tensors(adapters, request.lora_int_id)
            self._slots[request.lora_int_id] = live, registered
        return layout

    def write_slot(self, lora_id: int, values: torch.Tensor) -> bool:
        """Copy flat float32 values into the slot. False, with the old values in place, when it does not read back as written or when
        a value is beyond the slot's own type.
        """
        live, registered = self._slots[lora_id]
        rounded = values.to(live[0].device, live[0].dtype)
        if not torch.isfinite(rounded).all():
            return False
        written = _split(rounded, live)
        torch._foreach_copy_(live, written)
        if not all(torch.equal(slot, source) for slot, source in zip(live, written, strict=True)):
            torch._foreach_copy_(live, registered)
            return False
        # vLLM fills a slot from the registered copy whenever it activates the adapter anew.
        torch._foreach_copy_(registered, written)
        return True

    def read_slot(self, lora_id: int) -> torch.Tensor:
        """The slot's values as the forward pass sees them, flat, float32, on the CPU."""
        return torch.cat([slot.flatten() for slot in self._slots[lora_id][0]]).float().cpu()

    def clean_cache(self) -> None:
        """Take NaN and infinity out of the keys and values: attention multiplies the unused rest of a block with 0, and 0 * NaN is NaN."""
        for cache in self.model_runner.kv_caches:
            cache.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def _slot_tensors(adapters: Any, lora_id: int) -> tuple[AdapterLayout, list[torch.Tensor], list[torch.Tensor]]:
    """The layout of a slot, the views that the forward pass reads, and vLLM's registered copy."""
    layout: list[SlotTensor] = []
    live: list[torch.Tensor] = []
    registered: list[torch.Tensor] = []
    slot = adapters.lora_index_to_id.index(lora_id)
    weights = adapters.get_adapter(lora_id).loras
    for name, module in adapters.modules.items():
        for part, pair in enumerate(zip(_parts(weights[name].lora_a), _parts(weights[name].lora_b), strict=True)):
            for matrix, own, stacked in zip(("a", "b"), pair, (module.lora_a_stacked, module.lora_b_stacked), strict=True):
                layout.append(SlotTensor(name, part, matrix, tuple(own.shape)))  # type: ignore[arg-type]
                live.append(stacked[part][slot, 0, : own.shape[0], : own.shape[1]])
                registered.append(own)
    return tuple(layout), live, registered


def _parts(matrices: Any) -> list[torch.Tensor]:
    """The projections fused in a module; a module of one projection holds its matrix bare."""
    return list(matrices) if isinstance(matrices, list | tuple) else [matrices]


def _split(values: torch.Tensor, shaped_like: list[torch.Tensor]) -> list[torch.Tensor]:
    parts = values.split([tensor.numel() for tensor in shaped_like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, shaped_like, strict=True)]
