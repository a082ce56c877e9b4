"""Write a run's metrics as Parquet and TensorBoard files, from the JSON lines of an old, an interrupted or a running one.

    python -m pbt_agents export runs/mine
    tensorboard --logdir runs/mine/tensorboard
    python -c "import pandas; print(pandas.read_parquet('runs/mine/metrics.parquet').groupby('member').fitness.max())"

metrics.parquet has a row for each evaluation of each member, updates.parquet one for each optimizer step. Steps are there twice where a
member went on from a checkpoint after a crash: those of the higher lineage count. A run writes both Parquet files at its end by itself.

    python -m pbt_agents export runs/mine --study sqlite:///runs/study.db

adds a run that has ended to the Optuna study of its recipe and environment, a trial for each stretch of training with the same values.
"""

from dataclasses import dataclass
from pathlib import Path

from pbt_agents.checks import require

POSITIONAL = ("run",)


@dataclass(frozen=True)
class Args:
    run: Path
    """Directory of the run."""
    tensorboard: bool = True
    """TensorBoard's event files, too."""
    study: str | None = None
    """Optuna storage to add the run to."""


def main(args: Args) -> int:
    require(
        any(args.run.glob("population/*/result.json")) or any(args.run.glob("population/*/ring/updates.jsonl")),
        f"'{args.run}' holds no results: it has no population/*/result.json. Name the directory of a run whose members have begun.",
    )
    from pbt_agents.export.parquet import write_parquet
    from pbt_agents.export.tensorboard import FOLDER, write_tensorboard

    for name, (rows, columns) in write_parquet(args.run).items():
        print(f"{args.run / name}: {rows} rows of {columns} columns")
    if args.tensorboard:
        for member, points in write_tensorboard(args.run).items():
            print(f"{args.run / FOLDER / member}: {points} points")
    if args.study:
        from pbt_agents.study import Study, study_of

        name = study_of(args.run)
        print(f"{args.study}, study '{name}': {Study(args.study, name).add(args.run)} trials added")
    return 0
