"""How many tokens an engine generates per CPU-second, bare and over its socket.

python experiments/bench_engine.py --agents 4 --concurrency 32
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import _interpreter  # noqa: F401

from pbt_agents.command_line import parse
from pbt_agents.rollout.vllm_build import ENGINE_ENVIRONMENT, EngineSpec, build_engine, lora_request

os.environ.update(ENGINE_ENVIRONMENT)

import numpy as np

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


def bare(args: Args, spec: EngineSpec) -> str:
    """vLLM's own loop, nothing around it."""
    vllm = build_engine(spec)
    slots = [lora_request(agent, slot) for slot, agent in enumerate(spec.agents, start=1)]
    vllm.collective_rpc("register_slots", args=(slots, spec.lora_rank))

    def ask(place: int) -> None:
        ids = next(places[place], None)
        if ids is not None:
            vllm.add_request(
                str(place), {"prompt_token_ids": ids.tolist()}, sampling_params(ACTION), lora_request=slots[place % len(slots)]
            )

    tokens = steps = 0
    for rounds in (1, args.rounds):  # the first warms up
        places = [prompts(Args(rounds=rounds, turns=args.turns), place) for place in range(args.concurrency)]
        tokens, steps, cpu, wall = 0, 0, time.process_time(), time.perf_counter()
        for place in range(args.concurrency):
            ask(place)
        while vllm.has_unfinished_requests():
            steps += 1
            for output in vllm.step():
                tokens += len(output.outputs[0].token_ids)
                ask(int(output.request_id))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return f"bare: {tokens / cpu:.0f} tokens per CPU-second, {tokens / wall:.0f} per second; {tokens / steps:.1f} tokens a step"


async def play(args: Args, client: EngineClient, place: int) -> int:
    tokens = 0
    for ids in prompts(args, place):
        tokens += len((await client.generate(f"agent{place % args.agents}", ids, ACTION)).token_ids)
    return tokens


async def over_the_socket(args: Args, address: str) -> None:
    client = await EngineClient.connect(address)
    places = range(args.concurrency)
    await asyncio.gather(*[play(Args(agents=args.agents, rounds=1), client, place) for place in places])
    before, own, wall = await client.check_health(), time.process_time(), time.perf_counter()
    tokens = sum(await asyncio.gather(*[play(args, client, place) for place in places]))
    own, wall = time.process_time() - own, time.perf_counter() - wall
    after = await client.check_health()
    spent = {name: after[name] - before[name] for name in after}
    engine, steps, server = spent["process_cpu_s"], spent["step_cpu_s"], spent["server_cpu_s"]
    print(
        f"over the socket: {tokens / engine:.0f} tokens per CPU-second of the engine, {tokens / (engine + own):.0f} with the client's, "
        f"{tokens / wall:.0f} per second; {steps / engine:.0%} of the engine's CPU is steps, {server / engine:.0%} messages; "
        f"{tokens / spent['steps']:.1f} tokens a step"
    )
    print(f"one token, nobody else asking: {await overhead(client)}")
    await client.close()


async def overhead(client: EngineClient) -> str:
    """Median time of a call above the engine's own step."""
    before, latencies = await client.check_health(), []
    for _ in range(100):
        started = time.perf_counter()
        await client.generate("agent0", np.arange(5, 15, dtype=np.int32), Sampling(1, ()))
        latencies.append(time.perf_counter() - started)
    after = await client.check_health()
    step_s = (after["step_s"] - before["step_s"]) / (after["steps"] - before["steps"])
    return f"{np.median(latencies) * 1e3:.2f} ms, of which the step {step_s * 1e3:.2f} ms (mean)"


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


def main(args: Args) -> None:
    with served(spec_of(args)) as (address, _):
        asyncio.run(over_the_socket(args, address))
    print(bare(args, spec_of(args)))


if __name__ == "__main__":
    main(parse(Args))
