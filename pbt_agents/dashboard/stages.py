"""Parts of a run that have no events of their own: said when they begin and end, and every two seconds in between.

Owns also what each took, kept in the run's directory for the next start to go by.
"""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from pbt_agents.dashboard.events import Progress, StageEnded, StageStarted
from pbt_agents.dashboard.reporter import Reporter
from pbt_agents.json_files import write_json

STARTS = "engine_start.json"
_PERIOD_S = 2.0


class Stage:
    """`done` counts up to `total`; without a count, what it took last time says how long it may take."""

    def __init__(
        self,
        reporter: Reporter,
        name: str,
        doing: str,
        usual_s: float | None = None,
        done: Callable[[], int] | None = None,
        total: int | None = None,
        unit: str = "",
    ) -> None:
        self._reporter, self._name, self._doing, self._usual_s = reporter, name, doing, usual_s
        self._done, self._total, self._unit = done, total, unit
        self.result = f"{name}: done"
        """What the end is told with."""

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._reporter.tell(StageStarted(self._name, self._doing, self._usual_s))
        self._over = threading.Event()
        self._ticks = threading.Thread(target=self._tick, name=f"stage-{self._name}", daemon=True)
        self._ticks.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._ticks.join()
        if kind is None:
            self._reporter.tell(StageEnded(self._name, self.result, self.seconds))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def _tick(self) -> None:
        while not self._over.wait(_PERIOD_S):
            seconds, done = self.seconds, self._done() if self._done else None
            eta = counted_eta(seconds, done, self._total) if self._total else usual_eta(seconds, self._usual_s)
            self._reporter.tell(Progress(self._name, seconds, done, self._total, self._unit, eta))


def counted_eta(seconds: float, done: int | None, total: int) -> float | None:
    return seconds / done * (total - done) if done else None


def usual_eta(seconds: float, usual_s: float | None) -> float | None:
    """None, too, when it takes longer than usual."""
    return usual_s - seconds if usual_s is not None and seconds < usual_s else None


def write_start(out: Path, model: str, seconds: float) -> None:
    """How long the engines of this run took to start."""
    write_json(out / STARTS, {"model": model, "seconds": seconds})


def usual_start_s(out: Path, model: str) -> float | None:
    """What engines with this model took at the last start that was noted, in this run's directory or one beside it."""
    noted = sorted(out.parent.glob(f"*/{STARTS}"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
    return next((seconds for file in noted if (seconds := _start_s(file, model)) is not None), None)


def _start_s(file: Path, model: str) -> float | None:
    """None for another model, and for a file that somebody else's run has left damaged."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        start = json.loads(file.read_text())
        return float(start["seconds"]) if start["model"] == model else None
    return None
