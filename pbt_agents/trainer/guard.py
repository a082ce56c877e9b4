"""Proof by trial that an objective keeps to the cap it was configured with.

A search over `ratio_max` whose mutations never reach the loss would run to its end and find nothing.
"""

import math

import torch

from pbt_agents.config import ObjectiveConfig
from pbt_agents.errors import GuardError
from pbt_agents.objective import Objective

PROBE_LOG_RATIO = 12.0
"""Nats: a ratio of 162,755."""


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
