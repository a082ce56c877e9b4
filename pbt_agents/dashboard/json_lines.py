"""One JSON object per line on stdout for every piece of news, and nothing else there: what other code prints goes to stderr.

Each object has `event`, the kind of news, and `time_s`, Unix time. The other keys are the fields of its class in events.py:

- `note`, `plan`, `estimate`
- `stage_started`, `stage_ended`, and in between `progress`, at most one in ten seconds
- `member_result`, `member_remark`, `member_failure`, `clone`
- last of all `report`, `interrupted` or `error`

Numbers that are not finite are null.
"""

import json
import math
import os
import sys
import threading
import time
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

from pbt_agents.dashboard.events import Event, Progress, StageStarted
from pbt_agents.json_files import plain

if TYPE_CHECKING:
    from pbt_agents.dashboard.reporter import Reporter

_PROGRESS_S = 10.0


class JsonLines:
    """Takes stdout, its file descriptor too, for the time that it is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._progress = -math.inf

    def __enter__(self) -> Self:
        sys.stdout.flush()
        self._stdout = os.dup(1)
        self._stream: TextIO = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        sys.stdout.flush()
        os.dup2(self._stdout, 1)
        os.close(self._stdout)
        self._stream.close()

    def tell(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Progress):
                if time.monotonic() - self._progress < _PROGRESS_S:
                    return
                self._progress = time.monotonic()
            elif isinstance(event, StageStarted):
                self._progress = -math.inf
            print(json_line(event), file=self._stream, flush=True)


def json_line(event: Event) -> str:
    fields = asdict(event)  # type: ignore[call-overload]  # every event is a dataclass
    content = {"event": event.kind, "time_s": round(time.time(), 3), **fields}
    return json.dumps(plain(content, not_finite=lambda number: None), allow_nan=False)


if TYPE_CHECKING:
    _reporter: Reporter = JsonLines()
