"""What any code writes to stdout and stderr, handed over line by line: so that it can be shown above something live.

The file descriptors are taken, not the Python objects: loggers that were set up before, C++ code and child processes write there too.
"""

import os
import sys
import threading
from collections.abc import Callable

_LAST_LINE_S = 1.0
"""To wait for what was written until the end."""


class Captured:
    """Takes descriptors 1 and 2 from its making until `close`. `show(line)` is called from a thread of its own.

    A child that still has the pipe afterwards may go on writing: that ends up on stderr.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._show = show
        self._kept = os.dup(1), os.dup(2)
        reading, writing = os.pipe()
        for descriptor in (1, 2):
            os.dup2(writing, descriptor)
        self._writing = writing
        self._end = f"\0{os.urandom(8).hex()}"
        self._ended = threading.Event()
        threading.Thread(target=self._read, args=(reading,), name="captured-output", daemon=True).start()

    def close(self) -> None:
        """What was written until now has been shown when this returns."""
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(self._writing, f"\n{self._end}\n".encode())
        self._ended.wait(_LAST_LINE_S)
        for descriptor, kept in zip((1, 2), self._kept, strict=True):
            os.dup2(kept, descriptor)
            os.close(kept)
        os.close(self._writing)

    def _read(self, reading: int) -> None:
        with os.fdopen(reading, errors="replace") as lines:
            for line in lines:
                text = line.rstrip("\n")
                if text == self._end:
                    self._ended.set()
                elif self._ended.is_set():
                    print(text, file=sys.stderr, flush=True)
                elif text:
                    self._show(text)
