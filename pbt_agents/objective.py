"""What a policy objective is: a pure function of arrays, in a file that exports OBJECTIVE.

A file whose objective has no use for a bound says so: IGNORES = ("ratio_max", "ratio_min"). It is read without importing the file.
Padding, micro-batches, normalisation and the optimizer are the trainer's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pbt_agents.config import ObjectiveConfig

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class ObjectiveResult:
    """Sums over the trained tokens of a micro-batch, so that micro-batches add up."""

    loss: Tensor
    """Scalar, summed over trained tokens; the trainer divides by its normaliser."""
    ratio: Tensor
    """[B, T] detached policy / behaviour probability, 1 at untrained tokens."""
    capped: Tensor
    """[B, T] bool, where a bound acted."""


class Objective(Protocol):
    """Loss of policy log-probs that carry the gradient."""

    @property
    def ratio_max(self) -> float:
        """The bound in use, for read-back; inf where the objective has none."""
        ...

    def __call__(self, policy_logprobs: Tensor, behavior_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> ObjectiveResult:
        """All [B, T]: float32, float32, float32, bool. Values at untrained tokens may be anything, even not finite."""
        ...


class ObjectiveFactory(Protocol):
    """What OBJECTIVE is."""

    def __call__(self, config: ObjectiveConfig) -> Objective: ...
