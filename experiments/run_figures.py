"""What the logs of a run say about throughput, waiting, staleness and latency.

python experiments/run_figures.py --run runs/sudoku-20300101-000000
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _interpreter  # noqa: F401
import numpy as np

from pbt_agents.command_line import parse


@dataclass
class Args:
    run: Path
    """Directory of a finished run."""


def updates(run: Path) -> Iterator[dict[str, Any]]:
    """Every optimizer step of every member."""
    for log in sorted(run.glob("population/*/ring/updates.jsonl")):
        yield from map(json.loads, log.read_text().splitlines())


def generation(results: dict[str, Any]) -> None:
    start, end = results["engines"]["start"], results["engines"]["end"]
    spent = {name: sum(after[name] - before[name] for before, after in zip(start, end, strict=True)) for name in start[0]}
    cpu = spent["process_cpu_s"]
    print(f"generated {spent['tokens_generated']:.0f} tokens, evaluation included:", end=" ")
    print(f"{spent['tokens_generated'] / cpu:.0f} per engine CPU-second")
    print(f"  {spent['prompt_tokens']:.0f} prompt tokens, of which the cache held {spent['cached_tokens'] / spent['prompt_tokens']:.0%}")
    print(f"  {spent['swaps']:.0f} adapters written, {1e3 * spent['swap_s'] / max(spent['swaps'], 1):.2f} ms each")


def training(rows: list[dict[str, Any]]) -> None:
    trained = sum(row["trainer/trained_tokens"] for row in rows)
    padded = sum(row.get("trainer/padded_tokens", 0.0) for row in rows)
    cpu = sum(row["trainer/update_cpu_s"] for row in rows)
    print(f"trained {len(rows)} updates, {trained / len(rows):.0f} tokens each: {trained / cpu:.0f} per trainer CPU-second,")
    print(f"  {padded / cpu:.0f} with observations and padding")


def waiting(results: dict[str, Any]) -> None:
    """Shares of the members' time, from the first update of this process on."""
    totals: dict[str, float] = defaultdict(float)
    for member in results["members"].values():
        for name, value in member["metrics"].items():
            if name.startswith("time/"):
                totals[name.removeprefix("time/")] += value
    whole = sum(totals.values())
    print("members' time: " + ", ".join(f"{name.removesuffix('_s')} {value / whole:.0%}" for name, value in sorted(totals.items())))


def staleness(rows: list[dict[str, Any]]) -> None:
    tokens: dict[int, float] = defaultdict(float)
    ratio: dict[int, float] = defaultdict(float)
    largest: dict[int, float] = defaultdict(float)
    for row in rows:
        for lag, stats in row["by_lag"].items():
            tokens[int(lag)] += stats["tokens"]
            ratio[int(lag)] += stats["tokens"] * stats["ratio_mean"]
            largest[int(lag)] = max(largest[int(lag)], stats["ratio_max"])
    whole = sum(tokens.values())
    print("lag   share   mean ratio   largest ratio")
    for lag in sorted(tokens):
        print(f"{lag:3d} {tokens[lag] / whole:7.1%} {ratio[lag] / tokens[lag]:12.4f} {largest[lag]:15.2f}")


def latency(name: str, seconds: list[float]) -> None:
    if seconds:
        middle, high, longest = (1e3 * np.quantile(seconds, q) for q in (0.5, 0.99, 1.0))
        print(f"{name}: median {middle:.0f} ms, 99 % below {high:.0f} ms, longest {longest:.0f} ms ({len(seconds)})")


def clone_to_update(run: Path) -> Iterator[float]:
    for clone in json.loads((run / "population" / "lineage.json").read_text())["clones"]:
        log = run / "population" / f"agent{int(clone['child'].rsplit('_', 1)[1])}" / "ring" / "updates.jsonl"
        later = [row["started"] for row in map(json.loads, log.read_text().splitlines()) if row["started"] > clone["time_s"]]
        yield from (started - clone["time_s"] for started in later[:1])


def main(args: Args) -> None:
    results, rows = json.loads((args.run / "results.json").read_text()), list(updates(args.run))
    stepped = [row for row in rows if row["trainer/stepped"]]
    generation(results)
    training(stepped)
    waiting(results)
    staleness(stepped)
    latency("publication of an adapter to all engines", [row["sync/publish_s"] for row in stepped])
    latency("exploit, decision to applied", [value for value in results["clone_latency_s"] if value is not None])
    latency("exploit, decision to the start of the next update", list(clone_to_update(args.run)))


if __name__ == "__main__":
    main(parse(Args))
