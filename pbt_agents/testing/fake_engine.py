"""An engine without a model: it checks what it receives, and answers at once, or when told.

engine = FakeEngine(("a0", "a1"))
engine.hold()                               # generate calls wait from here on
engine.release()                            # and are answered
engine.die()                                # and every call raises EngineDiedError from here on
"""

import asyncio
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pbt_agents.engine import AdapterLayout, LocalEngine, SlotTensor, checksum
from pbt_agents.errors import EngineDiedError, EngineError
from pbt_agents.rollout.answer import Answer, deliver
from pbt_agents.types import AdapterRef, Completion, FloatArray, IntArray, PolicyId, PolicySpan, Sampling

TWO_LAYERS: AdapterLayout = (
    SlotTensor("model.layers.0.self_attn.qkv_proj", 0, "a", (2, 4)),
    SlotTensor("model.layers.0.self_attn.qkv_proj", 0, "b", (4, 2)),
    SlotTensor("model.layers.0.self_attn.qkv_proj", 1, "a", (2, 4)),
    SlotTensor("model.layers.0.self_attn.qkv_proj", 1, "b", (3, 2)),
    SlotTensor("model.layers.0.mlp.down_proj", 0, "a", (2, 5)),
    SlotTensor("model.layers.0.mlp.down_proj", 0, "b", (4, 2)),
)
"""q, k and down of one block, rank 2."""

Policy = Callable[[IntArray, Sampling], list[int]]


def count_on(prompt_ids: IntArray, sampling: Sampling) -> list[int]:
    """The numbers after the prompt's last one, up to a stop token."""
    ids: list[int] = []
    while len(ids) < sampling.max_tokens and not (ids and ids[-1] in sampling.stop_token_ids):
        ids.append(int(prompt_ids[-1]) + 1 + len(ids))
    return ids


class FakeEngine:
    """Implements LocalEngine, with `policy` for a model. hold, release and die may be called from any thread."""

    def __init__(self, agents: tuple[str, ...] = ("a0",), layout: AdapterLayout = TWO_LAYERS, policy: Policy = count_on):
        self.policies = {agent: PolicyId(agent, -1, 0) for agent in agents}
        self.slots: dict[str, FloatArray] = {}
        self.reads = 0
        """Adapter files read."""
        self.asked: list[tuple[str | None, list[int], Sampling, str | None]] = []
        """Arguments of every generate call."""
        self.arrivals = threading.Semaphore(0)
        """Counts up at each generate call, so that a test can wait for one."""
        self.cancellations = threading.Semaphore(0)
        self._layout = layout
        self._policy = policy
        self._held: list[Answer[None]] | None = None
        self._dead = False

    def hold(self) -> None:
        self._held = []

    def release(self) -> None:
        held, self._held = self._held or [], None
        deliver([(answer, None) for answer in held])

    def die(self) -> None:
        self._dead = True
        self.release()

    def layout(self) -> AdapterLayout:
        return self._layout

    async def generate(self, agent: str | None, prompt_ids: IntArray, sampling: Sampling, salt: str | None = None) -> Completion:
        assert prompt_ids.dtype == np.int32, f"prompt ids must be int32, got {prompt_ids.dtype}"
        assert prompt_ids.ndim == 1, "one prompt a call"
        assert len(prompt_ids) > 0, "an empty prompt"
        assert sampling.max_tokens > 0, "nothing to sample"
        if agent is not None and agent not in self.policies:
            raise EngineError(f"no slot for agent '{agent}'")
        self.asked.append((agent, prompt_ids.tolist(), sampling, salt))
        self.arrivals.release()
        policy = PolicyId("", 0, 0) if agent is None else self.policies[agent]
        if self._held is not None:
            await self._wait(self._held)
        self._require_alive()
        ids = self._policy(prompt_ids, sampling)
        stopped = ids[-1] in sampling.stop_token_ids
        return Completion(
            np.array(ids, np.int32),
            np.full(len(ids), -0.1, np.float32),  # not exact in half precision
            "stop" if stopped else "length",
            (PolicySpan(0, len(ids), policy),),
            prompt_tokens=len(prompt_ids),
        )

    async def load_adapter(self, adapter: AdapterRef) -> PolicyId:
        self._require_alive()
        values = np.fromfile(adapter.path, np.float32)
        self.reads += 1
        count = sum(math.prod(tensor.shape) for tensor in self._layout)
        if len(values) != count or checksum(values) != adapter.checksum or not np.isfinite(values).all():
            raise EngineError(f"adapter of {adapter.policy} is not what was announced")
        self.slots[adapter.policy.agent] = values
        self.policies[adapter.policy.agent] = adapter.policy
        return adapter.policy

    async def check_health(self) -> dict[str, float]:
        self._require_alive()
        return {"requests": float(len(self.asked))}

    async def close(self) -> None:
        self.die()

    async def _wait(self, held: list[Answer[None]]) -> None:
        answer: Answer[None] = Answer()
        held.append(answer)
        try:
            await answer
        except asyncio.CancelledError:
            self.cancellations.release()
            raise

    def _require_alive(self) -> None:
        if self._dead:
            raise EngineDiedError("the fake engine died")


if TYPE_CHECKING:
    _engine: LocalEngine = FakeEngine()
