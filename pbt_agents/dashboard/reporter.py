"""Who shows the news of a run: a live table, plain lines, JSON lines, or the end alone.

A reporter is open for the time of a `with` block. It is told from several threads.
"""

import sys
from types import TracebackType
from typing import Protocol, Self

from pbt_agents.checks import require
from pbt_agents.dashboard.events import Event


class Reporter(Protocol):
    """`tell` returns at once; what it shows of the news is its own choice."""

    def tell(self, event: Event) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...


def reporter_for(quiet: bool = False, json: bool = False) -> Reporter:
    """The one asked for; else a live table on a terminal and plain lines elsewhere. Raises ConfigError when asked for two."""
    require(not (quiet and json), "--quiet and --json ask for different outputs. Leave one of them out.")
    if json:
        from pbt_agents.dashboard.json_lines import JsonLines

        return JsonLines()
    if quiet:
        from pbt_agents.dashboard.only_the_end import OnlyTheEnd

        return OnlyTheEnd()
    from pbt_agents.dashboard.live_table import LiveTable, can_be_live
    from pbt_agents.dashboard.plain_lines import PlainLines

    return LiveTable() if can_be_live(sys.stdout) else PlainLines()
