import math

import pytest
import torch

from pbt_agents.objective import ObjectiveResult
from pbt_agents.objectives.cispo import Cispo


def one_token(ratio: float, advantage: float, objective: Cispo) -> tuple[float, ObjectiveResult]:
    """d loss / d log pi of one token with log pi = -1."""
    policy = torch.tensor([[-1.0]], requires_grad=True)
    behavior = torch.tensor([[-1.0 - math.log(ratio)]])
    result = objective(policy, behavior, torch.tensor([[advantage]]), torch.ones(1, 1, dtype=torch.bool))
    result.loss.backward()
    assert policy.grad is not None
    return policy.grad.item(), result


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(6.0, 1.0, -5.0), (2.0, 1.0, -2.0), (6.0, -1.0, 5.0), (0.01, 1.0, -0.01)],
)
def test_the_weight_is_capped_and_the_gradient_kept(ratio: float, advantage: float, expected: float):
    """B10: a clip would give 0 for the first, a missing stop-gradient 0 for the second."""
    gradient, _ = one_token(ratio, advantage, Cispo(ratio_max=5.0))
    assert gradient == pytest.approx(expected, rel=1e-6)


def test_the_loss_is_weight_times_advantage_times_minus_the_log_prob():
    _, result = one_token(6.0, 0.5, Cispo(ratio_max=5.0))
    assert result.loss.item() == pytest.approx(5.0 * 0.5 * 1.0)
    assert result.ratio.item() == pytest.approx(6.0, rel=1e-6)
    assert result.capped.item() is True


def test_a_lower_bound_acts_only_when_asked_for():
    gradient, result = one_token(0.1, 1.0, Cispo(ratio_max=5.0, ratio_min=0.8))
    assert gradient == pytest.approx(-0.8)
    assert result.capped.item() is True
    _, result = one_token(0.1, 1.0, Cispo(ratio_max=5.0))
    assert result.capped.item() is False


def test_without_a_cap_the_weight_is_the_ratio():
    gradient, result = one_token(1000.0, 1.0, Cispo(ratio_max=math.inf))
    assert gradient == pytest.approx(-1000.0, rel=1e-5)
    assert result.capped.item() is False


def test_a_masked_gap_of_two_hundred_nats_leaves_loss_and_gradient_exact():
    """B15: log gaps [0, 200], mask [1, 0] -> gradient [-1, 0]; multiplying by the mask gives NaN for both."""
    policy = torch.tensor([[-1.0, 0.0]], requires_grad=True)
    behavior = torch.tensor([[-1.0, -200.0]])
    loss = Cispo(ratio_max=math.inf)(policy, behavior, torch.ones(1, 2), torch.tensor([[True, False]])).loss
    loss.backward()
    assert loss.item() == 1.0
    assert policy.grad is not None
    assert policy.grad.tolist() == [[-1.0, 0.0]]
