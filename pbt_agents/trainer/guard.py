"""What must hold while training, or it would be silently wrong.

An objective keeps to the cap it was configured with: a search over `ratio_max` whose mutations never reach the loss would run to its
end and find nothing. Engine and trainer agree on what the policy in training has just sampled.
"""

import math
from collections.abc import Mapping

import torch

from pbt_agents.config import ObjectiveConfig
from pbt_agents.errors import GuardError
from pbt_agents.objective import Objective
from pbt_agents.types import PolicyId

PROBE_LOG_RATIO = 12.0
"""Nats: a ratio of 162,755."""
MEAN_GAP, LARGEST_GAP = 1e-4, 0.05
"""Nats. Two programs differ by 3e-7 on average and 2e-5 at most, weights one optimizer step at rate 1e-4 apart by 5e-4 on average, and a
wrong token by whole nats."""


def check_cap(objective: Objective, config: ObjectiveConfig) -> None:
    """The objective names the configured cap, and a token far beyond it weighs no more. One that ignores the cap names none."""
    cap = math.inf if "ratio_max" in config.ignored else config.ratio_max
    if objective.ratio_max != cap:
        raise GuardError(
            f"objective '{config.objective}' runs with ratio_max={objective.ratio_max} where {cap} was expected. The file of an objective "
            "without a cap says IGNORES = ('ratio_max',), and no other does."
        )
    policy = torch.zeros(1, 1, requires_grad=True)
    behavior, one, mask = torch.full((1, 1), -PROBE_LOG_RATIO), torch.ones(1, 1), torch.ones(1, 1, dtype=torch.bool)
    (gradient,) = torch.autograd.grad(objective(policy, behavior, one, mask).loss, policy)
    weight = abs(gradient.item())
    if not weight <= cap * (1 + 1e-6):
        raise GuardError(f"objective '{config.objective}' weighs a stale token {weight:.6g}, configured is at most {cap}.")


def check_agreement(figures: Mapping[str, float], prefix: str, policy: PolicyId | None) -> None:
    """Raises GuardError when what `report.agreement` says of a policy is more than two programs differ by."""
    if not figures[f"{prefix}tokens"]:
        return
    tokens, mean, largest = (figures[f"{prefix}{name}"] for name in ("tokens", "gap_mean", "gap_max"))
    # Not `any above`: a gap that is not a number must fail too.
    if not (mean <= MEAN_GAP and largest <= LARGEST_GAP):
        raise GuardError(
            f"engine and trainer disagree on {policy}: log-probs of {tokens:.0f} tokens it has just sampled lie {mean:.2g} nat apart on "
            f"average (allowed {MEAN_GAP:g}) and {largest:.2g} at most ({LARGEST_GAP:g}). The engine sampled with another adapter, "
            "temperature or context, or what it sampled was changed on its way."
        )
