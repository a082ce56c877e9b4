"""How a run is asked to end early: a file that every agent looks for between two updates.

Ctrl-C and SIGTERM put it there, and so does a budget that is used up. Agents then end their step, save, and stop.
"""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType

STOP_FILE = "stop"
_PATIENCE_S = 7.0
"""After a signal, for agents to save; what has not saved by then is left at its last checkpoint."""


class StopSign:
    """Watches `used_up` and the signals while the block runs. Only the main thread may enter it."""

    def __init__(self, folder: Path, used_up: Callable[[], bool], period_s: float = 0.5) -> None:
        self._file = folder / STOP_FILE
        self._used_up, self._period_s = used_up, period_s
        self.signal: int | None = None
        """That interrupted the run, if one did."""
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, name="stop-sign", daemon=True)
        self._handlers: dict[int, object] = {}

    def __enter__(self) -> "StopSign":
        self._file.unlink(missing_ok=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._interrupt)
        self._handlers[signal.SIGALRM] = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._over.set()
        self._watch.join()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """The first signal asks; a second one, or the end of the patience, breaks off with KeyboardInterrupt."""
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        self._file.touch()
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)

    def _look(self) -> None:
        while not self._over.wait(self._period_s):
            if self._used_up():
                self._file.touch()
