"""What a run used: wall clock, CPU seconds and resident memory of this process and all that it started."""

import os
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from pbt_agents.json_files import as_written, read_json, write_json


@dataclass(frozen=True)
class Usage:
    """Totals of a run, over all its sessions."""

    seconds: float = 0.0
    """Wall clock while it was metered."""
    cpu_s: float = 0.0
    peak_pss_bytes: int = 0
    """Largest sum of proportional set sizes seen; shared pages count once."""


class ResourceMeter:
    """Samples the process tree from a thread of its own until `close`. A process that ended keeps its last figure.

    The totals are kept in `file` at every sample, and go on from what it holds: a run that is killed and resumed is one run.
    """

    def __init__(self, file: Path, period_s: float = 2.0, memory_every: int = 5) -> None:
        self._file, self._period_s, self._memory_every = file, period_s, memory_every
        with as_written(file):
            self._former = Usage(**read_json(file)) if file.exists() else Usage()
        self._peak_pss = self._former.peak_pss_bytes
        self._root = psutil.Process()
        self._lock = threading.Lock()
        self._cpu_s: dict[psutil.Process, float] = {}
        self._started = time.monotonic()
        self._cpu_s_before = self._read_cpu()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="resources", daemon=True)
        self._thread.start()

    @property
    def seconds(self) -> float:
        return self._former.seconds + time.monotonic() - self._started

    def usage(self) -> Usage:
        return Usage(self.seconds, self._former.cpu_s + self._read_cpu() - self._cpu_s_before, self._peak_pss)

    def close(self) -> Usage:
        self._closed.set()
        self._thread.join()
        return self._sample(with_memory=True)

    def _watch(self) -> None:
        samples = 0
        while not self._closed.wait(self._period_s):
            self._sample(with_memory=samples % self._memory_every == 0)
            samples += 1

    def _sample(self, with_memory: bool) -> Usage:
        if with_memory:
            self._peak_pss = max(self._peak_pss, self._read_pss())
        usage = self.usage()
        write_json(self._file, asdict(usage))
        return usage

    def _read_cpu(self) -> float:
        """Of all processes seen so far, since they began."""
        with self._lock:
            for process in self._processes():
                try:
                    times = process.cpu_times()
                    self._cpu_s[process] = times.user + times.system
                except psutil.Error:
                    continue
            return sum(self._cpu_s.values())

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


def available_memory() -> int:
    """Bytes that new processes may take before something is killed: what the machine has, or what the cgroup of this process leaves."""
    return min([psutil.virtual_memory().available, *map(_left_in, _memory_cgroups())])


def gpu_memory() -> list[int]:
    """Bytes of each GPU that this process may use, in the driver's order; empty where there is none."""
    try:
        asked = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        listed = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return []
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    sizes = [int(mebibytes) << 20 for mebibytes in listed]
    return sizes if visible is None else sizes[: len([gpu for gpu in visible.split(",") if gpu.strip()])]


def _memory_cgroups(root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """Folders of this process's memory cgroups, version 1 or 2, and those around them: each has a limit of its own."""
    try:
        lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    except OSError:
        return []
    paths = [root / "memory" / path.lstrip("/") for _, kinds, path in lines if "memory" in kinds.split(",")]
    paths += [root / path.lstrip("/") for number, kinds, path in lines if (number, kinds) == ("0", "")]
    return [folder for path in paths for folder in (path, *path.parents) if folder.is_relative_to(root)]


def _left_in(cgroup: Path) -> int:
    """Limit less what is used and cannot be given back; no limit where the folder names none."""
    for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        try:
            stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
            given_back = int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))
            return max(int((cgroup / limit).read_text()) - int((cgroup / used).read_text()) + given_back, 0)
        except (OSError, ValueError):  # another version, or "max"
            continue
    return 1 << 62


def disk_bytes(folder: Path) -> int:
    """That the files below a folder take; one with several names counts once. Files may come and go meanwhile."""
    blocks: dict[tuple[int, int], int] = {}
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                found = os.lstat(os.path.join(root, name))
                blocks[found.st_dev, found.st_ino] = found.st_blocks
    return 512 * sum(blocks.values())
