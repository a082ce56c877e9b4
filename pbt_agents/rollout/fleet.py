"""The engines of a run: actors that outlive every trial, kept by one named actor that holds a lease.

Owns where engines are, which agents they serve, and their end. What an engine does is vllm_engine.py's; Ray is used for
placement, start and health only, never for a turn of an episode.
"""

import asyncio
import atexit
import contextlib
import hashlib
import os
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from pbt_agents.config import AgentConfig
from pbt_agents.engine import AdapterLayout
from pbt_agents.errors import ConfigError, EngineDiedError, EngineError, PbtAgentsError
from pbt_agents.models import cache_bytes_per_token
from pbt_agents.rollout.engine_client import EngineClient
from pbt_agents.rollout.slot_leases import Lease, SlotLeases
from pbt_agents.rollout.vllm_build import ENGINE_ENVIRONMENT, EngineSpec

LEASE_S = 8.0
"""A fleet that nobody has renewed for so long ends itself."""
SLOT_LEASE_S = 3 * LEASE_S
"""A slot whose holder has not been heard of for so long may be given to another trial."""
_ATTEMPTS = 6
"""Half a second apart: a keeper that ends takes less than one."""
_OUTSIDE = PlacementGroupSchedulingStrategy(None)
"""Not in the placement group of the trial that happens to start the fleet, which holds no room for it and ends with the trial."""
ENGINE_CPUS = 0.5
"""For Ray's bookkeeping alone: an engine's one thread takes what it gets."""
_NAMESPACE = "pbt_agents"


@dataclass(frozen=True)
class EngineInfo:
    """One engine, as its users see it."""

    name: str
    pid: int
    address: str
    agents: tuple[str, ...]
    self_test: dict[str, float]
    """Largest difference to transformers and peft, nat, for the base and each slot."""


@dataclass(frozen=True)
class FleetInfo:
    """All engines of a run."""

    folder: str
    """Private to the run and short, for sockets, locks and adapters on their way. Removed at the end."""
    engines: tuple[EngineInfo, ...]
    layout: AdapterLayout

    def serving(self, agent: str) -> list[EngineInfo]:
        """The engines of one agent. Raises ConfigError when the fleet has no slot for it."""
        engines = [engine for engine in self.engines if agent in engine.agents]
        if not engines:
            known = sorted({name for engine in self.engines for name in engine.agents})
            raise ConfigError(f"the fleet has no slot for '{agent}', only {known}. Set fleet.slots to the size of the population.")
        return engines

    async def connect(self, agent: str) -> list[EngineClient]:
        return [await EngineClient.connect(engine.address) for engine in self.serving(agent)]


def agent_names(count: int) -> list[str]:
    return [f"agent{index}" for index in range(count)]


def engine_plan(config: AgentConfig) -> list[tuple[str, ...]]:
    """The agents each engine serves: all of them when shared, one agent's own otherwise."""
    agents, engines = agent_names(config.fleet.slots), config.fleet.engines
    if config.fleet.fleet == "shared":
        return [tuple(agents)] * engines
    return [(agent,) for agent in agents for _ in range(engines)]


def engine_spec(model_path: str, agents: tuple[str, ...], config: AgentConfig, number: int) -> EngineSpec:
    sequences, tokens = config.fleet.max_sequences, config.rollout.max_episode_tokens
    enough = cache_bytes_per_token(model_path) * tokens * max(sequences // 2, 1)
    return EngineSpec(
        model_path,
        agents,
        lora_rank=config.model.lora_rank,
        max_tokens=tokens,
        max_sequences=sequences,
        kv_cache_bytes=config.fleet.kv_cache_bytes or enough,
        seed=(config.seed * 1000 + number) % (1 << 32),
        gpu_share=config.fleet.gpus_per_engine or 1.0,
    )


def engine_address(folder: str, name: str) -> str:
    """Where an engine listens: a socket in its fleet's own folder, since a port may be taken between the look for it and its use."""
    return f"ipc://{folder}/{name}.sock"


def fleet_name(experiment: str) -> str:
    """The name under which the trials of one experiment find their fleet."""
    return "fleet-" + hashlib.blake2b(experiment.encode(), digest_size=8).hexdigest()


class _EngineActor:
    """A vLLM engine and its socket, in a process of their own."""

    def start(self, spec: EngineSpec, folder: str, name: str) -> tuple[EngineInfo, AdapterLayout]:
        from pbt_agents.rollout.engine_server import EngineServer
        from pbt_agents.rollout.self_test import self_test
        from pbt_agents.rollout.vllm_engine import VLLMEngine

        self._engine = VLLMEngine(spec)
        differences = self_test(self._engine, spec)
        self._server = EngineServer(self._engine, engine_address(folder, name))
        return EngineInfo(name, os.getpid(), self._server.address, spec.agents, differences), self._engine.layout()

    def health(self) -> dict[str, float]:
        return {"pid": os.getpid(), **asyncio.run(self._engine.check_health())}


class _FleetKeeper:
    """Starts the engines, and ends with them once its lease has run out."""

    def __init__(self, model_path: str, config: AgentConfig) -> None:
        self._folder = tempfile.mkdtemp(prefix="pbt-")
        self._renewed, self._over, self._lock = time.monotonic(), False, threading.Lock()
        self._slots = SlotLeases(config.fleet.slots, SLOT_LEASE_S)
        actor = ray.remote(num_cpus=ENGINE_CPUS, num_gpus=config.fleet.gpus_per_engine)(_EngineActor)
        self._engines, self._starts = [], []
        for number, agents in enumerate(engine_plan(config)):
            engine = actor.options(runtime_env={"env_vars": ENGINE_ENVIRONMENT}).remote()
            self._engines.append(engine)
            self._starts.append(engine.start.remote(engine_spec(model_path, agents, config, number), self._folder, f"engine{number}"))
        threading.Thread(target=self._watch, name="lease", daemon=True).start()

    def join(self) -> bool:
        """A new holder, from now on. False for one that comes when the lease has run out."""
        with self._lock:
            self._renewed = time.monotonic()
            return not self._over

    def info(self) -> FleetInfo:
        started = ray.get(self._starts)
        return FleetInfo(self._folder, tuple(info for info, _ in started), started[0][1])

    def health(self) -> list[dict[str, float]]:
        counters: list[dict[str, float]] = ray.get([engine.health.remote() for engine in self._engines])
        return counters

    def renew(self, trial: str | None = None) -> None:
        self._renewed = time.monotonic()
        if trial is not None:
            self._slots.renew(trial, self._renewed)

    def take_slot(self, trial: str, wanted: int | None) -> Lease | None:
        return self._slots.take(trial, wanted, time.monotonic())

    def give_back(self, trial: str) -> None:
        self._slots.give_back(trial)

    def end(self) -> None:
        self._end_engines()
        ray.actor.exit_actor()

    def _end_engines(self) -> None:
        for engine in self._engines:
            ray.kill(engine)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _watch(self) -> None:
        while not self._is_over():
            time.sleep(0.5)
        try:
            self._end_engines()
        finally:
            os._exit(0)  # from this thread there is no other way out of an actor

    def _is_over(self) -> bool:
        with self._lock:
            self._over = time.monotonic() - self._renewed >= LEASE_S
            return self._over


class EngineFleet:
    """One holder's handle on the fleet of a run. The first holder creates it; each renews its lease while it lives."""

    def __init__(self, name: str, model_path: str, config: AgentConfig) -> None:
        self._trial: str | None = None
        """That holds a slot through this handle."""
        self._keeper: Any = _joined(name, model_path, config)
        self._closed = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="fleet-lease", daemon=True)
        self._renewal.start()
        atexit.register(self.close)
        try:
            self.info = self._started()
        except BaseException:
            self.close()
            raise

    def health(self) -> list[dict[str, float]]:
        """Process id and counters of each engine, from itself. Raises ray's RayActorError when one is gone."""
        counters: list[dict[str, float]] = ray.get(self._keeper.health.remote())
        return counters

    def take_slot(self, trial: str, wanted: int | None = None) -> Lease:
        """A slot for this trial until `close`: the wanted one if it is free. Waits for one whose holder died.

        Raises ConfigError when all stay taken.
        """
        self._trial, deadline = trial, time.monotonic() + 1.5 * SLOT_LEASE_S
        while time.monotonic() < deadline:
            lease: Lease | None = ray.get(self._keeper.take_slot.remote(trial, wanted))
            if lease is not None:
                return lease
            time.sleep(0.5)
        raise ConfigError(
            f"no slot of the engines is free for trial {trial}. Set fleet.slots to the trials that run at once, or lower "
            "max_concurrent_trials."
        )

    def close(self) -> None:
        """Give back a slot, and stop renewing; the fleet ends itself when no other holder does."""
        if self._trial is not None and not self._closed.is_set():
            with contextlib.suppress(ray.exceptions.RayError):
                ray.get(self._keeper.give_back.remote(self._trial), timeout=1)
        self._closed.set()
        self._renewal.join(timeout=1)

    def end(self) -> None:
        """End the fleet now. For its owner, when no trial is left."""
        self.close()
        with contextlib.suppress(ray.exceptions.RayError):  # it ends in the middle of this call
            ray.get(self._keeper.end.remote(), timeout=LEASE_S)

    def _started(self) -> FleetInfo:
        try:
            info: FleetInfo = ray.get(self._keeper.info.remote())
            return info
        except ray.exceptions.RayActorError as error:
            raise EngineDiedError(f"the engines did not start: {error}") from error
        except ray.exceptions.RayTaskError as error:
            cause = _cause(error)
            raise cause if isinstance(cause, PbtAgentsError) else EngineError(f"the engines did not start: {cause!r}") from error

    def _renew(self) -> None:
        """Until closed, or the keeper is gone. One that is slow or out of reach may hear the next call, before its lease runs out."""
        while not self._closed.wait(LEASE_S / 4):
            try:
                ray.get(self._keeper.renew.remote(self._trial), timeout=LEASE_S / 4)
            except ray.exceptions.ActorDiedError:
                return
            except ray.exceptions.RayError:
                continue


def _joined(name: str, model_path: str, config: AgentConfig) -> Any:
    """The keeper of this name. One that is just ending, since nobody held it for a while, is waited for, and another takes its place."""
    keeper = ray.remote(num_cpus=0, max_concurrency=64)(_FleetKeeper)
    options: dict[str, Any] = {"name": name, "namespace": _NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    reason = None
    for _ in range(_ATTEMPTS):
        found = keeper.options(**options, scheduling_strategy=_OUTSIDE).remote(model_path, config)
        try:
            if ray.get(found.join.remote()):
                return found
        except ray.exceptions.RayActorError as error:
            reason = error
        time.sleep(0.5)
    raise EngineDiedError(f"the engines did not start: {reason or 'those of this run are still ending'}") from reason


def _cause(error: Exception) -> Exception:
    """What was raised where the engine is, without the tasks that it passed through."""
    while isinstance(error, ray.exceptions.RayTaskError):
        error = error.cause
    return error
