"""Which of the many progress events are shown where every one of them would be a line."""

import math
import time

from pbt_agents.dashboard.events import Progress

_AT_FIRST_S = 5.0
_NEW_WAIT_S = 12.0
_REGULAR_S = 60.0


class Thinning:
    """Shows the first progress after 5 s of a stage, then one a minute; and sooner when something has begun to take long."""

    def __init__(self) -> None:
        self._stage: str | None = None
        self._shown = -math.inf
        self._waited = False

    def shows(self, event: Progress) -> bool:
        now = time.monotonic()
        if event.stage != self._stage:  # `seconds` of a resumed run began long ago
            self._stage, self._shown, self._waited = event.stage, now + _AT_FIRST_S - _REGULAR_S, False
        newly = event.waiting is not None and not self._waited
        if now - self._shown < (_NEW_WAIT_S if newly else _REGULAR_S):
            return False
        self._shown, self._waited = now, event.waiting is not None
        return True
