import math

import torch

from pbt_agents.objectives.reinforce import Reinforce


def test_the_ratio_is_reported_and_never_used():
    """Advantage 0.5, log pi = -1: loss 0.5 and gradient -0.5, though the ratio is 6."""
    policy = torch.tensor([[-1.0]], requires_grad=True)
    behavior = torch.tensor([[-1.0 - math.log(6.0)]])
    result = Reinforce()(policy, behavior, torch.tensor([[0.5]]), torch.ones(1, 1, dtype=torch.bool))
    result.loss.backward()
    assert result.loss.item() == 0.5
    assert policy.grad is not None
    assert policy.grad.item() == -0.5
    torch.testing.assert_close(result.ratio, torch.tensor([[6.0]]))
    assert not result.capped.any()
    assert Reinforce().ratio_max == math.inf
