import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pbt_agents.config import ModelConfig
from pbt_agents.trainer.logprobs import trained_logprobs
from pbt_agents.trainer.lora import build_policy


class FixedLogits(nn.Module):
    """Answers the same logits at every position, scaled behind the head as some architectures do."""

    def __init__(self, logits: Tensor, scale: float = 1.0) -> None:
        super().__init__()
        self.head, self.scale, self.seen = nn.Linear(1, len(logits), bias=False, dtype=logits.dtype), scale, 0
        self.head.weight.data = logits[:, None].clone()

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, input_ids: Tensor, use_cache: bool) -> Any:
        logits = self.head(torch.ones(*input_ids.shape, 1, dtype=self.head.weight.dtype))
        self.seen = logits.numel() // logits.shape[-1]
        return SimpleNamespace(logits=logits * self.scale)


def first_token(model: nn.Module, temperature: float, token: int = 0) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy of `token` sampled after one other token."""
    logprobs, entropy = trained_logprobs(model, torch.tensor([[1, token]]), torch.tensor([[False, True]]), temperature)
    return logprobs[0, 1], entropy


def test_temperature_divides_the_logits_before_the_softmax():
    """B12: logits [2, 1, 0] at 0.5 -> -0.1429; unscaled -0.4076, divided afterwards -0.8152."""
    model = FixedLogits(torch.tensor([2.0, 1.0, 0.0]))
    assert first_token(model, 0.5)[0].item() == pytest.approx(-0.1429, abs=1e-4)
    assert first_token(model, 1.0)[0].item() == pytest.approx(-0.4076, abs=1e-4)


def test_entropy_is_that_of_the_tempered_distribution():
    assert first_token(FixedLogits(torch.zeros(8)), 0.7)[1].item() == pytest.approx(math.log(8))
    expected = torch.distributions.Categorical(logits=torch.tensor([4.0, 2.0, 0.0])).entropy()
    torch.testing.assert_close(first_token(FixedLogits(torch.tensor([2.0, 1.0, 0.0])), 0.5)[1], expected[None])


def test_a_bf16_model_is_read_in_float32():
    """B17: the softmax over 50,000 tokens agrees with double precision on the same logits; in bf16 two thirds would be off by a percent."""
    logits = torch.randn(50_000, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = torch.log_softmax(logits.double(), 0)
    for token in range(0, 50_000, 5_000):
        logprob, entropy = first_token(FixedLogits(logits), 1.0, token)
        assert logprob.dtype == entropy.dtype == torch.float32
        assert math.exp(logprob.item() - expected[token].item()) == pytest.approx(1.0, abs=1e-4)


def test_logits_are_made_only_where_a_token_is_trained_and_keep_what_the_model_does_to_them():
    model = FixedLogits(torch.tensor([2.0, 1.0, 0.0]), scale=0.5)
    mask = torch.tensor([[False, True, False, False], [False, False, True, True]])
    logprobs, entropy = trained_logprobs(model, torch.zeros(2, 4, dtype=torch.long), mask, 1.0)
    assert model.seen == len(entropy) == 3
    expected = torch.log_softmax(torch.tensor([1.0, 0.5, 0.0]), 0)[0]
    torch.testing.assert_close(logprobs, torch.where(mask, expected, 0.0))
    assert not model.head._forward_pre_hooks


def test_padded_rows_have_the_log_probs_of_the_model_alone(model_path: str):
    """B17: another batch shape moves no ratio by a part in ten thousand."""
    model = build_policy(model_path, ModelConfig(), seed=0)
    token_ids = torch.randint(0, 32, (3, 20), generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(3, 20, dtype=torch.bool)
    mask[0, 3:8], mask[1, 1:19], mask[2, 11:20] = True, True, True
    logprobs, _ = trained_logprobs(model, token_ids, mask, 0.8)
    for row, length in enumerate((8, 19, 20)):
        alone = model(input_ids=token_ids[row : row + 1, :length]).logits[0, :-1].double() / 0.8
        expected = torch.log_softmax(alone, -1).gather(-1, token_ids[row, 1:length, None])[:, 0]
        own = mask[row, 1:length]
        torch.testing.assert_close(logprobs[row, 1:length][own].double(), expected[own], rtol=0, atol=1e-4)
    assert (logprobs[~mask] == 0).all()
