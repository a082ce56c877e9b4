"""LoRA on vLLM's CPU build: one matrix product per batch instead of one gather of weights per token.

The stock kernel copies an adapter's matrices once per token, and gives rows without an adapter (index -1) the last slot's. The
replacement multiplies by all slots at once, stacked, and masks out what is not a token's own; a batch of one adapter uses that
adapter's matrices alone. `install()` replaces nothing where the installed kernel is already right and gathers nothing.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def install() -> bool:
    """Patch the CPU kernel when it needs it; returns whether it is patched."""
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
    from vllm.platforms import current_platform

    if PunicaWrapperCPU.add_lora_linear is add_lora_linear:
        return True
    if not current_platform.is_cpu() or not needs_patch(PunicaWrapperCPU):
        return False
    PunicaWrapperCPU.update_metadata = update_metadata
    PunicaWrapperCPU.add_lora_linear = add_lora_linear
    return True


def needs_patch(wrapper_class: type) -> bool:
    """Whether the kernel changes a row without an adapter, or makes a tensor as large as one copy of the weights per token.

    Asked by running it on 8 tokens of two adapters and none, so that no version number has to be believed.
    """
    from vllm.lora.layers import LoRAMapping

    tokens, rank, width = 8, 8, 16
    wrapper = wrapper_class(tokens, max_batches=tokens, device="cpu")
    wrapper.update_metadata(LoRAMapping((1, 0) * 4, (1, 0) * 4, is_prefill=False), [1, 2], max_loras=3, vocab_size=width)
    ones = torch.ones(tokens, width)
    output = torch.zeros(tokens, width)
    slots = (torch.ones(2, 1, rank, width),), (torch.ones(2, 1, width, rank),)
    with _LargestTensor() as made:  # type: ignore[no-untyped-call]
        wrapper.add_lora_linear(output, ones, *slots, 1.0, (width,))
    own = torch.tensor([float(rank * width), 0.0] * 4)
    return not torch.equal(output[:, 0], own) or made.numel >= tokens * rank * width


class _LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor made inside it."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and not func.is_view:
            self.numel = max(self.numel, result.numel())
        return result


def update_metadata(self: Any, mapping: Any, lora_index_to_id: list[int | None], max_loras: int, vocab_size: int, **kwargs: Any) -> None:
    """Once per batch: which slot each token uses, and whether they all use the same."""
    self._update_base_metadata(mapping, lora_index_to_id, max_loras, vocab_size)
    self.is_prefill = mapping.is_prefill
    used = set(mapping.index_mapping)
    only = used.pop() if len(used) == 1 else None
    self.no_lora = only == 0
    self._only_slot = lora_index_to_id.index(only) if only else None
    self._masks = {}


def add_lora_linear(
    self: Any,
    y: torch.Tensor,
    x: torch.Tensor,
    lora_a_stacked: tuple[torch.Tensor, ...],
    lora_b_stacked: tuple[torch.Tensor, ...],
    scale: float,
    output_slices: tuple[int, ...],
    **kwargs: Any,
) -> None:
    """Add B(Ax) of each token's adapter to y, in place. a: [slots, 1, rank, in], b: [slots, 1, out, rank]."""
    if self.no_lora:
        return
    x = x.view(-1, x.shape[-1])
    y = y.view(-1, y.shape[-1])
    start = 0
    for a, b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
        target = y[:, start : start + width]
        if self._only_slot is not None:
            target.addmm_(x @ a[self._only_slot, 0].t(), b[self._only_slot, 0].t(), alpha=scale)
        else:
            slots, _, rank, _ = a.shape
            # Filled, not multiplied with 0: another agent's diverged adapter may be infinite here, and 0 * inf would spread to all.
            shrunk = (x @ a.view(slots * rank, -1).t()).masked_fill_(_other_slots(self, slots, rank), 0.0)
            target.addmm_(shrunk, b[:, 0].transpose(1, 2).reshape(slots * rank, width), alpha=scale)
        start += width


def _other_slots(self: Any, slots: int, rank: int) -> torch.Tensor:
    """[tokens, slots * rank]: true where the column belongs to a slot that is not the token's. Made once per batch."""
    masks: dict[tuple[int, int], torch.Tensor] = self._masks
    if (slots, rank) not in masks:
        own = self.token_lora_indices[:, None] == torch.arange(slots, device=self.device)
        masks[slots, rank] = ~own.repeat_interleave(rank, 1)
    return masks[slots, rank]
