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

from pbt_agents.rollout.engine_server import EngineServer
from pbt_agents.rollout.vllm_build import ENGINE_ENVIRONMENT, EngineSpec
from pbt_agents.testing.fake_engine import FakeEngine

START_TIMEOUT_S = 180.0


@contextmanager
def engine_process(spec: EngineSpec, address: str) -> Iterator[int]:
    """A vLLM engine served at `address`; yields its pid. What goes wrong while it starts is raised here."""
    with _process(_serve_vllm, spec, address) as (pid, _):
        yield pid


@contextmanager
def held_fake_process(address: str, heartbeat_timeout_s: float) -> Iterator[tuple[int, Connection]]:
    """A fake engine that never answers a generate call; yields its pid, and a pipe with a message for each call that came."""
    with _process(_serve_held_fake, address, heartbeat_timeout_s) as started:
        yield started


@contextmanager
def _process(serve: Callable[..., None], *arguments: Any) -> Iterator[tuple[int, Connection]]:
    """Yields the process's pid and a pipe to it, once it has sent None; raises what it sends instead."""
    spawning = multiprocessing.get_context("spawn")
    here, there = spawning.Pipe()
    process = spawning.Process(target=serve, args=(there, *arguments), daemon=True)
    with _environment(ENGINE_ENVIRONMENT):
        process.start()
    there.close()
    try:
        if not here.poll(START_TIMEOUT_S):
            raise TimeoutError(f"no engine after {START_TIMEOUT_S} s")
        error = here.recv()
        if error is not None:
            raise error
        assert process.pid is not None
        yield process.pid, here
    finally:
        process.kill()
        process.join()


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """For the processes that are started meanwhile; this one's torch has read it long ago."""
    outer = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(outer)


def _serve_vllm(pipe: Connection, spec: EngineSpec, address: str) -> None:
    from pbt_agents.rollout.vllm_engine import VLLMEngine

    try:
        EngineServer(VLLMEngine(spec), address)
    except BaseException as error:
        pipe.send(error)
        raise
    pipe.send(None)
    threading.Event().wait()  # until this process is killed


def _serve_held_fake(pipe: Connection, address: str, heartbeat_timeout_s: float) -> None:
    engine = FakeEngine()
    engine.hold()
    EngineServer(engine, address, heartbeat_timeout_s)
    pipe.send(None)
    while True:
        engine.arrivals.acquire()
        pipe.send("arrived")
