"""All figures of this machine in one table: bare tools and ours beside each other, and a short run of a population.

python experiments/bench.py

Ratios are medians over pairs that were measured one after the other, and say more than seconds on a machine that is shared. The
population is the main example's, cut short.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import _interpreter  # noqa: F401
import bench_engine  # first: it sets the environment of an engine in this process, before torch is imported
import bench_sudoku
import bench_sync
import bench_trainer
import run_figures
from _figures import Figures, show

from pbt_agents.command_line import parse
from pbt_agents.json_files import write_json
from pbt_agents.provenance import provenance
from pbt_agents.rollout.vllm_build import ENGINE_ENVIRONMENT


@dataclass
class Args:
    out: Path = Path("runs/bench.json")
    """File for the figures, the machine, its load and the command."""
    population: int = 4
    """Members of the short run."""
    updates: int = 20
    """Of each of them; members look at each other every fifth."""


def main(args: Args) -> None:
    args.out.parent.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the population ends with this process
    loads, seconds = [os.getloadavg()[0]], Figures()
    figures: dict[str, Figures] = {}
    for title, measure in parts(args).items():
        started = time.perf_counter()
        found = measure()
        seconds[title] = time.perf_counter() - started
        loads.append(os.getloadavg()[0])
        for name, part in found.items():
            show(name, part)
        figures |= found
    figures["overhead"] = overhead(figures)
    show("overhead", figures["overhead"])
    write_json(args.out, {"figures": figures, "load_1min": loads, "seconds": seconds, **provenance()})
    print(f"in {sum(seconds.values()):.0f} s, at a load of {max(loads):.1f} at most; with machine and command in {args.out}")


def parts(args: Args) -> dict[str, Callable[[], dict[str, Figures]]]:
    return {
        "environment": lambda: {"environment": bench_sudoku.measure(bench_sudoku.Args(puzzles=60))},
        "training": lambda: {"training": bench_trainer.measure(bench_trainer.Args())},
        "generation": lambda: {"generation": bench_engine.measure(bench_engine.Args())},
        "synchronisation": lambda: {"synchronisation": bench_sync.measure(bench_sync.Args(pairs=3))},
        "population": lambda: population(args),
    }


def population(args: Args) -> dict[str, Figures]:
    """The main example as a user starts it, read from the files it leaves."""
    run, began = args.out.parent / f"bench-{time.strftime('%Y%m%d-%H%M%S')}", time.time()
    script = Path(__file__).with_name("sudoku_pbt.py")
    settings = {"recipe": "_bench_population:POPULATION", "population": args.population, "updates": args.updates, "out": run}
    flags = [word for name, value in {**settings, "test-episodes": 64}.items() for word in (f"--{name}", str(value))]
    environment = {name: value for name, value in os.environ.items() if name not in ENGINE_ENVIRONMENT}
    with run.with_suffix(".log").open("w") as said:
        subprocess.run([sys.executable, str(script), *flags], env=environment, stdout=said, check=True)
    return {**run_figures.measure(run_figures.Args(run)), "start-up": run_figures.start_up(run, began)}


def overhead(figures: dict[str, Figures]) -> Figures:
    """Ours to bare, per CPU-second; above 1 is faster. In the ring an engine reads more of its prompts, and plays evaluations."""
    bare, ring = figures["generation"], figures["generation in the ring"]
    return {
        "engine_over_socket_to_bare": bare["socket_to_bare_ratio"],
        "engine_in_ring_to_bare": ring["generated_tokens_per_engine_cpu_s"] / bare["bare_tokens_per_cpu_s"],
        "trainer_to_bare_loop": figures["training"]["trainer_to_bare_ratio"],
        "generation_kept_at_1.5_adapters_per_s": figures["synchronisation"]["kept_at_1.5_per_s_share_of_cpu_s"],
    }


if __name__ == "__main__":
    main(parse(Args))
