"""The directory of one run: who may use it, and what it was started with.

`run.json` is written before anything expensive starts. A resumed run takes its settings from there, so that a half-remembered
flag cannot change a run in its middle.
"""

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pbt_agents.errors import ConfigError
from pbt_agents.json_files import read_json, write_json
from pbt_agents.provenance import provenance

MANIFEST, _LOCK = "run.json", ".lock"


@contextmanager
def new_run(out: Path, settings: Mapping[str, Any], population: Mapping[str, Any] | None = None) -> Iterator[Path]:
    """Claim a directory for the time of the block. Raises ConfigError when it is in use, not empty or cannot be written.

    `settings` are what a resumed run starts from, `population` is everything that they come to (PopulationSpec.to_dict).
    """
    if out.exists() and (not out.is_dir() or any(file.name != _LOCK for file in out.iterdir())):
        raise ConfigError(f"'{out}' exists and is not an empty directory. Continue its run with --resume, or choose another --out.")
    with _claim(out):
        write_json(out / MANIFEST, {"settings": settings, "population": population, "started": time.time(), **provenance()})
        yield out


@contextmanager
def resumed_run(out: Path) -> Iterator[dict[str, Any]]:
    """Claim the directory of an earlier run, and give its settings. Raises ConfigError when it holds none or is in use."""
    if not (out / MANIFEST).exists():
        raise ConfigError(f"nothing to resume in '{out}': it holds no {MANIFEST}. Name the directory of an earlier run.")
    with _claim(out):
        yield read_json(out / MANIFEST)["settings"]


def manifest_around(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The run that this folder lies in, or is: its directory and manifest. None when it lies in no run."""
    resolved = folder.resolve()
    for run in (resolved, *resolved.parents):
        if (run / MANIFEST).is_file():
            content = read_json(run / MANIFEST)
            return (run, content) if isinstance(content, dict) and "settings" in content else None
    return None


@contextmanager
def _claim(out: Path) -> Iterator[None]:
    lock = _lock(out)
    try:
        yield
    finally:
        os.close(lock)


def _lock(out: Path) -> int:
    """A file descriptor that holds the directory until it is closed, or its process dies."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = os.open(out / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise ConfigError(f"the directory '{out}' cannot be written: {error.strerror}. Choose another --out.") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise ConfigError(f"another run is at work in '{out}'. Choose another --out.") from error
    return lock
