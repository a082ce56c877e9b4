"""How a run is asked to end early: a file that every agent looks for between two updates.

Ctrl-C and SIGTERM put it there, and so does a budget that is used up. Agents then end their step, save, and stop.
"""

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType

STOP_FILE = "stop"
_PATIENCE_S = 6.0
"""After a signal, for agents to save; what has not saved by then is left at its last checkpoint."""


class StopSign:
    """Watches `used_up` and the signals while the block runs. Only the main thread may enter it.

    The first signal asks; a second one, or the end of the patience, breaks off with KeyboardInterrupt.
    """

    def __init__(self, folder: Path, used_up: Callable[[], bool], period_s: float = 0.5) -> None:
        self._file = folder / STOP_FILE
        self._used_up, self._period_s = used_up, period_s
        self.signal: int | None = None
        """That interrupted the run, if one did."""
        self._deadline: float | None = None
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, name="stop-sign", daemon=True)
        self._handlers: dict[int, object] = {}

    def __enter__(self) -> "StopSign":
        self._file.unlink(missing_ok=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            self._handlers[number] = signal.signal(number, self._interrupt)
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._watch.join()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._over.is_set():
            return
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal, self._deadline = number, time.monotonic() + _PATIENCE_S
        self._file.touch()

    def _look(self) -> None:
        while not self._over.wait(self._period_s):
            if self._used_up():
                self._file.touch()
            if self._deadline is not None and time.monotonic() > self._deadline:
                # To the main thread itself, so that whatever it waits for ends.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
