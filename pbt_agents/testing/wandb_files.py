"""What W&B's runs hold, read from the files that it writes offline."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_HEADER, _BLOCK = 7, 32768


def offline_runs(folder: Path) -> dict[str, tuple[str, list[dict[str, Any]]]]:
    """Run id -> (group, rows), joined from all sessions below `folder` in their order."""
    runs: dict[str, tuple[str, list[dict[str, Any]]]] = {}
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        records = list(_records(file))
        run = next((record.run for record in records if record.HasField("run")), None)
        if run is None:  # its writer was killed before it began
            continue
        rows = [_row(record.history) for record in records if record.HasField("history")]
        runs.setdefault(run.run_id, (run.run_group, []))[1].extend(rows)
    return runs


def _row(history: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in history.item}


def _records(file: Path) -> Iterator[Any]:
    """LevelDB's log of protobuf records: blocks of fragments, each with checksum, length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, fragments = file.read_bytes(), _HEADER, b""
    while position + 7 <= len(data):
        room = _BLOCK - position % _BLOCK
        if room < 7:
            position += room
            continue
        _, length, kind = struct.unpack("<IHB", data[position : position + 7])
        fragments += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or last
            yield Record.FromString(fragments)
            fragments = b""
