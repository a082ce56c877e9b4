"""SIMULATION: strategies of a search compared on a surrogate of training, over many seeds, on equal numbers of optimizer steps.

python experiments/simulate_search.py --surrogate results/surrogate.json --seeds 1000

A population takes the scheduler's own decisions here; what is simulated is how a score answers to a learning rate and a window, as fitted
by fit_surrogate.py. It tells strategies apart that real runs are too few for. Nothing in the table is a score of a trained agent.
"""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import _interpreter  # noqa: F401
import numpy as np
import optuna
from _dynamics import Dynamics
from _simulated import INTERVAL, Found, Ledger, Population, Strategy, Task, halving, one_agent, random_search
from _starts import HIGH, LOW, WIDE

from pbt_agents.checks import require
from pbt_agents.command_line import parse
from pbt_agents.errors import ConfigError
from pbt_agents.json_files import as_written, read_json, write_json
from pbt_agents.populations.sudoku import POPULATION
from pbt_agents.resources import cores
from pbt_agents.scheduling.mutation import Perturbation
from pbt_agents.scheduling.selection import MultiFrequency, Tournament, Truncation
from pbt_agents.scheduling.stability import StabilityBudget
from pbt_agents.search_space import LogRange, search_space


@dataclass
class Args:
    surrogate: Path = Path("results/surrogate.json")
    """What fit_surrogate.py wrote."""
    seeds: int = 1000
    """Of each strategy."""
    updates: int = 100
    """Optimizer steps for each member of a population of four; every strategy has four times as many in all."""
    out: Path | None = None
    """JSON file for all figures."""
    only: tuple[str, ...] = ()
    """Names of strategies; all when not given."""


DEFAULT = {"learning_rate": 1e-3, "ratio_max": 5.0, "window": 4}
OURS = Population(explore=POPULATION.explore)
STRATEGIES: dict[str, Strategy] = {
    "one agent, the rate known": one_agent(DEFAULT),
    "one agent, any rate": one_agent(None),
    "random search, 4 in turn": random_search(4),
    "random search, 8 in turn": random_search(8),
    "TPE with ASHA": halving,
    "population of 4": OURS,
    "  confidence 0.6": replace(OURS, selection=Truncation(confidence=0.6)),
    "  confidence 0.8": replace(OURS, selection=Truncation(confidence=0.8)),
    "  confidence 0.95": replace(OURS, selection=Truncation(confidence=0.95)),
    "  stability budget": replace(OURS, stability=StabilityBudget()),
    "  lower half replaced": replace(OURS, selection=Truncation(0.5)),
    "  tournament": replace(OURS, selection=Tournament()),
    "  not at the same step": replace(OURS, same_step=False),
    "  steps of 1.25": replace(OURS, explore=Perturbation(factor=1.25)),
    "  steps of 2": replace(OURS, explore=Perturbation(factor=2.0)),
    "  steps of 4": replace(OURS, explore=Perturbation(factor=4.0)),
    "  never drawn anew": replace(OURS, explore=Perturbation(factor=3.0, resample_probability=0.0)),
    "population of 8": replace(OURS, size=8),
    "  stability budget, 8": replace(OURS, size=8, stability=StabilityBudget()),
    "  multi-frequency, 8": replace(OURS, size=8, selection=MultiFrequency()),
}
STARTS = {
    "anywhere": None,
    "ten times too low": LOW,
    "ten times too high": HIGH,
}
"""Where first learning rates lie."""


def task(dynamics: Dynamics, start: LogRange | None, updates: int) -> Task:
    space = search_space(POPULATION.search_space)
    if start is None:
        return Task(dynamics, space, space, 4 * updates)
    return Task(dynamics, {**space, "learning_rate": WIDE}, {**space, "learning_rate": start}, 4 * updates)


def run(name: str, start: str, dynamics: Dynamics, updates: int, seed: int) -> Found:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    given = task(dynamics, STARTS[start], updates)
    return STRATEGIES[name](given, Ledger(given, (0.9 * reachable(dynamics),)), seed)


def reachable(dynamics: Dynamics) -> float:
    """The ceiling at the default rate."""
    return dynamics.ceiling - dynamics.ceiling_loss * DEFAULT["learning_rate"] / 1e-3


def summary(found: Sequence[Found]) -> dict[str, float]:
    scores = np.array([one.score for one in found])
    steps = np.array([next(iter(one.steps_to.values())) for one in found])
    low, middle, high = np.quantile(scores, (0.25, 0.5, 0.75))
    return {
        "score_median": float(middle),
        "score_quarter": float(low),
        "score_three_quarters": float(high),
        "score_mean": float(scores.mean()),
        "score_mean_se": float(scores.std(ddof=1) / math.sqrt(len(scores))) if len(scores) > 1 else math.nan,
        "steps_to_nine_tenths_median": float(np.quantile(steps, 0.5, method="inverted_cdf")),
        "reached_nine_tenths_share": float(np.isfinite(steps).mean()),
        "collapses_per_agent": float(np.mean([one.collapsed for one in found])),
        "clones": float(np.mean([one.clones for one in found])),
    }


def read_dynamics(path: Path) -> Dynamics:
    content = read_json(path)
    with as_written(path):
        numbers = content["dynamics"]
        dynamics = Dynamics(**{**numbers, "lags": {int(window): lag for window, lag in numbers["lags"].items()}})
    windows: list[int] = POPULATION.search_space["window"]
    missing = [window for window in windows if window not in dynamics.lags]
    require(not missing, f"'{path}' has no lag for the windows {missing}. Fit it to runs that used each of {windows}.")
    return dynamics


def main(args: Args) -> None:
    require(args.seeds >= 1, f"seeds must be at least 1, got {args.seeds}.")
    least = INTERVAL * 2  # a whole number of evaluations for each of eight agents in turn
    require(args.updates >= least and args.updates % least == 0, f"updates must be a multiple of {least}, got {args.updates}.")
    names = args.only or tuple(STRATEGIES)
    for name in names:
        require(name in STRATEGIES, f"there is no strategy '{name}'. Known are: {', '.join(map(repr, STRATEGIES))}.")
    dynamics, began = read_dynamics(args.surrogate), time.perf_counter()
    figures: dict[str, dict[str, dict[str, float]]] = {}
    print(f"SIMULATION: {args.seeds} seeds, {4 * args.updates} optimizer steps each; 0.9 is nine tenths of {reachable(dynamics):.3f}")
    with ProcessPoolExecutor(cores()) as pool:
        for start in STARTS:
            print(f"\nfirst learning rates {start}\n  {'':<28} score: median (quarters)  steps to 0.9   reached  collapses  clones")
            figures[start] = {}
            for name in names:
                found = list(pool.map(partial(run, name, start, dynamics, args.updates), range(args.seeds), chunksize=25))
                figures[start][name] = shown = summary(found)
                print(row(name, shown), flush=True)
    print(f"\n{time.perf_counter() - began:.0f} s")
    if args.out:
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()}
        write_json(args.out, {"simulation": True, "settings": settings, **figures})


def row(name: str, figures: Mapping[str, Any]) -> str:
    spread = f"{figures['score_median']:.3f} ({figures['score_quarter']:.3f} to {figures['score_three_quarters']:.3f})"
    steps = f"{figures['steps_to_nine_tenths_median']:.0f}"
    shares = f"{figures['reached_nine_tenths_share']:>9.0%}  {figures['collapses_per_agent']:>9.2f}  {figures['clones']:>6.1f}"
    return f"  {name:<28} {spread:<24} {steps:>12} {shares}"


if __name__ == "__main__":
    try:
        main(parse(Args))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
