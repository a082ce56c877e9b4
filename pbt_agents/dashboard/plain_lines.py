"""Plain lines, without escape codes: for files and pipes."""

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pbt_agents.dashboard.events import LAST, Event, Failed, Interrupted, Note, Progress, StageEnded, StageStarted
from pbt_agents.dashboard.thinning import Thinning

if TYPE_CHECKING:
    from pbt_agents.dashboard.reporter import Reporter


class PlainLines:
    """News of a stage stand behind the seconds since it began. `write(event, line)` puts the line somewhere."""

    def __init__(self, write: Callable[[Event, str], None] | None = None) -> None:
        self._write = write or write_line
        self._stage_began: float | None = None
        self._thinning = Thinning()
        self._lock = threading.Lock()

    def tell(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Progress) and not self._thinning.shows(event):
                return
            if isinstance(event, StageStarted):
                self._thinning, self._stage_began = Thinning(), None
            self._write(event, self._stamped(event))
            if isinstance(event, StageStarted | StageEnded):
                self._stage_began = time.monotonic() if isinstance(event, StageStarted) else None

    def _stamped(self, event: Event) -> str:
        if self._stage_began is None or isinstance(event, Note | LAST):
            return event.text()
        return f"{time.monotonic() - self._stage_began:6.0f} s  {event.text()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass


def write_line(event: Event, line: str) -> None:
    """Errors, and an end that was not in order, go to stderr."""
    wrong = isinstance(event, Failed) or (isinstance(event, Interrupted) and not event.saved)
    print(line, file=sys.stderr if wrong else sys.stdout, flush=True)


if TYPE_CHECKING:
    _reporter: Reporter = PlainLines()
