"""Ends what is left of a Ray whose driver has ended, however that died: some of Ray's processes would stay for a minute.

    python -m pbt_agents.ray_reaper FOLDER      # Ray's temporary folder, which it removes

Waits on its standard input, which the driver holds open until it has shut its Ray down, or until it is killed. Processes are
known by a mark in their environment alone: whoever reads a log in the folder, or works in it, is a stranger and lives on.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

_PATIENCE_S = 5.0
_MARK = "PBT_AGENTS_RAY"


def mark(folder: Path) -> dict[str, str]:
    """Environment in which the Ray of `folder` is to start: it marks all that come of it."""
    # Ray's processes write titles over their own environment, where others read it, unless they are told to leave it.
    return {_MARK: str(folder), "SPT_NOENV": "1"}


@contextmanager
def reaped(folder: Path) -> Iterator[None]:
    """When the block ends, or this process dies in it, all that bears the mark of `folder` is ended and the folder removed."""
    command = [sys.executable, "-m", "pbt_agents.ray_reaper", str(folder)]
    # In a session of its own, since Ctrl-C is for the driver.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as reaper:
        try:
            yield
        finally:
            reaper.communicate()


def workers_in(folder: Path) -> list[psutil.Process]:
    """Processes of the Ray of `folder`, and what they have started."""
    return [process for process in psutil.process_iter() if _is_marked(process, folder)]


def main(folder: Path) -> None:
    sys.stdin.read()
    deadline = time.monotonic() + _PATIENCE_S
    while (left := workers_in(folder)) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.NoSuchProcess):  # most end by themselves meanwhile
                process.kill()
        psutil.wait_procs(left, 1.0)
    shutil.rmtree(folder, ignore_errors=True)


def _is_marked(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.environ().get(_MARK) == str(folder)
    except psutil.Error:
        return False


if __name__ == "__main__":
    main(Path(sys.argv[1]))
