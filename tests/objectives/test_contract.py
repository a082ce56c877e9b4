"""What every objective keeps, whatever its formula: those of the package, and the example that the documentation gives."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pbt_agents.config import ObjectiveConfig
from pbt_agents.objective import Objective
from pbt_agents.plugins import load, names

CONFIG = ObjectiveConfig(ratio_max=4.0)
OBJECTIVES = [*names("objective"), "treasure.objective:OBJECTIVE"]
MASK = torch.tensor([[False, True, True, False], [True, False, True, True]])


@pytest.fixture(params=OBJECTIVES)
def objective(request: pytest.FixtureRequest) -> Objective:
    factory, _ = load("objective", request.param)
    return factory(replace(CONFIG, objective=request.param))


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Policy log-probs, behaviour log-probs and advantages [2, 4]."""
    rng = torch.Generator().manual_seed(seed)
    policy, behavior = (-4 * torch.rand(2, 4, generator=rng) for _ in range(2))
    return policy, behavior, torch.randn(2, 4, generator=rng)


def gradient(objective: Objective, policy: Tensor, behavior: Tensor, advantages: Tensor, mask: Tensor = MASK) -> Tensor:
    policy = policy.clone().requires_grad_()
    objective(policy, behavior, advantages, mask).loss.backward()
    assert policy.grad is not None
    return policy.grad


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 200.0, -1e30])
def test_garbage_at_untrained_tokens_changes_nothing(objective: Objective, garbage: float):
    """B15, B20: zero times infinity never enters the loss, nor does anything the environment wrote."""
    clean = batch()
    dirty = [torch.where(MASK, value, garbage) for value in clean]
    result, expected = objective(*dirty, MASK), objective(*clean, MASK)
    assert torch.isfinite(expected.loss)
    torch.testing.assert_close(result.loss, expected.loss, rtol=0, atol=0)
    torch.testing.assert_close(gradient(objective, *dirty), gradient(objective, *clean), rtol=0, atol=0)
    assert (result.ratio[~MASK] == 1).all()
    assert not result.capped[~MASK].any()


def test_untrained_tokens_have_no_gradient_and_trained_ones_a_finite_one(objective: Objective):
    grad = gradient(objective, *batch())
    assert (grad[~MASK] == 0).all()
    assert torch.isfinite(grad).all()
    assert grad[MASK].any()


def test_a_gap_of_two_hundred_nats_stays_finite(objective: Objective):
    """B15: exp(200) overflows float32."""
    policy, behavior, advantages = torch.full((2, 4), -1.0), torch.full((2, 4), -201.0), torch.ones(2, 4)
    assert torch.isfinite(objective(policy, behavior, advantages, MASK).loss)
    assert torch.isfinite(gradient(objective, policy, behavior, advantages)).all()


def test_on_policy_the_gradient_is_that_of_reinforce(objective: Objective):
    policy, _, advantages = batch()
    torch.testing.assert_close(gradient(objective, policy, policy, advantages), torch.where(MASK, -advantages, 0.0))


def test_micro_batches_add_up(objective: Objective):
    policy, behavior, advantages = batch()
    whole = objective(policy, behavior, advantages, MASK).loss
    rows = [objective(policy[i : i + 1], behavior[i : i + 1], advantages[i : i + 1], MASK[i : i + 1]).loss for i in range(2)]
    torch.testing.assert_close(whole, rows[0] + rows[1])


def test_what_is_reported_carries_no_gradient(objective: Objective):
    policy, behavior, advantages = batch()
    result = objective(policy.requires_grad_(), behavior, advantages, MASK)
    assert result.loss.requires_grad
    assert not result.ratio.requires_grad
    assert result.capped.dtype == torch.bool
    torch.testing.assert_close(result.ratio[MASK], (policy - behavior).detach().exp()[MASK])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_bound_in_use_is_the_configured_one_or_none_where_the_file_says_so(name: str):
    config = replace(CONFIG, objective=name)
    factory, _ = load("objective", name)
    assert factory(config).ratio_max == (math.inf if "ratio_max" in config.ignored else 4.0)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_bound_is_ignored_exactly_where_the_file_says_so(name: str):
    """Ratios of e^-3 to e^3 lie on both sides of either bound."""
    factory, _ = load("objective", name)
    policy, behavior = torch.full((2, 4), -4.0), torch.tensor([[-4.0, -1.0, -7.0, -4.0], [-7.0, -4.0, -1.0, -4.0]])
    advantages = torch.tensor([[1.0], [-2.0]]).expand(2, 4)
    for bound, low, high in (("ratio_max", 1.5, 4.0), ("ratio_min", 0.1, 0.9)):
        configs = [ObjectiveConfig(name, **{bound: value}) for value in (low, high)]
        first, second = (factory(config)(policy, behavior, advantages, MASK).loss for config in configs)
        assert torch.equal(first, second) == (bound in configs[0].ignored)
