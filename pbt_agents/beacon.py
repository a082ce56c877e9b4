"""A small file in which a process says, every few seconds, what it is at: so that others can tell slow from stuck.

Owns the file and the thread that writes it. What is said is the caller's.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pbt_agents.json_files import plain


class Beacon:
    """Writes what `read()` says, and the Unix time as `time_s`, at once and from then on until `close`."""

    def __init__(self, file: Path, read: Callable[[], Mapping[str, Any]], period_s: float = 2.0) -> None:
        self._file, self._read, self._period_s = file, read, period_s
        self._closed = threading.Event()
        self._write()
        self._thread = threading.Thread(target=self._shine, name="beacon", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()

    def _shine(self) -> None:
        while not self._closed.wait(self._period_s):
            try:
                self._write()
            except OSError:  # the folder ended before its owner, and nobody looks any more
                return

    def _write(self) -> None:
        aside = self._file.with_suffix(".tmp")
        aside.write_text(json.dumps(plain({**self._read(), "time_s": time.time()}), allow_nan=False))
        aside.replace(self._file)


def beacon_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.beacon"


def read_beacon(file: Path) -> dict[str, Any] | None:
    """What was said last; None where nothing is, or nothing can be read from here."""
    try:
        said: dict[str, Any] = json.loads(file.read_text())
    except OSError:
        return None
    return said
