"""Engines in processes of their own, without Ray: for tests, and for measuring an engine alone.

with engine_process(EngineSpec(...), "ipc:///tmp/engine.sock") as pid:
    client = await EngineClient.connect("ipc:///tmp/engine.sock")
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from pbt_agents.engine import LocalEngine
from pbt_agents.rollout.engine_server import EngineServer
from pbt_agents.rollout.vllm_build import ENGINE_ENVIRONMENT, EngineSpec
from pbt_agents.testing.fake_engine import FakeEngine

START_TIMEOUT_S = 180.0


@contextmanager
def engine_process(
    spec: EngineSpec, address: str, prepare: Callable[[LocalEngine, EngineSpec], Any] | None = None
) -> Iterator[tuple[int, Any]]:
    """A served vLLM engine; yields its pid and what `prepare` returned in its process. Its exception is raised here."""
    with _process(_serve_vllm, spec, address, prepare) as (pid, _, prepared):
        yield pid, prepared


@contextmanager
def held_fake_process(address: str, heartbeat_timeout_s: float) -> Iterator[tuple[int, Connection]]:
    """A served fake engine that never answers a generate call; yields its pid and a pipe that says when one has come."""
    with _process(_serve_held_fake, address, heartbeat_timeout_s) as (pid, pipe, _):
        yield pid, pipe


@contextmanager
def _process(serve: Callable[..., None], *arguments: Any) -> Iterator[tuple[int, Connection, Any]]:
    """Yields the process's pid, the pipe to it, and the first message from it."""
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    process = spawning.Process(target=serve, args=(there, *arguments), daemon=True)
    outer = {name: os.environ.get(name) for name in ENGINE_ENVIRONMENT}
    os.environ.update(ENGINE_ENVIRONMENT)
    process.start()
    for name, value in outer.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value
    there.close()
    try:
        if not here.poll(START_TIMEOUT_S):
            raise TimeoutError(f"no engine after {START_TIMEOUT_S} s")
        started = here.recv()
        if isinstance(started, BaseException):
            raise started
        assert process.pid is not None
        yield process.pid, here, started
    finally:
        process.kill()
        process.join()


def _serve_vllm(pipe: Connection, spec: EngineSpec, address: str, prepare: Callable[[LocalEngine, EngineSpec], Any] | None) -> None:
    from pbt_agents.rollout.vllm_engine import VLLMEngine

    try:
        engine = VLLMEngine(spec)
        prepared = prepare(engine, spec) if prepare else None
        EngineServer(engine, address)
    except BaseException as error:
        pipe.send(error)
        raise
    pipe.send(prepared)
    threading.Event().wait()  # until this process is killed


def _serve_held_fake(pipe: Connection, address: str, heartbeat_timeout_s: float) -> None:
    engine = FakeEngine()
    engine.hold()
    EngineServer(engine, address, heartbeat_timeout_s)
    pipe.send(None)
    while True:
        engine.arrivals.acquire()
        pipe.send("arrived")
