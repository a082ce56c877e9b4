"""A run as stretches: what one member did between two clones, with the same values all along."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbt_agents.checks import require
from pbt_agents.export.rows import Row, evaluations, members
from pbt_agents.json_files import as_written, read_json


@dataclass(frozen=True)
class Stretch:
    member: str
    values: Mapping[str, Any]
    """Of the searched settings, as they were decided."""
    start: int
    """Steps along the line of descent that it began with: 0, or those of its parent's checkpoint."""
    score: float
    """Of the parent at that checkpoint; NaN for a member's first stretch."""
    evaluations: Sequence[Row]
    """At least one."""


def stretches(run: Path) -> Iterator[Stretch]:
    """Of every member of a population that has ended, those of a member in their order.

    Raises ConfigError when there is no lineage.json, which a population leaves at its end.
    """
    file = run / "population" / "lineage.json"
    require(file.is_file(), f"'{run}' holds no population/lineage.json, which is written at the end of a run. Name a run that has ended.")
    lineage, names = read_json(file), members(run)
    with as_written(file):
        first = {names[trial]: values for trial, values in lineage["members"].items() if trial in names}
        clones = [{**clone, "child": names.get(clone["child"])} for clone in lineage["clones"]]
        for member, values in first.items():
            rows = [row for row in evaluations(run) if row["member"] == member]
            yield from _of_member(member, values, rows, [clone for clone in clones if clone["child"] == member])


def _of_member(member: str, values: Mapping[str, Any], rows: Sequence[Row], clones: Sequence[Mapping[str, Any]]) -> Iterator[Stretch]:
    start, score, place = 0, math.nan, 0
    for clone in clones:
        judged = [at for at, row in enumerate(rows) if at >= place and _is_judged(row, clone)]
        if judged:
            yield Stretch(member, values, start, score, rows[place : judged[-1] + 1])
            place = judged[-1] + 1
        values, start, score = clone["values"], clone["parent_step"], clone["parent_score"]
    if rows[place:]:
        yield Stretch(member, values, start, score, rows[place:])


def _is_judged(row: Row, clone: Mapping[str, Any]) -> bool:
    """Whether the member was replaced at this result. Its time is that of a clock in whole seconds."""
    return bool(row["version"] == clone["child_step"] and row["timestamp"] <= clone["time_s"])
