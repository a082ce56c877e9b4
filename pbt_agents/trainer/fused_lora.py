"""PEFT's LoRA layers with one autograd node each.

A layer of PEFT is six nodes: two of them only scale and add outputs as wide as the layer, and backward does both again. On a small
model that is an eighth of an update. Here the adapter's product is accumulated into the base's own output. Parameters, names and files
stay PEFT's.
"""

from collections.abc import Callable
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import Linear
from torch import Tensor
from torch.nn.functional import linear


def fuse(model: PeftModel) -> None:
    """Replace the forward of every layer that this arithmetic covers; others (quantised bases, say) keep PEFT's."""
    for layer in model.modules():
        if type(layer) is Linear and type(layer.base_layer) is torch.nn.Linear:
            layer.forward = _fused_forward(layer, layer.forward)


def _fused_forward(layer: Any, plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    base, a, b, scale = layer.base_layer, layer.lora_A["default"], layer.lora_B["default"], layer.scaling["default"]

    def forward(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if layer.disable_adapters or layer.merged:
            return plain(x, *args, **kwargs)
        output: Tensor = _LoraLinear.apply(x, base.weight, base.bias, a.weight, b.weight, scale)  # type: ignore[no-untyped-call]
        return output

    return forward


class _LoraLinear(torch.autograd.Function):
    """x W^T + bias + scale (x A^T) B^T, with gradients for x, A and B: the base is frozen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        low = rows @ a.t()
        ctx.save_for_backward(rows, low, weight, a, b)
        ctx.scale = scale
        return linear(rows, weight, bias).addmm_(low, b.t(), alpha=scale).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, low, weight, a, b = ctx.saved_tensors
        grad_rows = grad.reshape(-1, grad.shape[-1])
        grad_low = (grad_rows @ b).mul_(ctx.scale)
        grad_a = grad_low.t() @ rows
        grad_b = (low.t() @ grad_rows).t() * ctx.scale
        # The first layer's input comes from the frozen embedding and wants none.
        grad_x = (grad_rows @ weight).addmm_(grad_low, a).view(*grad.shape[:-1], -1) if ctx.needs_input_grad[0] else None
        return grad_x, None, None, grad_a, grad_b, None
