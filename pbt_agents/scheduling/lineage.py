"""Where every member's weights and values come from, on disk before anything rests on it.

Owns the journal (one JSON record a line, synced) and what is read from it: the tree of clones and the schedule of one
member's line of descent. Deciding who is cloned is the scheduler's.
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pbt_agents.json_files import as_written, plain, read_json, restored, write_json

Values = Mapping[str, Any]


@dataclass(frozen=True)
class CloneEvent:
    """One member took over another's checkpoint with new values. Steps count along the line of descent, in the scheduler's unit."""

    number: int
    """Rises through the run, also when clones are undone."""
    time_s: float
    """Unix time of the decision."""
    parent: str
    child: str
    checkpoint: str
    """Path of the parent's checkpoint that was taken over."""
    parent_step: int
    """Of that checkpoint; the child goes on from there."""
    child_step: int
    """That the child had reached by itself, and lost."""
    values_before: Values
    """Of the child."""
    parent_values: Values
    values: Values
    """Of the child from now on."""
    score_before: float
    """Of the child, at the decision."""
    parent_score: float
    """Of the parent, at that checkpoint."""
    certainty: float | None = None
    """Probability that the parent was better, by the errors of both scores at equal training."""
    proposed: Values = field(default_factory=dict)
    """Those of the values that were explored otherwise, and brought into their ranges or the stability budget."""
    score_after: float | None = None
    """Of the child, at its first result as a clone."""
    latency_s: float | None = None
    """From the decision to the answer of the child that it has applied everything."""


@dataclass(frozen=True)
class Segment:
    """Part of a schedule: which values were trained with from this step on, and by whom."""

    step: int
    member: str
    values: Values


class Lineage:
    """Members and clones of one run. Opening it again reads the journal; a record torn by a crash is cut off."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self.members: dict[str, Values] = {}
        """First values, by member."""
        self.clones: dict[int, CloneEvent] = {}
        """By number."""
        self._latest: dict[str, list[int]] = {}
        """Numbers of each member's clones, by child."""
        self.next_number = 0
        journal.parent.mkdir(parents=True, exist_ok=True)
        if journal.exists():
            self._read()

    def add_member(self, member: str, values: Values) -> None:
        self._write({"kind": "member", "member": member, "values": values})

    def add_clone(self, event: CloneEvent) -> None:
        self._write({"kind": "clone", **asdict(event)})

    def applied(self, number: int, latency_s: float) -> None:
        self._write({"kind": "applied", "number": number, "latency_s": latency_s})

    def scored(self, member: str, score: float) -> None:
        """A result of this member: kept when it is the first one since it was cloned."""
        event = self.latest(member)
        if event and event.score_after is None:
            self._write({"kind": "scored", "number": event.number, "score_after": score})

    def undo_unless(self, member: str, values: Values) -> bool:
        """After a restore: take back the clones that the restored state of this member, known by its values, does not know of.

        False when none of its values, first ones included, are these.
        """
        while (event := self.latest(member)) and plain(event.values) != plain(values):
            self._write({"kind": "undone", "number": event.number})
        return event is not None or plain(self.members[member]) == plain(values)

    def latest(self, member: str) -> CloneEvent | None:
        """The clone that made this member what it is."""
        numbers = self._latest.get(member)
        return self.clones[numbers[-1]] if numbers else None

    def descent(self, member: str, before: int | None = None) -> list[CloneEvent]:
        """The clones on this member's line of descent, the latest first; those with numbers below `before`."""
        line, end = [], self.next_number if before is None else before
        while numbers := [number for number in self._latest.get(member, []) if number < end]:
            end = numbers[-1]
            line.append(self.clones[end])
            member = line[-1].parent
        return line

    def schedule(self, member: str) -> list[Segment]:
        """The values along this member's line of descent, from step 0."""
        line = self.descent(member)
        segments = [Segment(event.parent_step, event.child, event.values) for event in line]
        origin = line[-1].parent if line else member
        segments.append(Segment(0, origin, self.members[origin]))
        segments.reverse()
        following = [segment.step for segment in segments[1:]] + [math.inf]
        return [segment for segment, end in zip(segments, following, strict=True) if segment.step < end]

    def _read(self) -> None:
        records = self._journal.read_bytes()
        whole = records[: records.rfind(b"\n") + 1]
        if len(whole) < len(records):
            os.truncate(self._journal, len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            with as_written(self._journal, f"line {number}"):
                self._apply(restored(json.loads(line)))

    def _write(self, record: dict[str, Any]) -> None:
        with self._journal.open("ab") as file:
            file.write(json.dumps(plain(record), allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._apply(record)

    def _apply(self, record: dict[str, Any]) -> None:
        match record:
            case {"kind": "member", "member": member, "values": values}:
                self.members[member] = values
            case {"kind": "clone", **fields}:
                event = CloneEvent(**fields)
                self.clones[event.number] = event
                self._latest.setdefault(event.child, []).append(event.number)
                self.next_number = event.number + 1
            case {"kind": "undone", "number": number}:
                self._latest[self.clones.pop(number).child].remove(number)
            case {"kind": "applied" | "scored", "number": number, **fields}:
                self.clones[number] = replace(self.clones[number], **fields)


def open_lineage(journal: Path, member: str) -> Lineage:
    """The lineage that this member belongs to. A journal of another run in the same folder is set aside."""
    lineage = Lineage(journal)
    if not lineage.members or member in lineage.members:
        return lineage
    journal.replace(journal.with_suffix(f".{journal.stat().st_mtime_ns}.jsonl"))
    return Lineage(journal)


def write_lineage(lineage: Lineage, path: Path) -> None:
    """Every member with its first values, and every clone."""
    write_json(path, {"members": lineage.members, "clones": [asdict(event) for event in lineage.clones.values()]})


def write_schedule(lineage: Lineage, path: Path, winner: str, score: float, step_unit: str) -> None:
    """What a single run has to replay to repeat the winner's training."""
    segments = [asdict(segment) for segment in lineage.schedule(winner)]
    write_json(path, {"winner": winner, "score": score, "step_unit": step_unit, "segments": segments})


def read_schedule(path: Path) -> list[Segment]:
    """What `write_schedule` wrote, from step 0 on."""
    return [Segment(**segment) for segment in read_json(path)["segments"]]
