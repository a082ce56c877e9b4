"""`metrics.parquet` and `updates.parquet`, for pandas, DuckDB and the like."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pbt_agents.export.rows import KEYS, Row, evaluations, updates

METRICS, UPDATES = "metrics.parquet", "updates.parquet"


def write_parquet(run: Path) -> dict[str, tuple[int, int]]:
    """Write both into the run's directory, each whole or not at all. File name -> its rows and columns."""
    tables = {METRICS: _table(evaluations(run)), UPDATES: _table(updates(run))}
    for name, table in tables.items():
        aside = run / f".{name}.{os.getpid()}"
        pq.write_table(table, aside, compression="zstd")
        aside.replace(run / name)
    return {name: (table.num_rows, table.num_columns) for name, table in tables.items()}


def _table(rows: Sequence[Row]) -> pa.Table:
    """A column for each name that any row has; null where a row has it not."""
    names = dict.fromkeys([*KEYS, *(name for row in rows for name in row)])
    return pa.table({name: _column([row.get(name) for row in rows], name) for name in names})


def _column(values: Sequence[Any], name: str) -> pa.Array:
    """Whole numbers stay whole where all of them are; what is now a number and then a word is words."""
    kinds = {type(value) for value in values if value is not None}
    if name == KEYS[0] or str in kinds:
        return pa.array([None if value is None else str(value) for value in values], pa.string())
    if kinds <= {int} and (kinds or name in KEYS):
        return pa.array(values, pa.int64())
    return pa.array([None if value is None else float(value) for value in values], pa.float64())
