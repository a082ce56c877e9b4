"""Sessions of the main example: to end one in some way and look at what it left. A run may have several in one directory."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

from pbt_agents.scheduling.lineage import Lineage
from pbt_agents.testing.job import Job, command_of

Rows = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Session:
    """One that has ended."""

    out: Path
    output: str
    seconds: float
    """From the signal until the driver had ended and nobody was left."""
    rows: Rows
    """Of every member's log of updates, those of all sessions until then."""
    before: dict[str, int]
    """How many of them were there when the session began."""
    saved: Rows
    """Of every member, what its checkpoints hold, the latest last."""
    decided: Rows
    """Of every member, the values that it was given, in order."""
    facts: SimpleNamespace

    def new_rows(self, member: str) -> list[dict[str, Any]]:
        return self.rows[member][self.before[member] :]


class RunningSession:
    """Of the members `agent0` to `agent{size - 1}`. `facts` is for whoever ends it to keep what was seen meanwhile."""

    def __init__(self, command: list[Any], out: Path, size: int, environment: dict[str, str]) -> None:
        self.out, self.members = out, [f"agent{number}" for number in range(size)]
        self.before = {name: len(rows_of(out, name)) for name in self.members}
        self.facts = SimpleNamespace()
        self.job = Job(command, out.with_name(f"log{time.time_ns()}"), environment)

    def __enter__(self) -> "RunningSession":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.job.__exit__(kind, error, trace)

    def wait_for_updates(self, count: int) -> None:
        """Of every member."""
        enough = {name: already + count for name, already in self.before.items()}
        self.job.wait_for(lambda: all(len(rows_of(self.out, name)) >= enough[name] for name in self.members), "updates of every member")

    def engines(self) -> list[int]:
        """Process ids."""
        return [process.pid for process in self.job.processes() if "_EngineActor" in command_of(process)]

    def end(self, how: Callable[[], Any], code: int, within_s: float = 10) -> Session:
        """See it end by `how` with this exit code in time, and nobody left ten seconds later."""
        began = time.monotonic()
        how()
        assert self.job.wait(within_s) == code, self.job.output
        self.job.wait_for_nobody(10)
        seconds = time.monotonic() - began
        rows, saved = ({name: read(self.out, name) for name in self.members} for read in (rows_of, saved_by))
        return Session(self.out, self.job.output, seconds, rows, self.before, saved, self._decided(), self.facts)

    def _decided(self) -> Rows:
        if not journal_of(self.out).exists():
            return {}
        lineage = Lineage(journal_of(self.out))
        values = {self.member(trial): [dict(first)] for trial, first in lineage.members.items()}
        for event in lineage.clones.values():
            values[self.member(event.child)].append(dict(event.values))
        return values

    def member(self, trial_id: str) -> str:
        return self.members[int(trial_id.rpartition("_")[2])]


def rows_of(out: Path, member: str) -> list[dict[str, Any]]:
    """Of the log of updates, those that are whole."""
    file = out / "population" / member / "ring" / "updates.jsonl"
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []


def saved_by(out: Path, member: str) -> list[dict[str, Any]]:
    files = sorted((out / "population" / member).glob("*_[0-9]*/ring.json"), key=lambda file: file.stat().st_mtime_ns)
    return [{**json.loads(file.read_text()), **json.loads((file.parent / "trainer" / "trainer.json").read_text())} for file in files]


def journal_of(out: Path) -> Path:
    return out / "population" / "lineage.jsonl"
