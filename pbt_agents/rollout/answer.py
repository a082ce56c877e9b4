"""A value that one thread promises to a coroutine of another."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Generator, Iterable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class Answer(Generic[Value]):
    """Made in a coroutine and awaited there; resolved, or failed, from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Value] = self._loop.create_future()

    def __await__(self) -> Generator[Any, None, Value]:
        return self._future.__await__()

    def resolve(self, value: Value) -> None:
        deliver([(self, value)])

    def fail(self, error: BaseException) -> None:
        deliver([(self, error)])

    def _settle(self, outcome: Value | BaseException) -> None:
        if self._future.done():  # cancelled meanwhile
            return
        if isinstance(outcome, BaseException):
            self._future.set_exception(outcome)
        else:
            self._future.set_result(outcome)


def deliver(outcomes: Iterable[tuple[Answer[Any], Any]]) -> None:
    """Settle many answers (an exception fails one), waking each event loop once: a wake-up per answer costs the step thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Answer[Any], Any]]] = defaultdict(list)
    for answer, outcome in outcomes:
        by_loop[answer._loop].append((answer, outcome))
    for loop, settled in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(_settle_all, settled)


def _settle_all(outcomes: list[tuple[Answer[Any], Any]]) -> None:
    for answer, outcome in outcomes:
        answer._settle(outcome)
