"""The directory of one run: who may use it, and what it was started with.

`run.json` is written before anything expensive starts. A resumed run takes its settings from there, so that a half-remembered
flag cannot change a run in its middle.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
    A run that is refused, by a ConfigError in the block, leaves nothing that was not there.
    """
    with _writing(out):
        if out.exists() and (not out.is_dir() or any(file.name != _LOCK for file in out.iterdir())):
            raise ConfigError(f"'{out}' exists and is not an empty directory. Continue its run with --resume, or choose another --out.")
    manifest = {"settings": settings, "population": population, "started": time.time(), **provenance()}
    with _folders_made(out), _claim(out), _emptied_when_refused(out):
        with _writing(out):
            write_json(out / MANIFEST, manifest)
        yield out


@contextmanager
def nothing_kept(out: Path) -> Iterator[None]:
    """The directory of a dry run goes with the block. For the holder of the directory."""
    try:
        yield
    finally:
        shutil.rmtree(out, ignore_errors=True)


@contextmanager
def resumed_run(out: Path) -> Iterator[dict[str, Any]]:
    """Claim the directory of an earlier run, and give its manifest. Raises ConfigError when it holds none or is in use."""
    with _writing(out):
        there = (out / MANIFEST).exists()
    if not there:
        raise ConfigError(f"nothing to resume in '{out}': it holds no {MANIFEST}. Name the directory of an earlier run.")
    with _claim(out):
        content = read_json(out / MANIFEST)
        if not (isinstance(content, dict) and isinstance(content.get("settings"), dict)):
            raise ConfigError(f"'{out / MANIFEST}' holds no settings of a run. Name the directory of an earlier run.")
        yield content


def manifest_around(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """The run that this folder lies in, or is: its directory and manifest. None when it lies in no run."""
    resolved = folder.resolve()
    for run in (resolved, *resolved.parents):
        if (run / MANIFEST).is_file():
            content = read_json(run / MANIFEST)
            return (run, content) if isinstance(content, dict) and isinstance(content.get("settings"), dict) else None
    return None


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    """What the system says against it is told as a ConfigError."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"the directory '{out}' cannot be written: {error.strerror}. Choose another --out.") from error


@contextmanager
def _folders_made(out: Path) -> Iterator[None]:
    """Those of the path that were not there, and are empty, go again when the run is refused."""
    with _writing(out):
        made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        yield
    except ConfigError:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


@contextmanager
def _emptied_when_refused(out: Path) -> Iterator[None]:
    """Of what says that a run is here, where there is nothing else yet. For the holder of the lock."""
    try:
        yield
    except ConfigError:
        with suppress(OSError):
            if {file.name for file in out.iterdir()} <= {MANIFEST, _LOCK}:
                (out / MANIFEST).unlink(missing_ok=True)
                (out / _LOCK).unlink()
        raise


@contextmanager
def _claim(out: Path) -> Iterator[None]:
    lock = _lock(out)
    try:
        yield
    finally:
        os.close(lock)


def _lock(out: Path) -> int:
    """A file descriptor that holds the directory until it is closed, or its process dies."""
    with _writing(out):
        out.mkdir(parents=True, exist_ok=True)
        lock = os.open(out / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise ConfigError(f"another run is at work in '{out}'. Wait for its end, or choose another --out for a new one.") from error
    return lock
