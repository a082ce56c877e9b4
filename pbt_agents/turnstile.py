"""Lets a few of many processes through at a time.

On a machine with few cores, trainers that compute at the same moment take the engine's core too, and everything slows down.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Turnstile:
    """At most `places` holders at once among all processes that use the same folder. A holder that dies lets go.

    `number` says which place this process waits for when all are taken.
    """

    def __init__(self, folder: Path, places: int, number: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        own = number % places
        order = [own, *(place for place in range(places) if place != own)]
        self._files = [os.open(folder / f"place{place}.lock", os.O_CREAT | os.O_RDWR, 0o600) for place in order]

    @contextmanager
    def hold(self) -> Iterator[None]:
        file = self._enter()
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def close(self) -> None:
        for file in self._files:
            os.close(file)

    def _enter(self) -> int:
        for file in self._files:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
            except BlockingIOError:
                continue
        fcntl.flock(self._files[0], fcntl.LOCK_EX)
        return self._files[0]
