"""How long a new adapter takes to reach an engine, and what its arrival costs generation.

python experiments/bench_sync.py --agents 4 --concurrency 32 --syncs-per-second 1.5
"""

import asyncio
import contextlib
from dataclasses import dataclass

import _interpreter  # noqa: F401
import bench_engine
import numpy as np
import torch
from _figures import Figures, latency_ms, show

from pbt_agents.command_line import parse
from pbt_agents.engine import AdapterLayout
from pbt_agents.rollout.engine_client import EngineClient
from pbt_agents.sync.adapter_sync import AdapterPublisher
from pbt_agents.types import PolicyId


@dataclass
class Args:
    agents: int = 4
    """Adapters on the engine; episodes are spread evenly over them."""
    concurrency: int = 32
    """Episodes played at the same time, where the engine is busy."""
    model: str = "tiny"
    """Base model: tiny (in the package), a folder, or a hub id."""
    rank: int = 8
    """Of the adapters."""
    swaps: int = 60
    """Publications timed, idle and while the engine generates."""
    syncs_per_second: float = 1.5
    """Of all agents together, when the cost to generation is measured; the main job's four make about so many updates."""
    pairs: int = 5
    """Of a stretch without and one with publications, one after the other."""
    stretch_s: float = 4.0


class Adapters:
    """New adapters of the first agent, on their way to one engine."""

    def __init__(self, layout: AdapterLayout, client: EngineClient, folder: str) -> None:
        self._publisher = AdapterPublisher(layout, [client], folder, scale=2.0)
        self._weights = random_adapter(layout)
        self._version = 0

    async def publish(self) -> tuple[float, float]:
        """Seconds until the engine confirmed, and those of them in the engine."""
        report = await self._publisher.publish(self._weights, PolicyId("agent0", 0, self._version))
        self._version += 1
        return report.seconds, report.engine_s[0]

    async def latency(self, name: str, count: int) -> Figures:
        whole, engine = zip(*[await self.publish() for _ in range(count)], strict=True)
        return latency_ms(f"publish_{name}", whole) | latency_ms(f"publish_{name}_in_engine", engine)

    async def keep_publishing(self, per_second: float) -> None:
        while True:
            _, _ = await asyncio.gather(self.publish(), asyncio.sleep(1 / per_second))


async def throughput(client: EngineClient, seconds: float) -> tuple[float, float]:
    """Tokens generated per second, and per CPU-second of the engine."""
    before, started = await client.check_health(), asyncio.get_running_loop().time()
    await asyncio.sleep(seconds)
    after, ended = await client.check_health(), asyncio.get_running_loop().time()
    spent = {name: after[name] - before[name] for name in ("tokens_generated", "process_cpu_s")}
    return spent["tokens_generated"] / (ended - started), spent["tokens_generated"] / spent["process_cpu_s"]


async def cost(args: Args, per_second: float, client: EngineClient, adapters: Adapters) -> Figures:
    """Share of the throughput that so many publications leave. In pairs, since a machine is rarely equally fast for long."""
    without, during = [], []
    for _ in range(args.pairs):
        without.append(await throughput(client, args.stretch_s))
        publishing = asyncio.create_task(adapters.keep_publishing(per_second))
        during.append(await throughput(client, args.stretch_s))
        publishing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await publishing
    ratios = np.array(during) / np.array(without)
    of_a_second, of_a_cpu_second = np.median(ratios, axis=0)
    return {
        f"kept_at_{per_second:g}_per_s_share": float(of_a_second),
        f"kept_at_{per_second:g}_per_s_share_lowest": float(ratios[:, 0].min()),
        f"kept_at_{per_second:g}_per_s_share_highest": float(ratios[:, 0].max()),
        f"kept_at_{per_second:g}_per_s_share_of_cpu_s": float(of_a_cpu_second),
    }


async def of_engine(args: Args, address: str, folder: str) -> Figures:
    client = await EngineClient.connect(address)
    adapters = Adapters(await client.layout(), client, folder)
    figures = await adapters.latency("idle", args.swaps)
    playing = asyncio.gather(*[bench_engine.play(load(args), client, place) for place in range(args.concurrency)])
    await asyncio.sleep(2)  # warm
    figures |= await adapters.latency("busy", args.swaps)
    for rate in (args.syncs_per_second, 20 * args.syncs_per_second):
        figures |= await cost(args, rate, client, adapters)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    await client.close()
    return figures


def load(args: Args) -> bench_engine.Args:
    """Episodes that are played until they are cancelled."""
    return bench_engine.Args(agents=args.agents, concurrency=args.concurrency, model=args.model, rank=args.rank, rounds=100_000)


def random_adapter(layout: AdapterLayout) -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    return {
        f"base_model.model.{t.projection}.lora_{t.matrix.upper()}.default.weight": torch.randn(t.shape, generator=chance) * 0.01
        for t in layout
    }


def measure(args: Args) -> Figures:
    with bench_engine.served(bench_engine.spec_of(load(args))) as (address, folder):
        return asyncio.run(of_engine(args, address, folder))


if __name__ == "__main__":
    show("synchronisation", measure(parse(Args)))
