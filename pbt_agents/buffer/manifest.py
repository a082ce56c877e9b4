"""What a snapshot says about itself: plain values, kept by the caller in its checkpoint, beside the folder of segments."""

from typing import TypedDict

from pbt_agents.buffer.segment import Location
from pbt_agents.buffer.window import Entry


class GroupRecord(TypedDict):
    group_id: str
    segment: str
    offset: int
    length: int
    version: int
    uses: int


class Manifest(TypedDict):
    version: int
    """Of the policy."""
    segments: list[str]
    """All that there were; a group in one of them that is not listed below is dead."""
    groups: list[GroupRecord]
    """Those that may still be trained on, in order of arrival."""


def to_record(entry: Entry) -> GroupRecord:
    segment, offset, length = entry.location
    return GroupRecord(group_id=entry.group_id, segment=segment, offset=offset, length=length, version=entry.version, uses=entry.uses)


def from_record(record: GroupRecord) -> Entry:
    location = Location(record["segment"], record["offset"], record["length"])
    return Entry(record["group_id"], location, record["version"], record["uses"])
