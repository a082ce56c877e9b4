"""Durable log of groups: a folder of Arrow segments with one writer.

Owns which segments exist, when a new one begins, and what a crash leaves readable. It does not know which groups are still wanted:
replay.py says so with `keep`, and then whole segments go.
"""

import fcntl
import secrets
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TextIO

import pyarrow as pa

from pbt_agents.buffer.files import fsync, link_or_copy
from pbt_agents.buffer.segment import SUFFIX, Location, Segment
from pbt_agents.errors import ConfigError


class SegmentLog:
    """Not thread-safe: its user holds a lock.

    A group that `append` returned from survives SIGKILL of this process. To survive a power cut as well, set `fsync_groups`: how many
    groups are appended between two fsyncs (0 is never; an fsync costs far more than an append).
    """

    torn_tails: int = 0
    """Segments that a crash had left with half a group, which was cut off when the log was opened."""

    def __init__(self, folder: Path, segment_groups: int = 64, capacity_bytes: int = 1 << 30, fsync_groups: int = 0) -> None:
        self.folder = folder
        self.capacity_bytes = capacity_bytes
        self._segment_groups = segment_groups
        # A segment goes as a whole, so it is kept small enough that making room never gives up more than an eighth.
        self._segment_bytes = capacity_bytes // 8
        self._fsync_groups = fsync_groups
        self._open: Segment | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._claim = _claim(folder)
        try:
            self._segments = self._recover()
        except BaseException:
            self._claim.close()
            raise
        # Random, so that a name means one file for ever, also in the folders of clones.
        self._token = secrets.token_hex(4)
        self._count = 1 + max((int(name.partition("-")[0]) for name in self._segments), default=-1)

    @property
    def names(self) -> list[str]:
        """The segments, oldest first."""
        return list(self._segments)

    @property
    def size_bytes(self) -> int:
        """On disk, groups that nobody wants any more included."""
        return sum(segment.size for segment in self._segments.values())

    def locations(self) -> list[Location]:
        """Every complete group on disk, in order of arrival."""
        return [location for segment in self._segments.values() for location in segment.locations]

    def append(self, batch: pa.RecordBatch) -> Location:
        message = batch.serialize()
        if message.size > self.capacity_bytes // 2:
            raise ConfigError(f"capacity_bytes is {self.capacity_bytes}, but one group takes {message.size}. Allow for several batches.")
        segment = self._open or self._create()
        location = segment.append(message)
        if self._fsync_groups and len(segment.locations) % self._fsync_groups == 0:
            segment.sync()
        if len(segment.locations) >= self._segment_groups or segment.size >= self._segment_bytes:
            self.seal()
        return location

    def read(self, location: Location) -> pa.RecordBatch:
        """Valid for as long as it is held, also after its segment has gone."""
        return self._segments[location.segment].read(location)

    def seal(self) -> None:
        """Closes the segment being written; the next append begins a new one."""
        if self._open is not None:
            if self._fsync_groups:
                self._open.sync()
            self._open.seal()
            self._open = None

    def keep(self, names: Collection[str]) -> None:
        """Deletes every sealed segment but these."""
        for name in self.names:
            if name not in names and self._segments[name] is not self._open:
                self._segments.pop(name).path.unlink()

    def link_to(self, folder: Path) -> None:
        """Gives the segments, all of which must be sealed, a second name in another folder."""
        assert self._open is None, "a segment that is still written to must not be linked"
        for segment in self._segments.values():
            link_or_copy(segment.path, folder / segment.path.name)

    def adopt(self, folder: Path, names: Iterable[str]) -> None:
        """Takes in segments of another folder, under their own names; those already here are the same files."""
        for name in names:
            if name not in self._segments:
                link_or_copy(folder / name, self.folder / name)
                self._segments[name] = Segment.load(self.folder / name)

    def close(self) -> None:
        """Lets another writer open the folder. What was read stays readable."""
        self.seal()
        self._claim.close()

    def _create(self) -> Segment:
        name = f"{self._count:06d}-{self._token}{SUFFIX}"
        self._count += 1
        self._open = self._segments[name] = Segment.create(self.folder / name)
        if self._fsync_groups:
            fsync(self.folder)
        return self._open

    def _recover(self) -> dict[str, Segment]:
        """What an earlier writer left, its torn tails cut off."""
        for path in self.folder.glob("*.partial"):
            path.unlink()
        # All are loaded before one is touched: a foreign schema refuses the folder as it is.
        segments = [Segment.load(path) for path in sorted(self.folder.glob(f"*{SUFFIX}"))]
        for segment in segments:
            if segment.torn:
                self.torn_tails += 1
                segment.cut()
            if not segment.locations:
                segment.path.unlink()
        return {segment.path.name: segment for segment in segments if segment.locations}


def _claim(folder: Path) -> TextIO:
    """A lock on the folder, which goes with the process that holds it."""
    claim = (folder / ".lock").open("w")
    try:
        fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        claim.close()
        raise ConfigError(f"the buffer in {folder} has a writer already. Close that one first, or choose another folder.") from error
    return claim
