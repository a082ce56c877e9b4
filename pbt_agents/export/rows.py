"""All that a run has measured, as flat rows: one for each evaluation, and one for each optimizer step.

Owns how the logs are read. After a crash or a kill a member goes on from its last checkpoint, so that some steps are there twice:
`lineage` tells the rows apart, and those of the highest one count.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pbt_agents.json_files import restored
from pbt_agents.scheduling.in_place import CUT_SHORT

Row = dict[str, Any]
KEYS = ("member", "updates", "version", "lineage")
"""They come first in every row."""
_EVALUATIONS, _UPDATES = "population/*/result.json", "population/*/ring/updates.jsonl"
_LEFT_OUT = ("pid", "trial_id", "date", "hostname", "node_ip", "checkpoint_dir_name", "remark")
"""Of the machine, and sentences."""


def evaluations(run: Path) -> list[Row]:
    """Results of every member: metrics, and the values in use by their names. A step that was cut short has no evaluation."""
    return [
        _row(file.parent.name, {**_searched(result), **result})
        for file in sorted(run.glob(_EVALUATIONS))
        for result in _lines(file)
        if not result.get(CUT_SHORT)
    ]


def members(run: Path) -> dict[str, str]:
    """Tune's id of each member that has a result -> its name."""
    first = {file.parent.name: next(_lines(file), {}) for file in sorted(run.glob(_EVALUATIONS))}
    return {str(result["trial_id"]): name for name, result in first.items() if "trial_id" in result}


def updates(run: Path) -> list[Row]:
    """Optimizer steps of every member, refused ones too (`trainer/stepped` 0)."""
    return [_row(file.parents[1].name, row) for file in sorted(run.glob(_UPDATES)) for row in _lines(file)]


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """What is whole. A process that was killed leaves a torn line, and one that goes on writes behind it."""
    for line in file.read_bytes().split(b"\n"):
        try:
            content = json.loads(line)
        except ValueError:
            continue
        if isinstance(content, dict):
            yield restored(content)


def _searched(result: Mapping[str, Any]) -> dict[str, Any]:
    """Values that Tune keeps beside the agent, for those that no one reads back."""
    config = result.get("config") or {}
    return {name: value for name, value in config.items() if name != "agent"}


def _row(member: str, content: Mapping[str, Any]) -> Row:
    named = {name: value for name, value in content.items() if name not in (*KEYS, *_LEFT_OUT, "config")}
    return {"member": member, **{key: content.get(key) for key in KEYS[1:]}, **dict(_flat(named))}


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Numbers and words; what is nested is named by its path."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float | str) and not isinstance(value, bool):
            yield prefix + name, value


def numbers(row: Row) -> dict[str, float]:
    """The metrics of a row that can be drawn."""
    return {name: value for name, value in row.items() if name not in KEYS and isinstance(value, int | float) and math.isfinite(value)}
