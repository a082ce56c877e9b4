"""CISPO: every token keeps its gradient, and only its weight is capped.

    loss = -sg(min(ratio, ratio_max)) * advantage * log pi(token)        ratio = pi(token) / behaviour(token)

Summed over trained tokens; log-probs in nats, advantages per token. sg stops the gradient: it flows through log pi alone, so a
token far outside the bounds still teaches, at a bounded weight. The lower side is open unless ratio_min is above 0.
MiniMax-M1 (2025), "Scaling test-time compute efficiently with lightning attention".
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pbt_agents.config import ObjectiveConfig
from pbt_agents.objective import Objective, ObjectiveFactory, ObjectiveResult
from pbt_agents.objectives._trained import importance_ratio, trained_only


@dataclass(frozen=True)
class Cispo:
    ratio_max: float
    ratio_min: float = 0.0

    def __call__(self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> ObjectiveResult:
        policy, behavior, advantages = trained_only(loss_mask, policy_logprobs, behavior_logprobs, advantages)
        with torch.no_grad():
            ratio = importance_ratio(policy, behavior)
            weight = ratio.clamp(self.ratio_min, self.ratio_max)
        return ObjectiveResult(loss=-(weight * advantages * policy).sum(), ratio=ratio, capped=weight != ratio)


def from_config(config: ObjectiveConfig) -> Objective:
    return Cispo(config.ratio_max, config.ratio_min)


OBJECTIVE: ObjectiveFactory = from_config
