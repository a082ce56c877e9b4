"""Brings a trained adapter to every engine that serves its agent.

Owns the file in which it travels, and the wait for every engine's confirmation. What is trained and when is left to the
trainer, how an engine takes it to the engine. All engines see the same file, so a private folder on this machine is needed, best
on a file system in memory.

    publisher = AdapterPublisher(layout, engines, run_folder / agent, scale=alpha / rank)
    report = await publisher.publish(tensors, PolicyId(agent, lineage, version))    # returns when every engine answers with it
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pbt_agents.engine import AdapterLayout, RolloutEngine, checksum
from pbt_agents.errors import GuardError
from pbt_agents.sync.slot_order import SlotOrder
from pbt_agents.types import AdapterRef, PolicyId

if TYPE_CHECKING:
    from torch import Tensor

KEPT_FILES = 2
"""An engine that was given up on may still be reading the file before the last."""


@dataclass(frozen=True)
class SyncReport:
    """One publication."""

    policy: PolicyId
    size: int
    """Bytes, read by each engine."""
    prepare_s: float
    """Flattening, checksum and writing, before any engine is told."""
    engine_s: tuple[float, ...]
    """From telling each engine until it confirmed."""

    @property
    def seconds(self) -> float:
        return self.prepare_s + max(self.engine_s, default=0.0)


class AdapterPublisher:
    """For one agent. Publications follow one another; each file is new, so that none is ever read half-written."""

    def __init__(self, layout: AdapterLayout, engines: Sequence[RolloutEngine], folder: str | Path, scale: float):
        """`scale` multiplies B: alpha / rank, read from the layers that train."""
        self._order = SlotOrder(layout, scale)
        self._engines = engines
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files: deque[Path] = deque()
        self._written = 0
        self._turn = asyncio.Lock()

    async def publish(self, tensors: Mapping[str, "Tensor"], policy: PolicyId) -> SyncReport:
        """Load the adapter into every engine. `tensors` are named as the parameters of a PEFT model, and are read before this returns.

        Raises GuardError before any engine is told when a tensor has no place, is missing or is not finite; EngineError when an engine
        refused, after all have answered. Publishing the same policy again is harmless, and completes what failed half-way.
        """
        async with self._turn:
            started = time.perf_counter()
            adapter, size = await asyncio.to_thread(self._write, tensors, policy)
            prepared = time.perf_counter()
            answers = await asyncio.gather(*[_load(engine, adapter) for engine in self._engines], return_exceptions=True)
        latencies = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            latencies.append(answer)
        return SyncReport(policy, size, prepared - started, tuple(latencies))

    def _write(self, tensors: Mapping[str, "Tensor"], policy: PolicyId) -> tuple[AdapterRef, int]:
        values = self._order.flatten(tensors)
        self._written += 1
        path = self._folder / f"{policy}-{self._written}.f32"
        values.tofile(path)
        self._files.append(path)
        while len(self._files) > KEPT_FILES:
            self._files.popleft().unlink(missing_ok=True)
        return AdapterRef(policy, str(path), checksum(values)), values.nbytes


async def _load(engine: RolloutEngine, adapter: AdapterRef) -> float:
    """Seconds until the engine confirmed the policy."""
    started = time.perf_counter()
    confirmed = await engine.load_adapter(adapter)
    if confirmed != adapter.policy:
        raise GuardError(f"an engine was given {adapter.policy} and answers with {confirmed}.")
    return time.perf_counter() - started
