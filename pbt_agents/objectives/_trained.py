"""What every objective does first: forget the untrained tokens, then form the ratio.

A mask multiplied in after `exp` turns infinity times zero into NaN, and selecting after `exp` still leaves NaN in the gradient.
So untrained tokens become 0 before any arithmetic.
"""

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Nats. exp(20) = 4.9e8 is finite in float32 and far above any useful cap."""


def trained_only(loss_mask: Tensor, *values: Tensor) -> list[Tensor]:
    """Each [B, T] value with 0 at untrained tokens, whatever stood there; no gradient reaches those either."""
    return [torch.where(loss_mask, value, 0.0) for value in values]


def importance_ratio(policy_logprobs: Tensor, behavior_logprobs: Tensor) -> Tensor:
    """policy / behaviour probability of tokens that went through `trained_only`; 1 at the untrained ones."""
    return (policy_logprobs - behavior_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
