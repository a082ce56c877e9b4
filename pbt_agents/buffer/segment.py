"""One file of the log: an Arrow IPC stream that is appended to, then sealed, then only read, linked and deleted.

The stream format needs no footer, so every complete batch of a file whose writer died is readable, with any Arrow reader.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from pbt_agents.buffer.schema import SCHEMA, check_schema

SUFFIX = ".arrow"


class Location(NamedTuple):
    """Where a group lies."""

    segment: str
    """File name; it never means two different files, also after a clone."""
    offset: int
    length: int
    """Bytes."""


@dataclass
class Segment:
    path: Path
    size: int = 0
    """Bytes of the header and the complete groups; what a crash left beyond them is the torn tail."""
    locations: list[Location] = field(default_factory=list)
    _descriptor: int | None = None

    @classmethod
    def create(cls, path: Path) -> "Segment":
        """A new file, open for appending."""
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        segment = cls(path, _descriptor=descriptor)
        try:
            segment._write(SCHEMA.serialize())
        except BaseException:
            segment.seal()
            path.unlink()
            raise
        return segment

    @classmethod
    def load(cls, path: Path) -> "Segment":
        """An existing file, to read only. Raises ConfigError when another version of the schema wrote it."""
        segment = cls(path)
        with pa.memory_map(str(path)) as source:
            try:
                schema = pa.ipc.read_schema(source)
            except (OSError, EOFError, pa.ArrowInvalid):
                return segment  # the writer died within the header
            check_schema(schema, str(path))
            segment.size = source.tell()
            while _skip_batch(source):
                segment.locations.append(Location(path.name, segment.size, source.tell() - segment.size))
                segment.size = source.tell()
        return segment

    @property
    def torn(self) -> bool:
        return self.path.stat().st_size > self.size

    def cut(self) -> None:
        """Removes the torn tail."""
        os.truncate(self.path, self.size)

    def append(self, message: pa.Buffer) -> Location:
        """A serialised batch. On return it survives the death of this process."""
        location = Location(self.path.name, self.size, message.size)
        self._write(message)
        self.locations.append(location)
        return location

    def read(self, location: Location) -> pa.RecordBatch:
        """A view into the mapped file: it costs no copy, and stays good when the file is deleted."""
        with pa.memory_map(str(self.path)) as source:
            source.seek(location.offset)
            return pa.ipc.read_record_batch(source.read_buffer(location.length), SCHEMA)

    def sync(self) -> None:
        if self._descriptor is not None:
            os.fsync(self._descriptor)

    def seal(self) -> None:
        """After this nothing is ever written to the file, so that it can be hard-linked."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, message: pa.Buffer) -> None:
        assert self._descriptor is not None, f"{self.path} is sealed"
        rest = memoryview(message)
        try:
            while len(rest):
                rest = rest[os.write(self._descriptor, rest) :]
        except BaseException:
            # A full disk or an interrupt. Half a group must not stay: readers would stop at it and miss all that follow.
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += message.size


def _skip_batch(source: pa.NativeFile) -> bool:
    """Moves past one complete record batch; False where there is none."""
    try:
        pa.ipc.read_message(source)
    except (OSError, EOFError, pa.ArrowInvalid):
        return False
    return True
