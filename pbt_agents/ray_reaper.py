"""Ends what is left of a Ray whose driver has ended, however that died: some of Ray's processes would stay for a minute.

    python -m pbt_agents.ray_reaper FOLDER      # Ray's temporary folder, which it removes

Waits on its standard input, which the driver holds open until it has shut its Ray down, or until it is killed.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_PATIENCE_S = 5.0


@contextmanager
def reaped(folder: Path) -> Iterator[None]:
    """When the block ends, or this process dies in it, all that still works in the Ray of `folder` is ended and the folder removed."""
    command = [sys.executable, "-m", "pbt_agents.ray_reaper", str(folder)]
    # In a session of its own, since Ctrl-C is for the driver.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as reaper:
        try:
            yield
        finally:
            reaper.communicate()


def workers_in(folder: Path) -> list[psutil.Process]:
    """Processes that were started with this folder's sessions or have a file open there: Ray's own, and its driver."""
    found = []
    for process in psutil.process_iter():
        try:
            paths = [*process.cmdline(), *(file.path for file in process.open_files())]
        except psutil.Error:
            continue
        if any(f"{folder}/session_" in path for path in paths):
            found.append(process)
    return found


def main(folder: Path) -> None:
    driver = psutil.Process().parent()
    sys.stdin.read()
    deadline = time.monotonic() + _PATIENCE_S
    while (left := [process for process in workers_in(folder) if process != driver]) and time.monotonic() < deadline:
        for process in left:
            process.kill()
        psutil.wait_procs(left, 1.0)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
