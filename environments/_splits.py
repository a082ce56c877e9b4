"""Which tasks are trained on and which are kept back. A task belongs to a split by its name, never by its seed."""

import zlib
from typing import get_args

from pbt_agents.errors import unknown_name
from pbt_agents.types import Split


def split_of(name: str) -> Split:
    """8 in 10 tasks are for training, and one each for validation and test; the same on every machine, for ever."""
    tenth = zlib.crc32(name.encode()) % 10
    return "validation" if tenth == 8 else "test" if tenth == 9 else "train"


def check_split(split: str) -> None:
    if split not in get_args(Split):
        raise unknown_name("split", split, get_args(Split))
