"""Log-probs of the sampled tokens under the current policy: the forward pass.

They are those of the sampling distribution: logits over temperature, in float32 from the logits on.
"""

from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn


def trained_logprobs(model: PeftModel, token_ids: Tensor, loss_mask: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """[B, T] log-probs with gradient (0 at untrained tokens), and [N] entropies in nats at the N trained tokens."""
    logits = _logits_before(model, token_ids, loss_mask)
    logprobs = torch.log_softmax(logits.float() / temperature, dim=-1)
    sampled = logprobs.gather(-1, token_ids[loss_mask][:, None])[:, 0]
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.new_zeros(token_ids.shape).masked_scatter(loss_mask, sampled), entropy


def _logits_before(model: PeftModel, token_ids: Tensor, loss_mask: Tensor) -> Tensor:
    """[N, vocabulary] logits that predict the trained tokens; the head never sees the other positions."""
    predicts = loss_mask[:, 1:]

    def select(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (inputs[0][predicts], *inputs[1:])

    # A hook rather than a call of the head, since some architectures scale or cap the logits behind it.
    hook = model.get_output_embeddings().register_forward_pre_hook(select)
    try:
        logits: Tensor = model(input_ids=token_ids[:, :-1], use_cache=False).logits
        return logits
    finally:
        hook.remove()
