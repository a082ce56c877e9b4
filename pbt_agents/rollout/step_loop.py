"""The thread that owns an engine: it steps while there is work, and runs closures between two steps.

Whatever touches the engine is such a closure, so nothing needs a lock. Knows nothing of what a step does.
"""

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

Closure = Callable[[], None]
Refuse = Callable[[BaseException], None]


class _Closed(Exception):
    """Ends the thread on request."""


class StepLoop:
    """Calls `step()` for as long as `busy()`; sleeps otherwise. An exception in either, or in a closure, ends it."""

    def __init__(self, step: Closure, busy: Callable[[], bool], on_death: Refuse):
        self._step = step
        self._busy = busy
        self._on_death = on_death
        self._inbox: SimpleQueue[tuple[Closure, Refuse]] = SimpleQueue()
        self._death: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine-steps", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def call(self, closure: Closure, refuse: Refuse) -> None:
        """Run `closure` in the thread before its next step, or `refuse` with what ended the thread. From any thread."""
        self._inbox.put((closure, refuse))
        if self._death is not None:
            self._refuse_all(self._death)

    def close(self) -> None:
        """Run what is in the inbox, then end the thread; waits for it."""
        self.call(_close, _ignore)
        self._thread.join()

    def _run(self) -> None:
        refuse: Refuse = _ignore
        try:
            while True:
                while not self._busy() or not self._inbox.empty():
                    closure, refuse = self._inbox.get()
                    closure()
                refuse = _ignore
                self._step()
        except BaseException as error:  # the thread ends here: those who wait must hear of it, whatever it was
            # Set before refusing: a call that comes later refuses for itself, so that none is left in the inbox.
            self._death = error
            refuse(error)
            self._on_death(error)
            self._refuse_all(error)

    def _refuse_all(self, error: BaseException) -> None:
        while True:
            try:
                _, refuse = self._inbox.get_nowait()
            except Empty:
                return
            refuse(error)


def _close() -> None:
    raise _Closed("the engine was closed")


def _ignore(error: BaseException) -> None:
    """Nobody waits."""
