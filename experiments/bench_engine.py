"""How many tokens an engine generates per CPU-second, bare and over its socket.

python experiments/bench_engine.py --agents 4 --concurrency 32
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

import _interpreter  # noqa: F401

from pbt_agents.command_line import parse
from pbt_agents.rollout.vllm_build import ENGINE_ENVIRONMENT, EngineSpec, build_engine, lora_request

os.environ.update(ENGINE_ENVIRONMENT)

import numpy as np
from _figures import Figures, show

from pbt_agents.models import resolve_model
from pbt_agents.rollout.engine_client import EngineClient
from pbt_agents.rollout.vllm_request import sampling_params
from pbt_agents.testing.engine_process import engine_process
from pbt_agents.types import IntArray, Sampling


@dataclass
class Args:
    agents: int = 4
    """Adapters on the engine; episodes are spread evenly over them."""
    concurrency: int = 32
    """Episodes played at the same time."""
    rounds: int = 6
    """Episodes that follow one another at each of these places."""
    pairs: int = 3
    """Of a measurement of the bare engine and one over the socket, one after the other."""
    turns: int = 6
    """Of an episode: a prompt of 24 tokens, then 8 sampled and 4 observed in turn."""
    model: str = "tiny"
    """Base model: tiny (in the package), a folder, or a hub id."""
    rank: int = 8
    """Of the adapters."""


ACTION = Sampling(max_tokens=8, stop_token_ids=())


def prompts(args: Args, place: int) -> Iterator[IntArray]:
    """What is asked at one place, turn after turn; the tokens sampled meanwhile are random here, so that all runs ask the same."""
    rng = np.random.default_rng(place)
    for _ in range(args.rounds):
        ids = rng.integers(5, 30, size=24, dtype=np.int32)
        for _ in range(args.turns):
            yield ids
            ids = np.concatenate([ids, rng.integers(5, 30, size=12, dtype=np.int32)])


class BareEngine:
    """vLLM's own loop in this process, nothing around it."""

    def __init__(self, args: Args, spec: EngineSpec) -> None:
        self._args, self._vllm = args, build_engine(spec)
        self._slots = [lora_request(agent, slot) for slot, agent in enumerate(spec.agents, start=1)]
        self._vllm.collective_rpc("register_slots", args=(self._slots, spec.lora_rank))

    def play(self, rounds: int) -> Figures:
        self._places = [prompts(replace(self._args, rounds=rounds), place) for place in range(self._args.concurrency)]
        tokens, steps, cpu, wall = 0, 0, time.process_time(), time.perf_counter()
        for place in range(self._args.concurrency):
            self._ask(place)
        while self._vllm.has_unfinished_requests():
            steps += 1
            for output in self._vllm.step():
                tokens += len(output.outputs[0].token_ids)
                self._ask(int(output.request_id))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        return {"bare_tokens_per_cpu_s": tokens / cpu, "bare_tokens_per_s": tokens / wall, "bare_tokens_per_step": tokens / steps}

    def close(self) -> None:
        self._vllm.engine_core.shutdown()

    def _ask(self, place: int) -> None:
        ids = next(self._places[place], None)
        if ids is not None:
            slot = self._slots[place % len(self._slots)]
            self._vllm.add_request(str(place), {"prompt_token_ids": ids.tolist()}, sampling_params(ACTION), lora_request=slot)


async def play(args: Args, client: EngineClient, place: int) -> int:
    tokens = 0
    for ids in prompts(args, place):
        tokens += len((await client.generate(f"agent{place % args.agents}", ids, ACTION)).token_ids)
    return tokens


async def over_the_socket(args: Args, client: EngineClient) -> Figures:
    before, own, wall = await client.check_health(), time.process_time(), time.perf_counter()
    tokens = sum(await asyncio.gather(*[play(args, client, place) for place in range(args.concurrency)]))
    own, wall = time.process_time() - own, time.perf_counter() - wall
    after = await client.check_health()
    spent = {name: after[name] - before[name] for name in after}
    engine = spent["process_cpu_s"]
    return {
        "socket_tokens_per_engine_cpu_s": tokens / engine,
        "socket_tokens_per_cpu_s_with_client": tokens / (engine + own),
        "socket_tokens_per_s": tokens / wall,
        "socket_tokens_per_step": tokens / spent["steps"],
        "engine_cpu_in_steps_share": spent["step_cpu_s"] / engine,
        "engine_cpu_in_messages_share": spent["server_cpu_s"] / engine,
    }


async def one_token(client: EngineClient) -> Figures:
    """Time of a call that asks for one token while nobody else asks, and of the engine's step in it."""
    before, latencies = await client.check_health(), []
    for _ in range(100):
        started = time.perf_counter()
        await client.generate("agent0", np.arange(5, 15, dtype=np.int32), Sampling(1, ()))
        latencies.append(time.perf_counter() - started)
    after = await client.check_health()
    step_s = (after["step_s"] - before["step_s"]) / (after["steps"] - before["steps"])
    return {"one_token_call_ms_median": 1e3 * float(np.median(latencies)), "one_token_step_ms_mean": 1e3 * step_s}


async def in_pairs(args: Args, address: str, bare: BareEngine) -> Figures:
    """Medians, and the median of each pair's ratio, since a machine is rarely equally fast for long."""
    client = await EngineClient.connect(address)
    bare.play(1)  # both warm up
    await over_the_socket(replace(args, rounds=1), client)
    pairs = []
    for _ in range(args.pairs):
        alone = await asyncio.to_thread(bare.play, args.rounds)
        pairs.append(alone | await over_the_socket(args, client))
    ratios = [pair["socket_tokens_per_engine_cpu_s"] / pair["bare_tokens_per_cpu_s"] for pair in pairs]
    figures = {name: float(np.median([pair[name] for pair in pairs])) for name in pairs[0]}
    figures |= {"socket_to_bare_ratio": float(np.median(ratios)), **await one_token(client)}
    await client.close()
    return figures


def spec_of(args: Args) -> EngineSpec:
    agents = tuple(f"agent{index}" for index in range(args.agents))
    return EngineSpec(resolve_model(args.model), agents, args.rank, max_tokens=1024, max_sequences=args.concurrency)


@contextmanager
def served(spec: EngineSpec) -> Iterator[tuple[str, str]]:
    """Address of an engine in a process of its own, and a folder in memory."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/dev/shm") as folder:
        address = f"ipc://{folder}/engine.sock"
        with engine_process(spec, address):
            yield address, folder


def measure(args: Args) -> Figures:
    spec = spec_of(args)
    with served(spec) as (address, _), closing(BareEngine(args, spec)) as bare:
        return asyncio.run(in_pairs(args, address, bare))


if __name__ == "__main__":
    show("generation", measure(parse(Args)))
