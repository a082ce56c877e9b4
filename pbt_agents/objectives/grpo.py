"""GRPO: the clipped surrogate of PPO on group-relative advantages, without a value model.

    loss = -min(ratio * advantage, clip(ratio, ratio_min, ratio_max) * advantage)        ratio = pi(token) / behaviour(token)

Summed over trained tokens; advantages per token. The bounds are absolute and need not mirror each other: PPO's epsilon of 0.2 is
ratio_min = 0.8 and ratio_max = 1.2. A token that moved past its bound in the direction of its advantage has no gradient at all, so
the effective batch shrinks as data get stale; past it in the other direction its weight is the ratio, without a bound.
Schulman et al. (2017), "Proximal policy optimization algorithms"; Shao et al. (2024), "DeepSeekMath".
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pbt_agents.config import ObjectiveConfig
from pbt_agents.objective import Objective, ObjectiveFactory, ObjectiveResult
from pbt_agents.objectives._trained import importance_ratio, trained_only


@dataclass(frozen=True)
class Grpo:
    ratio_max: float
    ratio_min: float = 0.0

    def __call__(self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> ObjectiveResult:
        policy, behavior, advantages = trained_only(loss_mask, policy_logprobs, behavior_logprobs, advantages)
        ratio = importance_ratio(policy, behavior)
        free, clipped = ratio * advantages, ratio.clamp(self.ratio_min, self.ratio_max) * advantages
        return ObjectiveResult(loss=-torch.minimum(free, clipped).sum(), ratio=ratio.detach(), capped=(clipped < free).detach())


def from_config(config: ObjectiveConfig) -> Objective:
    return Grpo(config.ratio_max, config.ratio_min)


OBJECTIVE: ObjectiveFactory = from_config
