"""Score an adapter on fresh tasks, beside its base model, by a vLLM engine of its own.

Base and adapter play the same tasks, so their difference has a smaller error than either score. Environment, base model and seed are
those of the run that the adapter lies in; with the run's seed and its number of episodes, test tasks are those of its results.json.

    python -m pbt_agents evaluate runs/mine/best --split validation --decoding greedy --json
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pbt_agents.checks import require
from pbt_agents.commands._subject import Subject, subject
from pbt_agents.types import Split

POSITIONAL = ("adapter",)
TEMPERATURES = {"sampled": 1.0, "greedy": 0.0}


@dataclass(frozen=True)
class Args:
    adapter: Path
    """Folder in PEFT's format, such as the `best` of a run."""
    split: Split = "test"
    """Which tasks."""
    episodes: int = 256
    """How many tasks; each is played once for each decoding."""
    decoding: Literal["both", "sampled", "greedy"] = "both"
    """sampled: at temperature 1."""
    environment: str | None = None
    """Environment and variant; that of the run, else sudoku:tiny, when not given."""
    model: str | None = None
    """Base model: tiny, a folder or a hub id; that of the run, else tiny, when not given."""
    seed: int | None = None
    """Of the tasks; that of the run, else 0, when not given."""
    json: bool = False
    """Print one JSON object in place of the table."""


@dataclass(frozen=True)
class Score:
    """Over tasks; mean and standard error are NaN when most have no verdict."""

    mean: float
    se: float
    lost: int
    """Episodes without verdict; they are in no mean."""

    def __str__(self) -> str:
        return f"{self.mean:6.3f} ±{self.se:.3f}" + (f" ({self.lost} lost)" if self.lost else "")


Table = dict[str, dict[str, Score]]
"""Row (base, adapter, difference) -> decoding -> score."""


def main(args: Args) -> int:
    require(args.episodes >= 2, f"episodes must be at least 2 for a standard error, got {args.episodes}.")
    playing = subject(args.adapter, args.environment, args.model, args.seed)
    print(playing, file=sys.stderr)
    decodings = list(TEMPERATURES) if args.decoding == "both" else [str(args.decoding)]
    scores = _play(playing, args, decodings)
    print(_json(playing, args, scores) if args.json else _text(args, scores))
    return 1 if any(math.isnan(score.mean) for row in ("base", "adapter") for score in scores[row].values()) else 0


def _play(playing: Subject, args: Args, decodings: list[str]) -> Table:
    from pbt_agents.commands._ready import lines_on_stderr, ready_evaluator
    from pbt_agents.dashboard.stages import Stage

    reporter, players = lines_on_stderr(), {"base": None, "adapter": args.adapter}
    doing, count = f"playing {args.episodes} {args.split} tasks, {' and '.join(decodings)}", len(players) * len(decodings) * args.episodes
    with ready_evaluator(playing, reporter) as evaluator:
        with Stage(reporter, "playing", doing, None, evaluator.played, count, "episodes") as stage:
            scores = {
                decoding: {
                    name: evaluator.scores(adapter, args.split, args.episodes, TEMPERATURES[decoding]) for name, adapter in players.items()
                }
                for decoding in decodings
            }
            stage.result = "all are played"
        return table(scores)


def table(scores: Mapping[str, Mapping[str, np.ndarray]]) -> Table:
    """Decoding -> row -> [tasks] scores. The difference is that of each task with a verdict for both."""
    rows: Table = {"base": {}, "adapter": {}, "difference": {}}
    for decoding, by_row in scores.items():
        for name, values in {**by_row, "difference": by_row["adapter"] - by_row["base"]}.items():
            rows[name][decoding] = _score(values)
    return rows


def _score(values: np.ndarray) -> Score:
    from pbt_agents.ring import fitness

    found = fitness(values)
    return Score(found["fitness"], found["fitness_se"], int(found["evaluation_lost"]))


def _text(args: Args, scores: Table) -> str:
    decodings = list(scores["base"])
    lines = [f"{args.episodes} {args.split} tasks  " + "".join(f"{name:<24}" for name in decodings)]
    lines += [
        f"{name:<{len(lines[0]) - 24 * len(decodings)}}" + "".join(f"{row[d]!s:<24}" for d in decodings) for name, row in scores.items()
    ]
    return "\n".join(line.rstrip() for line in lines)


def _json(playing: Subject, args: Args, scores: Table) -> str:
    import json

    from pbt_agents.json_files import plain

    content: dict[str, Any] = {
        "adapter": str(args.adapter),
        "environment": playing.config.environment.id,
        "model": playing.config.model.path,
        "split": args.split,
        "episodes": args.episodes,
        "seed": playing.config.seed,
        "run": playing.run and str(playing.run),
        "scores": {row: {decoding: asdict(score) for decoding, score in by.items()} for row, by in scores.items()},
    }
    return json.dumps(plain(content), allow_nan=False, indent=1)
