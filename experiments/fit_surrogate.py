"""Fit the surrogate of training to recorded runs, and say how well it fits.

python experiments/fit_surrogate.py --runs runs/a runs/b --out results/surrogate.json

Rests on each interval between two evaluations of every member of every population in these directories (`--compare` makes three), with
the values and the lag that were measured in it. They are kept beside the fit as intervals.csv, from which it can be repeated.
"""

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import _interpreter  # noqa: F401
import optuna
from _dynamics import Dynamics
from _figures import Figures, show

from pbt_agents.checks import require
from pbt_agents.command_line import parse
from pbt_agents.errors import ConfigError
from pbt_agents.export.stretches import stretches
from pbt_agents.json_files import write_json

COLLAPSED = 0.5
"""Of the score before: an interval that ends below has collapsed."""
GONE = 0.1
"""A score below which nothing is left that could go on learning."""


@dataclass
class Args:
    runs: tuple[Path, ...]
    """Directories of finished runs, or the intervals.csv of a former fit."""
    out: Path = Path("results/surrogate.json")
    """The fit; intervals.csv goes beside it."""
    trials: int = 1500
    """Of the optimizer."""
    seed: int = 0
    """Of the optimizer."""


@dataclass(frozen=True)
class Interval:
    """What was measured between two evaluations of a member."""

    run: str
    member: str
    start: int
    """In steps along the line of descent."""
    end: int
    score: float
    """At the start; NaN before the first evaluation, where it is the base model's."""
    score_after: float
    error: float
    """Standard error of score_after."""
    learning_rate: float
    window: int
    lag: float
    """Mean of the trained tokens, in steps."""

    @property
    def steps(self) -> int:
        return self.end - self.start


def recorded(run: Path) -> Iterator[Interval]:
    """Of every member of every population in this directory. A clone's first interval begins at its parent's checkpoint."""
    for arm in sorted(folder.parent for folder in run.glob("**/population")):
        for stretch in stretches(arm):
            step, score = stretch.start, stretch.score
            for row in stretch.evaluations:
                measured = row["fitness_se"], row["learning_rate"], row["window"], row.get("trainer/lag_steps_mean", 0.0)
                name = str(arm.relative_to(run.parent))
                yield Interval(name, stretch.member, step, row["version"], score, row["fitness"], *measured)
                step, score = row["version"], row["fitness"]


def read_intervals(path: Path) -> list[Interval]:
    kinds = {one.name: one.type for one in fields(Interval)}
    with path.open(newline="") as file:
        return [Interval(**{name: kinds[name](text) for name, text in row.items()}) for row in csv.DictReader(file)]  # type: ignore[operator]


def write_intervals(path: Path, intervals: Sequence[Interval]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [one.name for one in fields(Interval)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(
            {name: f"{value:.6g}" if isinstance(value, float) else value for name, value in asdict(one).items()} for one in intervals
        )


# The fit.


def fit(intervals: Sequence[Interval], trials: int, seed: int) -> tuple[Dynamics, Figures]:
    """Gains by least squares, in units of the errors, from intervals that learned; the limit by likelihood, from which ones collapsed."""
    alive = [one for one in intervals if one.steps > 0 and (one.score >= GONE or one.start == 0)]
    learned = [one for one in alive if not collapsed(one)]
    lags = defaultdict(list)
    for one in intervals:
        lags[one.window].append(one.lag)
    mean_lags = {window: sum(lags[window]) / len(lags[window]) for window in sorted(lags)}
    noise = math.sqrt(sum(one.error**2 for one in learned) / len(learned))

    def dynamics(limit: float = 1.0, sharpness: float = 1.0, **numbers: float) -> Dynamics:
        return Dynamics(limit=limit, sharpness=sharpness, lags=mean_lags, noise=noise, **numbers)

    gains = minimize(lambda **numbers: misfit(dynamics(**numbers), learned), _GAINS, trials, seed)
    limits = minimize(lambda **numbers: surprise(dynamics(**gains, **numbers), alive), _LIMITS, trials // 3, seed)
    fitted = dynamics(**gains, **limits)
    return fitted, {
        "intervals": len(intervals),
        "that_learned": len(learned),
        "that_collapsed": len(alive) - len(learned),
        "misfit_in_errors_rms": math.sqrt(misfit(fitted, learned)),
        "misfit_of_no_change_in_errors_rms": math.sqrt(misfit(dynamics(**{**gains, "gain": 0.0}), learned)),
        "nats_per_interval_of_collapse": surprise(fitted, alive),
    }


_GAINS = {
    "base": (0.2, 0.4, False),
    "ceiling": (0.5, 0.9, False),
    "ceiling_loss": (0.0, 0.1, False),
    "gain": (0.01, 0.5, True),
    "half_rate": (1e-4, 1e-2, True),
    "lag_cost": (0.0, 0.5, False),
}
_LIMITS = {"limit": (1e-3, 1e-1, True), "sharpness": (0.5, 8.0, False)}
"""Name -> lowest, highest, and whether it is searched by factors."""


def minimize(loss: Callable[..., float], ranges: Mapping[str, tuple[float, float, bool]], trials: int, seed: int) -> dict[str, float]:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True))
    study.optimize(
        lambda trial: loss(**{name: trial.suggest_float(name, low, high, log=log) for name, (low, high, log) in ranges.items()}), trials
    )
    return dict(study.best_params)


def collapsed(one: Interval) -> bool:
    """Before the first evaluation the score is that of the base model, which is above GONE / COLLAPSED."""
    return not one.score_after >= (COLLAPSED * one.score if math.isfinite(one.score) else GONE)


def misfit(dynamics: Dynamics, intervals: Sequence[Interval]) -> float:
    """Mean square of predicted less measured, in standard errors of both ends."""
    return sum(((predicted(dynamics, one) - one.score_after) / error(one)) ** 2 for one in intervals) / len(intervals)


def error(one: Interval) -> float:
    return one.error * (math.sqrt(2) if math.isfinite(one.score) else 1)


def predicted(dynamics: Dynamics, one: Interval) -> float:
    score = one.score if math.isfinite(one.score) else dynamics.base
    for _ in range(one.steps):
        score = dynamics.step(score, one.learning_rate, one.lag)
    return score


def surprise(dynamics: Dynamics, intervals: Sequence[Interval]) -> float:
    """Mean negative log-likelihood of who collapsed, in nats."""
    total = 0.0
    for one in intervals:
        lives = (1 - dynamics.hazard(one.learning_rate, one.lag)) ** one.steps
        total -= math.log(max(1 - lives if collapsed(one) else lives, 1e-12))
    return total / len(intervals)


def main(args: Args) -> None:
    require(bool(args.runs), "runs is empty. Name directories of finished runs.")
    found: list[Interval] = []
    for path in args.runs:
        require(path.exists(), f"'{path}' does not exist. Name directories of finished runs, or an intervals.csv.")
        found += read_intervals(path) if path.suffix == ".csv" else recorded(path)
    require(bool(found), f"no evaluation of any member lies in {', '.join(map(str, args.runs))}.")
    fitted, figures = fit(found, args.trials, args.seed)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_intervals(args.out.with_name("intervals.csv"), found)
    write_json(args.out, {"dynamics": asdict(fitted), "fit": figures, "seed": args.seed, "trials": args.trials})
    show("fit of the surrogate", figures)
    show("the surrogate", {name: value for name, value in asdict(fitted).items() if name != "lags"})
    show("mean lag by window", {f"window_{window}": lag for window, lag in fitted.lags.items()})


if __name__ == "__main__":
    try:
        main(parse(Args))
    except ConfigError as error_:
        print(f"error: {error_}", file=sys.stderr)
        sys.exit(2)
