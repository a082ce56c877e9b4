"""A script in a session of its own, and all the processes that came of it: for tests of how runs end.

with Job([sys.executable, "experiments/sudoku_pbt.py"], tmp_path / "log") as job:
    job.wait_for(lambda: "engine(s) ready" in job.output, "engines")
    job.interrupt()                 # as Ctrl-C does
    job.wait(10)                    # its exit code
    job.wait_for_nobody(10)
"""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import psutil

_MARK = "PBT_AGENTS_JOB"
_POLL_S = 0.05


class Job:
    """Processes are known by the session, or by a mark in their environment where they have left it. Others are never touched."""

    def __init__(
        self, command: Sequence[str | Path], log: Path, environment: dict[str, str] | None = None, folder: Path | None = None
    ) -> None:
        self._log, self._mark = log, uuid.uuid4().hex
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {}), _MARK: self._mark, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        self.pid = self._process.pid

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self.processes():
            process.kill()
        self._process.wait()

    @property
    def output(self) -> str:
        """Everything written so far, to either stream."""
        return self._log.read_text()

    def wait_for(self, happened: Callable[[], bool], what: str, timeout_s: float = 240.0) -> None:
        """Returns once `happened()`. Raises AssertionError with the output when the job ends before, or time is up."""
        deadline = time.monotonic() + timeout_s
        while not happened():
            assert self._process.poll() is None, f"the job ended before {what}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {what} in {timeout_s} s:\n{self.output}"
            time.sleep(_POLL_S)

    def wait(self, timeout_s: float) -> int:
        """Its exit code."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout_s} s:\n{self.output}") from None

    def interrupt(self) -> None:
        """What Ctrl-C on a terminal does: SIGINT to all processes in the foreground."""
        os.killpg(self.pid, signal.SIGINT)

    def send(self, number: int) -> None:
        """A signal to the script alone."""
        self._process.send_signal(number)

    def processes(self) -> list[psutil.Process]:
        """All that live, the script among them."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def commands(self) -> list[str]:
        """Of the processes that live."""
        return [command_of(process) for process in self.processes()]

    def wait_for_nobody(self, timeout_s: float) -> None:
        """Returns once no process is left. Raises AssertionError naming them when time is up."""
        deadline = time.monotonic() + timeout_s
        self._process.poll()
        while left := self.processes():
            assert time.monotonic() < deadline, f"left after {timeout_s} s: {[command_of(process) for process in left]}"
            time.sleep(_POLL_S)
            self._process.poll()

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return os.getsid(process.pid) == self.pid or process.environ().get(_MARK) == self._mark
        except (psutil.Error, OSError):
            return False


def command_of(process: psutil.Process) -> str:
    """Its command line, or that it has ended, as it may at any moment."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.Error:
        return f"{process.pid} has ended"
