"""A table that stays in place on a terminal, a line per member, while all other news scrolls by above it."""

import math
import os
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pbt_agents.dashboard.captured import Captured
from pbt_agents.dashboard.events import LAST, Cloned, Event, MemberResult, Progress, StageEnded, StageStarted
from pbt_agents.dashboard.plain_lines import PlainLines, write_line
from pbt_agents.dashboard.words import amount_of_time

if TYPE_CHECKING:
    from pbt_agents.dashboard.reporter import Reporter

_COLUMNS = ("member", "gen", "update", "score", "rate", "cap", "window", "lag", "tok/s", "parent")
_PLAIN = "ray"
"""Stage without anything live: a signal while Ray starts ends this process at once, and nobody would bring the cursor back."""
_NARROWEST = 60
"""Columns. A table of fewer would be cut to what nobody can read."""
_OTHER_LINES = 6
"""Of the terminal, that are not for members."""


def can_be_live(stream: TextIO) -> bool:
    """Where lines can be rewritten, and are long enough for a member."""
    is_terminal = stream.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    return is_terminal and os.get_terminal_size(stream.fileno()).columns >= _NARROWEST


class LiveTable:
    """The live part is there from the engines' start to the last word; before and after it there are plain lines."""

    def __init__(self) -> None:
        self._lines = PlainLines(self._write)
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._members: dict[str, MemberResult] = {}
        self._progress: Progress | None = None
        self._told = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end_live()

    def tell(self, event: Event) -> None:
        if isinstance(event, LAST):
            self._end_live()
        with self._lock:
            match event:
                case StageStarted() if event.stage != _PLAIN:
                    self._start_live()
                    self._progress, self._told = Progress(event.stage, 0.0, eta_s=event.usual_s), time.monotonic()
                    if event.stage == "training":
                        self._members.clear()
                case StageEnded():
                    self._progress = None
                case Progress():
                    self._progress, self._told = event, time.monotonic()
                case MemberResult():
                    self._members[event.member] = event
                case Cloned() if event.member in self._members:
                    self._members[event.member] = as_cloned(self._members[event.member], event)
            if self._live is None or not isinstance(event, Progress | MemberResult):
                self._lines.tell(event)

    def _write(self, event: Event, line: str) -> None:
        if self._live is None:
            write_line(event, line)
        else:
            self._above(line)

    def _above(self, line: str) -> None:
        self._screen.print(Text.from_ansi(line), soft_wrap=True)

    def _start_live(self) -> None:
        if self._live is None:
            sys.stdout.flush()
            self._screen = _Screen(file=os.fdopen(os.dup(1), "w"), force_terminal=True)
            self._captured = Captured(self._above)
            self._live = Live(
                get_renderable=self._render, console=self._screen, refresh_per_second=1, redirect_stdout=False, redirect_stderr=False
            )
            self._live.start()

    def _end_live(self) -> None:
        """The table as it was last stays on the screen. What was captured comes before it, so the lock is not held meanwhile."""
        if self._live is None:
            return
        self._captured.close()
        with self._lock:
            self._live.stop()
            self._live = None
            self._screen.file.close()

    def _render(self) -> RenderableType:
        """Without the lock: whoever tells holds it, and waits until this is done."""
        members, progress, age = dict(self._members), self._progress, time.monotonic() - self._told
        table = [members_table(members.values(), progress.updates if progress else {}, self._screen.height - _OTHER_LINES)]
        return Group(*(table if members else []), *(progress_lines(progress, age) if progress else []))


class _Screen(Console):
    """Knows the size of the terminal that it writes to; the standard descriptors may be something else meanwhile."""

    @property  # type: ignore[misc]  # rich lets it be set as well
    def size(self) -> ConsoleDimensions:
        return ConsoleDimensions(*os.get_terminal_size(self.file.fileno()))


def members_table(results: Iterable[MemberResult], updates: Mapping[str, int], room: int) -> RenderableType:
    """A line for each, or for the best that there is room for. `updates` are newer than those of the last result."""
    results = sorted(results, key=lambda result: result.member)
    shown = results if len(results) <= room else sorted(results, key=_by_score)[: max(room, 1)]
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="bold")
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in ("member", "parent") else "right", no_wrap=True)
    for result in shown:
        table.add_row(*cells(result, updates.get(result.member, 0)))
    hidden = [Text(f"and {len(results) - len(shown)} more, with lower scores", style="dim")] if len(shown) < len(results) else []
    return Group(table, *hidden)


def as_cloned(result: MemberResult, clone: Cloned) -> MemberResult:
    """A member between its clone and its next result: the score is the parent's, the values are those that it trains with now."""
    now: dict[str, Any] = {name: value for name, value in clone.values.items() if name in ("learning_rate", "ratio_max", "window")}
    now |= {"score": clone.parent_score, "score_se": math.nan, "lag": math.nan, "parent": clone.parent}
    return replace(result, generation=result.generation + 1, **now)


def cells(result: MemberResult, updates: int) -> list[str]:
    return [
        result.member,
        f"{result.generation}",
        f"{max(updates, result.updates)}",
        f"{result.score:.3f}" if math.isnan(result.score_se) else f"{result.score:.3f} ±{result.score_se:.3f}",
        f"{result.learning_rate:.1e}",
        "-" if result.ratio_max is None else f"{result.ratio_max:.1f}",
        f"{result.window}",
        "-" if math.isnan(result.lag) else f"{result.lag:.1f}",
        f"{result.tokens_per_s:.0f}",
        result.parent or "",
    ]


def _by_score(result: MemberResult) -> float:
    """The best first, those without a score last."""
    return math.inf if math.isnan(result.score) else -result.score


def progress_lines(progress: Progress, age_s: float) -> list[RenderableType]:
    """A bar where there is a count, the figures, and what is awaited. `age_s`: since the progress was told."""
    line = Table.grid(padding=(0, 1))
    parts: list[RenderableType] = [Text(progress.stage, style="bold")]
    if progress.total:
        parts += [ProgressBar(progress.total, progress.done or 0, width=16), Text(f"{progress.done}/{progress.total} {progress.unit}")]
    parts.append(Text(f"{amount_of_time(progress.seconds + age_s)} elapsed"))
    if progress.cpu_s is not None:
        parts.append(Text(f"{progress.cpu_s:.0f} CPU s"))
    left = "time left not known yet" if progress.eta_s is None else f"{amount_of_time(max(progress.eta_s - age_s, 0.0))} left"
    parts.append(Text(left))
    line.add_row(*parts)
    return [line, *([Text(progress.waiting, style="yellow", no_wrap=True, overflow="ellipsis")] if progress.waiting else [])]


if TYPE_CHECKING:
    _reporter: Reporter = LiveTable()
