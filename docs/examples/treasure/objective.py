"""Half of the correction: a token weighs the root of its ratio, within the bounds. Less variance than CISPO's, and some bias.

    loss = -sg(clamp(ratio ** 0.5, ratio_min, ratio_max)) * advantage * log pi(token)

Summed over trained tokens; log-probs in nats, advantages per token. sg stops the gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pbt_agents.config import ObjectiveConfig
from pbt_agents.objective import Objective, ObjectiveFactory, ObjectiveResult
from pbt_agents.objectives._trained import importance_ratio, trained_only


@dataclass(frozen=True)
class Tempered:
    ratio_max: float
    ratio_min: float = 0.0

    def __call__(self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> ObjectiveResult:
        policy, behavior, advantages = trained_only(loss_mask, policy_logprobs, behavior_logprobs, advantages)
        with torch.no_grad():
            ratio = importance_ratio(policy, behavior)
            weight = ratio.sqrt().clamp(self.ratio_min, self.ratio_max)
        return ObjectiveResult(loss=-(weight * advantages * policy).sum(), ratio=ratio, capped=weight != ratio.sqrt())


def from_config(config: ObjectiveConfig) -> Objective:
    return Tempered(config.ratio_max, config.ratio_min)


OBJECTIVE: ObjectiveFactory = from_config
