"""Strategies of a search compared by real runs, on equal CPU seconds. Hours on two cores; it goes on where it stopped.

python experiments/compare_search.py --out results/search --seeds 5 --cpu-seconds 400
python experiments/compare_search.py --out results/search --seeds 0         # only the table of what is there

One file for each run of each strategy; one that was interrupted starts anew. CPU seconds are those of all processes while agents train:
starting engines and the last scoring are not in them, for any strategy.
"""

import json
import math
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import _interpreter  # noqa: F401
import numpy as np
from _starts import HIGH, LOW, WIDE

from pbt_agents.checks import require
from pbt_agents.command_line import parse
from pbt_agents.errors import ConfigError
from pbt_agents.json_files import read_json, write_json
from pbt_agents.population import Budget, PopulationSpec
from pbt_agents.populations.sudoku import POPULATION
from pbt_agents.provenance import git_state, machine, packages
from pbt_agents.scheduling.mutation import Perturbation
from pbt_agents.scheduling.selection import Truncation
from pbt_agents.search_space import initial_values


@dataclass
class Args:
    out: Path = Path("results/search")
    seeds: int = 5
    """Runs of each strategy; 0 only shows what is there."""
    cpu_seconds: float = 400.0
    """Of each run, all its agents and engines together."""
    start: str = "anywhere"
    """Where first learning rates lie: anywhere, low or high (ten times off)."""
    only: tuple[str, ...] = ()
    """Names of strategies; all when not given."""
    episodes: int = 256
    """Tasks for the last validation of each agent, and for the test."""


STARTS = {"anywhere": None, "low": LOW, "high": HIGH}

Arm = Callable[[PopulationSpec, Mapping[str, Any]], list[PopulationSpec]]
"""A strategy as populations that are trained one after the other, each on its part of the CPU seconds."""


def default(spec: PopulationSpec, start: Mapping[str, Any]) -> list[PopulationSpec]:
    """One agent with the values that the recipe's agent has by itself."""
    return [single(spec, {name: spec.agent.value(name) for name in spec.search_space}, 1)]


def in_turn(count: int) -> Arm:
    """Random search: so many agents, each by itself."""
    return lambda spec, start: [single(spec, values, count) for values in initial_values(start, count, spec.agent.seed)]


def single(spec: PopulationSpec, values: Mapping[str, Any], of: int) -> PopulationSpec:
    assert spec.budget.cpu_seconds is not None
    budget = Budget(cpu_seconds=spec.budget.cpu_seconds / of)
    return replace(spec.of_size(1), exploit=False, initial=(values,), budget=budget)


def together(**changes: Any) -> Arm:
    """A population of four from first values of the start, with these changes."""
    return lambda spec, start: [replace(spec, initial=tuple(initial_values(start, spec.size, spec.agent.seed)), **changes)]


ARMS: dict[str, Arm] = {
    "default": default,
    "random_4": in_turn(4),
    "random_8": in_turn(8),
    "independent_4": together(exploit=False),
    "population": together(),
    "population_small_steps": together(explore=Perturbation(factor=1.25)),
    "population_confident": together(selection=Truncation(confidence=0.8)),
}
SWEEP = "tpe_asha"
"""The one strategy that is no population: _sweep.py."""


def task(args: Args, seed: int) -> tuple[PopulationSpec, dict[str, Any]]:
    """The recipe on these CPU seconds, and where first values lie."""
    agent = POPULATION.agent.with_values({"seed": seed})
    spec = replace(POPULATION, agent=agent, budget=Budget(cpu_seconds=args.cpu_seconds))
    rates = STARTS[args.start]
    if rates is None:
        return spec, dict(spec.search_space)
    return replace(spec, search_space={**spec.search_space, "learning_rate": WIDE}), {**spec.search_space, "learning_rate": rates}


def run(args: Args, name: str, seed: int, folder: Path) -> dict[str, Any]:
    """What a strategy came to with one seed."""
    spec, start = task(args, seed)
    if name == SWEEP:
        from _sweep import sweep

        used, scores, validation = sweep(replace(spec, search_space=start), folder, args.episodes)
        curves = [curve(folder, used.cpu_s)]
        return {"cpu_s": used.cpu_s, "score": scores.sampled, "greedy": scores.greedy, "validation": validation, "curve": curves[0]}
    from pbt_agents.training import train

    spent, points, best, validation = 0.0, [], None, {}
    for part, population in enumerate(ARMS[name](spec, start)):
        out = folder / str(part)
        out.mkdir()
        outcome = train(population, out, episodes=args.episodes)
        if outcome is None:
            raise KeyboardInterrupt
        points += [(spent + cpu_s, fitness) for cpu_s, fitness in curve(out, outcome.run.usage.cpu_s)]
        spent += outcome.run.usage.cpu_s
        validation |= {f"{part}/{member}": score for member, score in outcome.validation.items()}
        top = max((score for score in outcome.validation.values() if math.isfinite(score)), default=-math.inf)
        if outcome.scores and (best is None or top > best[0]):
            best = top, outcome.scores
    assert best is not None, "no agent saved an adapter"
    return {"cpu_s": spent, "score": best[1].sampled, "greedy": best[1].greedy, "validation": validation, "curve": points}


def curve(out: Path, cpu_s: float) -> list[tuple[float, float]]:
    """Every evaluation of every agent: CPU seconds until then, by its share of the training's wall clock, and its fitness."""
    rows = [json.loads(line) for file in out.glob("population/*/result.json") for line in file.read_text().splitlines()]
    rows = [row for row in rows if not row.get("cut_short")]
    if not rows:
        return []
    began = min(row["timestamp"] - row["time_total_s"] for row in rows)
    ended = max(row["timestamp"] for row in rows)
    return sorted((cpu_s * (row["timestamp"] - began) / (ended - began), row["fitness"]) for row in rows)


# The table.


def table(folder: Path) -> Iterator[str]:
    """A line for each strategy and start, from the files in the folder."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for file in sorted(folder.glob("*.json")):
        one = read_json(file)
        found[one["start"], one["strategy"]].append(one)
    for start in STARTS:
        arms = {strategy: runs for (where, strategy), runs in found.items() if where == start}
        if not arms:
            continue
        goal = 0.9 * max(float(np.median([one["score"] for one in runs])) for runs in arms.values())
        yield f"first learning rates: {start}. To reach: a fitness of {goal:.3f}, nine tenths of the best median score"
        yield f"  {'strategy':<24} runs  score: median (quarters)  greedy   CPU s   to reach   collapsed"
        for strategy, runs in sorted(arms.items()):
            yield row(strategy, runs, goal)


def row(strategy: str, runs: Sequence[Mapping[str, Any]], goal: float) -> str:
    scores = [one["score"] for one in runs]
    low, middle, high = np.quantile(scores, (0.25, 0.5, 0.75))
    needed = [min((cpu_s for cpu_s, fitness in one["curve"] if fitness >= goal), default=math.inf) for one in runs]
    agents = [score for one in runs for score in one["validation"].values()]
    collapsed = sum(not score > GONE for score in agents) / len(agents)
    reached = float(np.quantile(needed, 0.5, method="inverted_cdf"))
    return (
        f"  {strategy:<24} {len(runs):>4}  {middle:.3f} ({low:.3f} to {high:.3f})  {np.median([one['greedy'] for one in runs]):>9.3f}"
        f" {np.median([one['cpu_s'] for one in runs]):>7.0f} {reached:>10.0f} {collapsed:>11.0%}"
    )


GONE = 0.1
"""A validation score below which an agent has collapsed."""


def main(args: Args) -> None:
    require(args.start in STARTS, f"start is one of {', '.join(STARTS)}, got '{args.start}'.")
    require(args.seeds >= 0, f"seeds must be at least 0, got {args.seeds}.")
    require(args.cpu_seconds > 0, f"cpu_seconds must be above 0, got {args.cpu_seconds}.")
    known = (*ARMS, SWEEP)
    for name in args.only:
        require(name in known, f"there is no strategy '{name}'. Known are {', '.join(known)}.")
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in range(args.seeds):
        for name in args.only or known:
            file = args.out / f"{args.start}-{name}-{seed}.json"
            if not file.exists():
                compared(args, name, seed, file)
    for line in table(args.out):
        print(line)


def compared(args: Args, name: str, seed: int, file: Path) -> None:
    from pbt_agents.ray_session import ray_session

    folder = args.out / ".runs" / file.stem
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ray_session(folder):
        result = run(args, name, seed, folder)
    where = {"strategy": name, "start": args.start, "seed": seed, "asked_cpu_s": args.cpu_seconds, "episodes": args.episodes}
    by = {"git": git_state(Path(__file__).parent), "packages": packages(), "machine": machine()}
    write_json(file, {**where, **result, **by})
    shutil.rmtree(folder)


if __name__ == "__main__":
    try:
        main(parse(Args))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
