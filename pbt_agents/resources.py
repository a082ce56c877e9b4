"""What a run used: CPU seconds and resident memory of this process and all that it started."""

import os
import threading
from dataclasses import dataclass

import psutil


@dataclass(frozen=True)
class Usage:
    """Totals since the meter was made."""

    cpu_s: float
    peak_pss_bytes: int
    """Largest sum of proportional set sizes seen; shared pages count once."""


class ResourceMeter:
    """Samples the process tree from a thread of its own until `close`. A process that ended keeps its last figure."""

    def __init__(self, period_s: float = 2.0, memory_every: int = 5) -> None:
        self._root = psutil.Process()
        self._cpu: dict[int, float] = {}
        self._first: dict[int, float] = {}
        self._peak_pss = 0
        self._period_s, self._memory_every = period_s, memory_every
        self._closed = threading.Event()
        self._first = self._read_cpu()
        self._thread = threading.Thread(target=self._watch, name="resources", daemon=True)
        self._thread.start()

    def usage(self) -> Usage:
        self._cpu.update(self._read_cpu())
        return Usage(sum(self._cpu.values()) - sum(self._first.values()), self._peak_pss)

    def close(self) -> Usage:
        self._closed.set()
        self._thread.join()
        self._peak_pss = max(self._peak_pss, self._read_pss())
        return self.usage()

    def _watch(self) -> None:
        samples = 0
        while not self._closed.wait(self._period_s):
            self._cpu.update(self._read_cpu())
            if samples % self._memory_every == 0:
                self._peak_pss = max(self._peak_pss, self._read_pss())
            samples += 1

    def _read_cpu(self) -> dict[int, float]:
        seconds = {}
        for process in self._processes():
            try:
                times = process.cpu_times()
                seconds[process.pid] = times.user + times.system
            except psutil.Error:
                continue
        return seconds

    def _read_pss(self) -> int:
        total = 0
        for process in self._processes():
            try:
                total += process.memory_full_info().pss
            except psutil.Error:
                continue
        return total

    def _processes(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))
