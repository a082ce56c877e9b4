"""The CPU LoRA kernel against a plain loop over tokens. Real vLLM classes, no engine."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pbt_agents.rollout import vllm_cpu_lora

pytestmark = pytest.mark.slow

SLOTS, RANK, WIDTH, PARTS = 3, 8, 32, (24, 8, 8)


@pytest.fixture(scope="module")
def stock() -> Any:
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    return PunicaWrapperCPU


@pytest.fixture(scope="module")
def patched(stock) -> Any:
    return type("Patched", (stock,), {"update_metadata": vllm_cpu_lora.update_metadata, "add_lora_linear": vllm_cpu_lora.add_lora_linear})


def weights(seed: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    draw = torch.Generator().manual_seed(seed)
    a = tuple(torch.randn(SLOTS, 1, RANK, WIDTH, generator=draw) / WIDTH**0.5 for _ in PARTS)
    b = tuple(torch.randn(SLOTS, 1, width, RANK, generator=draw) / RANK**0.5 for width in PARTS)
    return a, b


def by_token(x: Tensor, y: Tensor, slots: list[int], a: tuple[Tensor, ...], b: tuple[Tensor, ...], scale: float) -> Tensor:
    """The definition: each token's own slot, none for -1."""
    expected = y.clone().double()
    for row, slot in enumerate(slots):
        if slot >= 0:
            added = [
                scale * (part_b[slot, 0].double() @ (part_a[slot, 0].double() @ x[row].double()))
                for part_a, part_b in zip(a, b, strict=True)
            ]
            expected[row] += torch.cat(added)
    return expected.float()


def apply(wrapper_class: Any, slots: list[int], scale: float = 1.0, prefill: bool = True) -> tuple[Tensor, Tensor]:
    """What the kernel makes of random tokens in these slots, and what it should."""
    from vllm.lora.layers import LoRAMapping

    a, b = weights(seed=1)
    draw = torch.Generator().manual_seed(2)
    x, y = torch.randn(len(slots), WIDTH, generator=draw), torch.randn(len(slots), sum(PARTS), generator=draw)
    expected = by_token(x, y, slots, a, b, scale)
    ids = tuple(0 if slot < 0 else 11 + slot for slot in slots)
    wrapper = wrapper_class(len(slots), max_batches=len(slots), device="cpu")
    wrapper.update_metadata(LoRAMapping(ids, ids, is_prefill=prefill), [11, 12, 13], max_loras=SLOTS + 1, vocab_size=32)
    wrapper.add_lora_linear(y, x, a, b, scale, PARTS)
    return y, expected


@pytest.mark.parametrize(
    "slots",
    [[0] * 5, [2] * 5, [-1] * 5, [0, 0, 1, 2, 2], [1, -1, 0, -1, 2], [-1, 1, 1], [2]],
    ids=["first", "last", "base", "mixed", "mixed with base", "base first", "one token"],
)
@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("prefill", [True, False])
def test_every_row_gets_its_own_adapter_and_only_that(patched, slots, scale, prefill):
    got, expected = apply(patched, slots, scale, prefill)
    torch.testing.assert_close(got, expected, rtol=0, atol=5e-7 * expected.abs().max().item())


def test_rows_of_the_base_keep_their_bits(patched):
    got, expected = apply(patched, [0, -1, 1, -1])
    assert torch.equal(got[1], expected[1])
    assert torch.equal(got[3], expected[3])


def test_an_infinite_adapter_stays_with_its_own_rows(patched, monkeypatch):
    """B15: its rows in the stacked product are infinite for every token, and 0 * inf is NaN."""
    a, b = weights(seed=1)
    for part in (*a, *b):
        part[1] = 1e38
    monkeypatch.setitem(globals(), "weights", lambda seed: (a, b))
    got, expected = apply(patched, [0, 1, -1, 2])
    assert not got[1].isfinite().all()
    for row in (0, 2, 3):
        torch.testing.assert_close(got[row], expected[row], rtol=1e-6, atol=1e-5)


def test_a_batch_forgets_the_slots_of_the_one_before(patched):
    from vllm.lora.layers import LoRAMapping

    a, b = weights(seed=1)
    wrapper = patched(4, max_batches=4, device="cpu")
    x = torch.ones(4, WIDTH)
    for ids, slots in (((11, 12, 0, 13), [0, 1, -1, 2]), ((13, 0, 12, 11), [2, -1, 1, 0]), ((12,) * 4, [1] * 4), ((0,) * 4, [-1] * 4)):
        y = torch.zeros(4, sum(PARTS))
        wrapper.update_metadata(LoRAMapping(ids, ids, is_prefill=False), [11, 12, 13], max_loras=SLOTS + 1, vocab_size=32)
        wrapper.add_lora_linear(y, x, a, b, 1.0, PARTS)
        torch.testing.assert_close(y, by_token(x, torch.zeros_like(y), slots, a, b, 1.0), rtol=1e-6, atol=1e-5)


def test_the_installed_kernel_needs_the_patch_and_the_patch_does_not(stock, patched):
    """If the first half fails, the installed vLLM has mended its kernel: the patch then switches itself off, and may go."""
    assert vllm_cpu_lora.needs_patch(stock)
    assert not vllm_cpu_lora.needs_patch(patched)


def test_a_right_kernel_that_gathers_weights_per_token_still_needs_it(patched):
    class Gathering(patched):  # type: ignore[misc, valid-type]
        def add_lora_linear(self, y: Tensor, x: Tensor, a: Any, b: Any, *rest: Any, **kwargs: Any) -> None:
            super().add_lora_linear(y, x, a, b, *rest, **kwargs)
            a[0][self.token_lora_indices.clamp(min=0)]

    assert vllm_cpu_lora.needs_patch(Gathering)


def test_a_fast_kernel_that_is_wrong_for_the_base_still_needs_it(patched):
    class LastSlot(patched):  # type: ignore[misc, valid-type]
        def add_lora_linear(self, y: Tensor, x: Tensor, a: Any, b: Any, *rest: Any, **kwargs: Any) -> None:
            self._token_lora_indices[self._token_lora_indices < 0] = len(a[0]) - 1
            super().add_lora_linear(y, x, a, b, *rest, **kwargs)

    assert vllm_cpu_lora.needs_patch(LastSlot)


def test_nothing_is_patched_off_the_cpu(stock, monkeypatch):
    from vllm.platforms import current_platform

    before = stock.add_lora_linear
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    assert not vllm_cpu_lora.install()
    assert stock.add_lora_linear is before


def test_installing_patches_the_class_once(stock, monkeypatch):
    monkeypatch.setattr(stock, "add_lora_linear", stock.add_lora_linear)
    monkeypatch.setattr(stock, "update_metadata", stock.update_metadata)
    assert vllm_cpu_lora.install()
    assert stock.add_lora_linear is vllm_cpu_lora.add_lora_linear
    assert vllm_cpu_lora.install()
    got, expected = apply(stock, [0, -1, 2])
    np.testing.assert_allclose(got, expected, atol=1e-5)
