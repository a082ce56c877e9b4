import math
from dataclasses import dataclass

import pytest
from torch import Tensor

from pbt_agents.config import ObjectiveConfig
from pbt_agents.errors import GuardError
from pbt_agents.objective import Objective, ObjectiveResult
from pbt_agents.objectives.cispo import Cispo
from pbt_agents.plugins import load, names
from pbt_agents.trainer.guard import check_agreement, check_cap
from pbt_agents.types import PolicyId

CONFIG = ObjectiveConfig(ratio_max=3.0)


@dataclass(frozen=True)
class SaysOneCapUsesAnother:
    ratio_max: float
    used: float

    def __call__(self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> ObjectiveResult:
        return Cispo(self.used)(policy_logprobs, behavior_logprobs, advantages, loss_mask)


@pytest.mark.parametrize("name", names("objective"))
@pytest.mark.parametrize("ratio_max", [1.0001, 3.0, 1e4, math.inf])
def test_every_objective_keeps_to_its_cap(name: str, ratio_max: float):
    config = ObjectiveConfig(objective=name, ratio_max=ratio_max)
    factory, _ = load("objective", name)
    check_cap(factory(config), config)


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (Cispo(ratio_max=5.0), "ratio_max=5.0 where 3.0 was expected"),
        (Cispo(ratio_max=math.inf), "ratio_max=inf where 3.0 was expected"),
        (SaysOneCapUsesAnother(ratio_max=3.0, used=5.0), "weighs a stale token 5, configured is at most 3"),
        (SaysOneCapUsesAnother(ratio_max=3.0, used=math.inf), "weighs a stale token 1627"),
    ],
)
def test_a_cap_that_never_reached_the_loss_is_found(objective: Objective, message: str):
    """B44: whatever the objective says of itself, its gradient is measured."""
    with pytest.raises(GuardError, match=message):
        check_cap(objective, CONFIG)


def test_an_objective_that_says_it_ignores_the_cap_must_not_have_one():
    """Copied from one without, and given a cap: a search over it would be refused for no reason."""
    with pytest.raises(GuardError, match=r"ratio_max=3\.0 where inf was expected"):
        check_cap(Cispo(ratio_max=3.0), ObjectiveConfig("reinforce", ratio_max=3.0))


def figures(mean: float, largest: float) -> dict[str, float]:
    return {"canary/tokens": 40.0, "canary/gap_mean": mean, "canary/gap_max": largest}


@pytest.mark.parametrize(("mean", "largest"), [(2e-6, 3e-4), (1e-4, 0.05), (0.0, 0.0)])
def test_what_two_programs_differ_by_is_let_pass(mean: float, largest: float):
    check_agreement(figures(mean, largest), "canary/", PolicyId("a", 0, 4))


@pytest.mark.parametrize(("mean", "largest"), [(5e-4, 5e-3), (9e-5, 0.06), (math.nan, 0.0), (0.0, math.nan), (math.inf, math.inf)])
def test_what_other_weights_or_one_wrong_token_make_is_told_with_figures(mean: float, largest: float):
    """B12, B37 and B39."""
    with pytest.raises(GuardError, match=rf"disagree on a\.0\.4: log-probs of 40 tokens .* {mean:.2g} nat .* {largest:.2g} at most"):
        check_agreement(figures(mean, largest), "canary/", PolicyId("a", 0, 4))


def test_nothing_sampled_proves_nothing():
    check_agreement({"canary/tokens": 0.0}, "canary/", PolicyId("a", 0, 4))
