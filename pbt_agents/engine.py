"""What a rollout engine offers, in its own process and, with the same verbs, at the other end of a socket."""

import hashlib
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from pbt_agents.types import AdapterRef, Completion, IntArray, PolicyId, Sampling

FUSED_PROJECTIONS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
"""Modules that an engine fuses, to the projections in their parts, as checkpoints name them."""


@dataclass(frozen=True, slots=True)
class SlotTensor:
    """One matrix of an engine's adapter slot. Their order is the order of the values in a published adapter."""

    module: str
    """The engine's module, e.g. `model.layers.0.self_attn.qkv_proj`."""
    part: int
    """Which of the projections fused in the module (0 q, 1 k, 2 v; 0 gate, 1 up; else 0)."""
    matrix: Literal["a", "b"]
    shape: tuple[int, int]
    """a: [rank, in], b: [out, rank]."""

    @property
    def projection(self) -> str:
        """The layer of the checkpoint that it adapts, e.g. `model.layers.0.self_attn.k_proj`."""
        parent, _, name = self.module.rpartition(".")
        return f"{parent}.{FUSED_PROJECTIONS.get(name, (name,))[self.part]}"


AdapterLayout = tuple[SlotTensor, ...]


class RolloutEngine(Protocol):
    """Samples actions with the adapter of one agent, and takes new adapters while it does."""

    async def generate(self, agent: str | None, prompt_ids: IntArray, sampling: Sampling, salt: str | None = None) -> Completion:
        """Sample one action after `prompt_ids` [P] with the agent's adapter, or the base model for None.

        `salt` keys the prefix cache further than the PolicyId does not; None means the whole PolicyId.
        Raises EngineError for a refused request, EngineDiedError when the engine is gone.
        """
        ...

    async def load_adapter(self, adapter: AdapterRef) -> PolicyId:
        """Put the adapter into its agent's slot between two steps; returns the policy now answering, once its checksum was read back."""
        ...

    async def check_health(self) -> dict[str, float]:
        """Counters of the engine; raises EngineDiedError when it does not answer."""
        ...

    async def close(self) -> None: ...


class LocalEngine(RolloutEngine, Protocol):
    """An engine in this process."""

    def layout(self) -> AdapterLayout:
        """Order and shapes of the values in an adapter published to it."""
        ...


def checksum(values: np.ndarray) -> str:
    """Of an adapter's float32 values in slot order."""
    return hashlib.blake2b(np.ascontiguousarray(values, np.float32).tobytes(), digest_size=16).hexdigest()
