"""What each reporter shows of the same news."""

import io
import json
import logging
import math
import os
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, fields

import pytest

from pbt_agents.dashboard import events, plain_lines, thinning
from pbt_agents.dashboard.events import (
    Arm,
    Cloned,
    Estimate,
    Failed,
    Interrupted,
    MemberFailure,
    MemberRemark,
    MemberResult,
    Note,
    Plan,
    Progress,
    Report,
    StageEnded,
    StageStarted,
)
from pbt_agents.dashboard.json_lines import JsonLines, json_line
from pbt_agents.dashboard.only_the_end import OnlyTheEnd
from pbt_agents.dashboard.plain_lines import PlainLines
from pbt_agents.dashboard.reporter import reporter_for
from pbt_agents.errors import ConfigError


@dataclass(frozen=True)
class Scores:
    episodes: int = 256
    sampled: float = 0.5
    greedy: float = math.nan

    def __str__(self):
        return f"sampled {self.sampled:.3f}, greedy {self.greedy:.3f}"


RESULT = MemberResult("agent1", 2, 20, 0.4125, 0.03, 1.5e-3, 5.0, 8, 2.34, 512.4, "agent3")
CLONE = Cloned("agent1", "agent3", 0.1, 0.5, {"learning_rate": 1e-3, "window": 8}, {"learning_rate": 1.23456e-3, "window": 8}, 0.09)
REPORT = Report(
    "runs/a",
    3,
    100.0,
    200.0,
    4.0,
    12.0,
    1.5e6,
    5 << 20,
    3 << 30,
    [7],
    [7],
    Scores(),
    {"population": Arm(Scores(), "agent0", {"agent0": 0.5})},
)
NEWS = [
    Note("torch 2"),
    Plan(4, 100, None, 300.0, 0.55),
    StageStarted("training", "training 4 members"),
    RESULT,
    MemberRemark("agent1", "40 groups alike", False),
    MemberFailure("agent2", "KeyError", False),
    MemberFailure("agent2", "gone", True),
    CLONE,
    Progress("training", 95.0, 120, 400, "updates", 180.0, 210.0, {"agent1": 25}, "agent0 trains (40 s)"),
    Estimate(3600.0, 2.0, 4.0, 2e6, 1 << 30, 12.0, 3.0),
    StageEnded("training", "training has ended", 100.0),
    REPORT,
]


@pytest.fixture
def clock(monkeypatch):
    """Of stamps and thinning."""
    now = [1000.0]
    for module in (plain_lines, thinning):
        monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_the_news_as_plain_lines(clock, capsys):
    with PlainLines() as reporter:
        for event in NEWS:
            reporter.tell(event)
            clock[0] += 10
    said = capsys.readouterr()
    assert said.err == ""
    assert "\x1b" not in said.out
    assert said.out.splitlines() == [
        "torch 2",
        "budget: 4 members, 100 updates each or 300 CPU seconds in all or a score of 0.55",
        "training 4 members",
        "    10 s  agent1  update   20  score  0.412 ±0.030  rate 1.5e-03  cap  5.0  window  8  lag  2.3    512 tokens/s  gen 2  "
        "from agent3",
        "    20 s  agent1: 40 groups alike",
        "    30 s  agent2 failed and goes on from its last checkpoint: KeyError",
        "    40 s  agent2 failed for good: gone",
        "    50 s  agent1 (0.100) is now a clone of agent3 (0.500): learning_rate 0.001 -> 0.00123",
        "    60 s  training: 120 of 400 updates, 210 CPU s, about 3 min left, agent0 trains (40 s)",
        "    70 s  extrapolated: 60 min, 2.00 CPU h, 4.0 GPU h, 2.0 million tokens sampled, 1.0 GiB on disk, 12.00 at 3.00 an hour",
        "    80 s  training has ended",
        "",
        "3 clones in 100 s of training, 200 CPU s, 4.0 GPU h, cost 12.00, 5 MiB on disk, at most 3.0 GiB resident; "
        "engines [7] at the start, [7] at the end, sampled 1.5 million tokens",
        "256 test tasks, none seen in training; in brackets all members, scored anew on as many validation tasks",
        "  base model   sampled 0.500, greedy nan",
        "  population   sampled 0.500, greedy nan  (agent0 of 0.50)",
        "adapter (loads with peft and vLLM): runs/a/best",
        "lineage and schedule: runs/a/population/lineage.json, schedule.json beside it",
    ]


def test_a_member_without_a_score_or_a_cap_has_a_line():
    line = MemberResult("agent1", 0, 0, math.nan, math.nan, 1e-3, None, 8, math.nan, math.nan, None).text()
    assert "score    nan ±nan  rate 1.0e-03  cap    -  window  8" in line


def shown(clock, told):
    """The moments, of (seconds, waiting), at which progress is shown."""
    stream, start = io.StringIO(), clock[0]
    with redirect_stdout(stream):
        reporter = PlainLines()
        reporter.tell(StageStarted("training", "training"))
        for second, waiting in told:
            clock[0] = start + second
            reporter.tell(Progress("training", second, waiting=waiting))
    return [int(line.split()[0]) for line in stream.getvalue().splitlines()[1:]]


def test_progress_is_a_line_after_five_seconds_and_then_one_a_minute(clock):
    assert shown(clock, [(second, None) for second in range(0, 200, 2)]) == [6, 66, 126, 186]


def test_what_is_awaited_is_told_within_half_a_minute_of_its_beginning(clock):
    """B84: rollouts that are blocked from second 12 on are said to be by second 22; the line a minute came at second 6."""
    moments = shown(clock, [(second, "agent0 is waiting" if second >= 22 else None) for second in range(0, 130, 2)])
    assert moments == [6, 22, 82]
    assert shown(clock, [(second, "agent0 is waiting" if second >= 12 else None) for second in range(0, 40, 2)]) == [6, 18]


def test_errors_and_broken_off_runs_are_told_on_stderr(capsys):
    for reporter in (PlainLines(), OnlyTheEnd()):
        reporter.tell(Failed("the model is gone"))
        reporter.tell(Interrupted(False, "python x --resume y"))
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.splitlines() == [
            "error: the model is gone",
            "interrupted. From what each member saved last it goes on with: python x --resume y",
        ]
        reporter.tell(Interrupted(True, "python x --resume y"))
        assert capsys.readouterr().out == "interrupted and saved. Go on with: python x --resume y\n"


def test_quiet_is_quiet_but_for_the_report_and_what_failed_for_good(capsys, caplog):
    with OnlyTheEnd() as reporter:
        for event in NEWS:
            reporter.tell(event)
        logging.getLogger("anybody").warning("odd")
        logging.getLogger("anybody").error("broken")
    logging.getLogger("anybody").warning("afterwards")
    said = capsys.readouterr()
    assert said.out == REPORT.text().lstrip("\n") + "\n"
    assert said.err == "agent2 failed for good: gone\n"
    assert caplog.messages == ["broken", "afterwards"]


def strict(line):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_every_event_is_an_object_of_strict_json_with_the_documented_keys(capfd):
    with JsonLines() as reporter:
        for event in NEWS:
            reporter.tell(event)
        os.write(1, b"a print of other code\n")
        os.write(2, b"a warning\n")
    os.write(1, b"afterwards\n")
    said = capfd.readouterr()
    *lines, afterwards = said.out.splitlines()
    assert afterwards == "afterwards"
    assert said.err.splitlines() == ["a print of other code", "a warning"]
    for event, found in zip(NEWS, map(strict, lines), strict=True):
        assert list(found) == ["event", "time_s", *(field.name for field in fields(event))]
        assert found["event"] == event.kind
    report = strict(lines[-1])
    assert report["arms"]["population"] == {
        "scores": {"episodes": 256, "sampled": 0.5, "greedy": None},
        "best": "agent0",
        "validation": {"agent0": 0.5},
    }


def test_every_kind_of_event_is_named_where_json_is_documented():
    kinds = {kind.kind for kind in vars(events).values() if isinstance(kind, type) and isinstance(getattr(kind, "kind", None), str)}
    assert len(kinds) == 13
    documented = sys.modules[JsonLines.__module__].__doc__
    assert [kind for kind in kinds if f"`{kind}`" not in documented] == []


def test_numbers_that_are_not_finite_are_null():
    event = MemberResult("agent1", 0, 0, math.nan, math.inf, 1e-3, None, 8, -math.inf, 0.0, None)
    found = strict(json_line(event))
    assert (found["score"], found["score_se"], found["lag"], found["ratio_max"], found["tokens_per_s"]) == (None, None, None, None, 0.0)


def test_progress_is_an_object_at_most_every_ten_seconds(capfd, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("pbt_agents.dashboard.json_lines.time.monotonic", lambda: now[0])
    with JsonLines() as reporter:
        for second in range(0, 30, 2):
            now[0] = second
            reporter.tell(Progress("engines", second))
    assert [strict(line)["seconds"] for line in capfd.readouterr().out.splitlines()] == [0, 10, 20]


def test_one_output_is_asked_for_at_a_time():
    with pytest.raises(ConfigError, match="--quiet and --json ask for different outputs"):
        reporter_for(quiet=True, json=True)
    assert isinstance(reporter_for(json=True), JsonLines)
    assert isinstance(reporter_for(quiet=True), OnlyTheEnd)


def test_what_is_no_terminal_has_plain_lines(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert isinstance(reporter_for(), PlainLines)


def test_an_error_is_one_line_whatever_was_given():
    assert Failed("unknown variant 'a\n  b'. Known:\n c").text() == "error: unknown variant 'a b'. Known: c"
