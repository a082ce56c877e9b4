"""REINFORCE: the policy gradient as if the current policy had sampled the data.

    loss = -advantage * log pi(token)

Summed over trained tokens; log-probs in nats, advantages per token. No ratio and no bound: right on-policy, biased by staleness
otherwise. It is the control that shows what a correction is worth.
Williams (1992), "Simple statistical gradient-following algorithms for connectionist reinforcement learning".
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pbt_agents.config import ObjectiveConfig
from pbt_agents.objective import Objective, ObjectiveFactory, ObjectiveResult
from pbt_agents.objectives._trained import importance_ratio, trained_only


@dataclass(frozen=True)
class Reinforce:
    ratio_max: float = math.inf

    def __call__(self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> ObjectiveResult:
        policy, behavior, advantages = trained_only(loss_mask, policy_logprobs, behavior_logprobs, advantages)
        ratio = importance_ratio(policy.detach(), behavior)
        return ObjectiveResult(loss=-(advantages * policy).sum(), ratio=ratio, capped=torch.zeros_like(loss_mask))


def from_config(config: ObjectiveConfig) -> Objective:
    """The bounds of the configuration have nothing to act on here."""
    return Reinforce()


OBJECTIVE: ObjectiveFactory = from_config
IGNORES = ("ratio_max", "ratio_min")
"""So that nobody searches them. Written out, since it is read without importing this file; an objective that uses both has none."""
