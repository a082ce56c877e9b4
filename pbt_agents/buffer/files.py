"""What the buffer asks of a file system: links that outlive their source, and folders that appear whole or not at all."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)
"""Another device, a file system without links, or too many of them."""


def fsync(path: Path) -> None:
    """Of a file, or of a folder: the names in it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def link_or_copy(source: Path, target: Path) -> None:
    """A second name for a file that nobody writes to any more; a copy where the file system cannot link."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        aside = target.with_suffix(".partial")
        shutil.copyfile(source, aside)
        os.replace(aside, target)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which gets its real name once everything in it is on the disk. The name must be free or an empty folder."""
    aside = folder.with_name(folder.name + ".partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        for path in (*aside.iterdir(), aside):
            fsync(path)
        os.rename(aside, folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    fsync(folder.parent)
