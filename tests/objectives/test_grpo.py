import math

import pytest
import torch

from pbt_agents.objectives.grpo import Grpo


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "capped"),
    [
        (1.1, 2.0, -2.2, False),  # inside: ratio * advantage
        (6.0, 1.0, 0.0, True),  # moved up enough: no gradient, where CISPO keeps one
        (6.0, -1.0, 6.0, False),  # moved up although it was bad: the ratio, without a bound
        (0.5, -1.0, 0.0, True),  # moved down enough
        (0.5, 1.0, -0.5, False),  # moved down although it was good
    ],
)
def test_a_token_past_its_bound_loses_its_gradient(ratio: float, advantage: float, expected: float, capped: bool):
    policy = torch.tensor([[-1.0]], requires_grad=True)
    behavior = torch.tensor([[-1.0 - math.log(ratio)]])
    objective = Grpo(ratio_max=1.28, ratio_min=0.8)
    result = objective(policy, behavior, torch.tensor([[advantage]]), torch.ones(1, 1, dtype=torch.bool))
    result.loss.backward()
    assert policy.grad is not None
    assert policy.grad.item() == pytest.approx(expected, rel=1e-5)
    assert result.capped.item() is capped


def test_the_loss_is_the_clipped_surrogate():
    """Ratios 2 and 0.5, advantages 1 and -1, bounds 0.8 and 1.28: -(1.28 - 0.8)."""
    policy = torch.tensor([[-1.0, -1.0]])
    behavior = policy - torch.tensor([[2.0, 0.5]]).log()
    loss = Grpo(ratio_max=1.28, ratio_min=0.8)(policy, behavior, torch.tensor([[1.0, -1.0]]), torch.ones(1, 2, dtype=torch.bool)).loss
    assert loss.item() == pytest.approx(-0.48, rel=1e-5)


def test_the_share_of_tokens_without_gradient_rises_with_staleness():
    rng = torch.Generator().manual_seed(0)
    drift, advantages = torch.randn(1, 1000, generator=rng), torch.randn(1, 1000, generator=rng)
    shares = []
    for staleness in (0.0, 0.2, 1.0):
        policy = torch.full((1, 1000), -1.0, requires_grad=True)
        result = Grpo(1.2, 0.8)(policy, policy.detach() - staleness * drift, advantages, torch.ones(1, 1000, dtype=torch.bool))
        result.loss.backward()
        assert policy.grad is not None
        shares.append((policy.grad == 0).float().mean().item())
        assert result.capped.float().mean().item() == pytest.approx(shares[-1])
    assert shares[0] == 0.0
    assert shares[0] < shares[1] < shares[2]
