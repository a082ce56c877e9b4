"""What the logs of a run say about throughput, waiting, staleness and latency.

python experiments/run_figures.py --run runs/sudoku-20300101-000000
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _interpreter  # noqa: F401
from _figures import Figures, latency_ms, show

from pbt_agents.checks import require
from pbt_agents.command_line import parse
from pbt_agents.errors import ConfigError
from pbt_agents.json_files import read_json


@dataclass
class Args:
    run: Path
    """Directory of a finished run."""


def updates(run: Path) -> Iterator[dict[str, Any]]:
    """Every optimizer step of every member."""
    for log in sorted(run.glob("population/*/ring/updates.jsonl")):
        yield from map(json.loads, log.read_text().splitlines())


def generation(results: Mapping[str, Any]) -> Figures:
    """Of the engines, evaluation included."""
    start, end = results["engines"]["start"], results["engines"]["end"]
    spent = {name: sum(after[name] - before[name] for before, after in zip(start, end, strict=True)) for name in start[0]}
    return {
        "generated_tokens": spent["tokens_generated"],
        "generated_tokens_per_engine_cpu_s": spent["tokens_generated"] / spent["process_cpu_s"],
        "prompt_tokens": spent["prompt_tokens"],
        "prompt_tokens_in_cache_share": spent["cached_tokens"] / spent["prompt_tokens"],
        "adapters_written": spent["swaps"],
        "adapter_write_ms_mean": 1e3 * spent["swap_s"] / max(spent["swaps"], 1),
    }


def training(rows: Sequence[Mapping[str, Any]]) -> Figures:
    trained = sum(row["trainer/trained_tokens"] for row in rows)
    padded = sum(row.get("trainer/padded_tokens", 0.0) for row in rows)
    cpu = sum(row["trainer/update_cpu_s"] for row in rows)
    return {
        "updates": float(len(rows)),
        "trained_tokens_per_update": trained / len(rows),
        "trained_tokens_per_trainer_cpu_s": trained / cpu,
        "tokens_with_observations_and_padding_per_trainer_cpu_s": padded / cpu,
    }


def waiting(results: Mapping[str, Any]) -> Figures:
    """Shares of the members' time, from the first update of this process on."""
    totals: dict[str, float] = defaultdict(float)
    for member in results["members"].values():
        for name, value in member["metrics"].items():
            if name.startswith("time/"):
                totals[name.removeprefix("time/")] += value
    whole = sum(totals.values())
    return {f"time_{name.removesuffix('_s')}_share": value / whole for name, value in sorted(totals.items())}


def staleness(rows: Sequence[Mapping[str, Any]]) -> Figures:
    """Of the trained tokens of each lag: their share, mean ratio and largest ratio."""
    tokens: dict[int, float] = defaultdict(float)
    ratio: dict[int, float] = defaultdict(float)
    largest: dict[int, float] = defaultdict(float)
    for row in rows:
        for lag, stats in row["by_lag"].items():
            tokens[int(lag)] += stats["tokens"]
            ratio[int(lag)] += stats["tokens"] * stats["ratio_mean"]
            largest[int(lag)] = max(largest[int(lag)], stats["ratio_max"])
    whole = sum(tokens.values())
    figures: Figures = {}
    for lag in sorted(tokens):
        values = {"share": tokens[lag] / whole, "ratio_mean": ratio[lag] / tokens[lag], "largest_ratio": largest[lag]}
        figures |= {f"lag_{lag}_{name}": value for name, value in values.items()}
    return figures


def latencies(run: Path, results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Figures:
    """Of publications to all engines, and of exploits: from decision to applied, and from decision to the start of the next update."""
    return {
        **latency_ms("publish", [row["sync/publish_s"] for row in rows]),
        "clones": float(results["clones"]),
        **latency_ms("exploit_applied", [value for value in results["clone_latency_s"] if value is not None]),
        **latency_ms("exploit_next_update", list(clone_to_update(run))),
    }


def clone_to_update(run: Path) -> Iterator[float]:
    for clone in json.loads((run / "population" / "lineage.json").read_text())["clones"]:
        log = run / "population" / f"agent{int(clone['child'].rsplit('_', 1)[1])}" / "ring" / "updates.jsonl"
        later = [row["started"] for row in map(json.loads, log.read_text().splitlines()) if row["started"] > clone["time_s"]]
        yield from (started - clone["time_s"] for started in later[:1])


def start_up(run: Path, began: float) -> Figures:
    """Seconds of the process until its settings were checked, the engines were up, and the first update of any member was trained."""
    usage = run / "usage.json"
    marks = {
        "settings_checked_s": read_json(run / "run.json")["started"],
        "engines_up_s": usage.stat().st_mtime - read_json(usage)["seconds"],  # it is metered from there to the last time it is written
        "first_update_s": min(row["started"] + row["trainer/update_s"] for row in updates(run)),
    }
    return {name: moment - began for name, moment in marks.items()}


def measure(args: Args) -> dict[str, Figures]:
    """Raises ConfigError for a directory that is not a finished run's."""
    require(
        (args.run / "results.json").exists(),
        f"'{args.run}' holds no results.json, which ends a run. Name a finished one; an interrupted one goes on with --resume.",
    )
    results, rows = read_json(args.run / "results.json"), list(updates(args.run))
    stepped = [row for row in rows if row["trainer/stepped"]]
    return {
        "generation in the ring": generation(results),
        "training in the ring": training(stepped),
        "time of the members": waiting(results),
        "staleness": staleness(stepped),
        "latency in the ring": latencies(args.run, results, stepped),
        "resources": {"seconds": results["seconds"], "cpu_s": results["cpu_s"], "peak_pss_gib": results["peak_pss_bytes"] / 2**30},
    }


if __name__ == "__main__":
    try:
        found = measure(parse(Args))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    for title, figures in found.items():
        show(title, figures)
