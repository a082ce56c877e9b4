"""TensorBoard's event files, a run of TensorBoard's for each member, drawn against `updates`, which only rises."""

import shutil
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from pbt_agents.export.rows import Row, evaluations, numbers, updates

FOLDER = "tensorboard"


def write_tensorboard(run: Path) -> dict[str, int]:
    """Write `tensorboard/MEMBER`, in place of what was there. Member -> number of points."""
    aside = run / f".{FOLDER}"
    shutil.rmtree(aside, ignore_errors=True)
    points: dict[str, int] = {}
    for prefix, rows, time in (("evaluation", evaluations(run), "timestamp"), ("update", updates(run), "started")):
        for member, own in groupby(rows, key=lambda row: str(row["member"])):
            points[member] = points.get(member, 0) + _write(aside / member, prefix, own, time)
    if points:
        shutil.rmtree(run / FOLDER, ignore_errors=True)
        aside.rename(run / FOLDER)
    return points


def _write(folder: Path, prefix: str, rows: Iterable[Row], time: str) -> int:
    from tensorboardX import SummaryWriter
    from tensorboardX.proto.summary_pb2 import Summary

    points = 0
    with SummaryWriter(str(folder), filename_suffix=f".{prefix}") as writer:
        for row in rows:
            values: list[Any] = [Summary.Value(tag=f"{prefix}/{name}", simple_value=value) for name, value in numbers(row).items()]
            # All values of a row in one event: an event of its own for each takes ten times as long.
            writer.file_writer.add_summary(Summary(value=values), row["updates"], row.get(time))
            points += len(values)
    return points
