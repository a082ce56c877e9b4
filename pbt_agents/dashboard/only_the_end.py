"""The last word alone, and what failed for good."""

import logging
import sys
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pbt_agents.dashboard.events import LAST, Event, MemberFailure
from pbt_agents.dashboard.plain_lines import write_line

if TYPE_CHECKING:
    from pbt_agents.dashboard.reporter import Reporter


class OnlyTheEnd:
    """Warnings of whatever code are kept back while it is open, too."""

    def tell(self, event: Event) -> None:
        if isinstance(event, LAST):
            write_line(event, event.text().lstrip("\n"))
        elif isinstance(event, MemberFailure) and event.final:
            print(event.text(), file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        self._warnings = warnings.catch_warnings(action="ignore")
        self._warnings.__enter__()
        self._disabled = logging.root.manager.disable
        logging.disable(logging.WARNING)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        logging.disable(self._disabled)
        self._warnings.__exit__(kind, error, trace)


if TYPE_CHECKING:
    _reporter: Reporter = OnlyTheEnd()
