"""The table as it looks, and a terminal before and after it."""

import io
import math
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pytest
from rich.console import Console

from pbt_agents.dashboard.events import Cloned, MemberResult, Progress
from pbt_agents.dashboard.live_table import as_cloned, can_be_live, members_table, progress_lines

SCRIPT = Path(__file__).with_name("live_script.py")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def result(number, score=0.4125, **values):
    fields = {"generation": 2, "updates": 20, "score_se": 0.03, "learning_rate": 1.5e-3, "ratio_max": 5.0, "window": 8}
    return MemberResult(
        **{"member": f"agent{number}", "score": score, "lag": 2.34, "tokens_per_s": 512.4, "parent": None, **fields, **values}
    )


def seen(*renderables, width=80):
    """As lines of a screen that is so wide."""
    console = Console(record=True, width=width, file=io.StringIO())
    for renderable in renderables:
        console.print(renderable)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_line_for_each_member_has_the_figures_under_their_names():
    lines = seen(members_table([result(1, parent="agent0"), result(0, ratio_max=None)], {"agent1": 27}, room=10))
    assert lines[0].split() == ["member", "gen", "update", "score", "rate", "cap", "window", "lag", "tok/s", "parent"]
    assert lines[1].split() == ["agent0", "2", "20", "0.412", "±0.030", "1.5e-03", "-", "8", "2.3", "512"]
    assert lines[2].split() == ["agent1", "2", "27", "0.412", "±0.030", "1.5e-03", "5.0", "8", "2.3", "512", "agent0"]
    assert len(lines) == 3


def test_a_clone_has_its_new_values_and_its_parents_score_until_its_next_result():
    before = result(1)
    clone = Cloned("agent1", "agent3", 0.1, 0.5, {"learning_rate": 1e-3}, {"learning_rate": 2e-3, "window": 16, "temperature": 0.7}, 0.09)
    row = as_cloned(before, clone)
    assert (row.generation, row.parent, row.learning_rate, row.window) == (before.generation + 1, "agent3", 2e-3, 16)
    assert (row.ratio_max, row.updates) == (before.ratio_max, before.updates)
    assert row.score == 0.5
    assert math.isnan(row.score_se)
    assert math.isnan(row.lag)


def test_eighty_columns_are_enough():
    widest = result(
        15, score=-0.4125, generation=12, updates=1000, ratio_max=12.5, window=16, lag=12.3, tokens_per_s=12345.6, parent="agent12"
    )
    lines = seen(members_table([widest], {}, room=10))
    assert lines[1].split() == ["agent15", "12", "1000", "-0.412", "±0.030", "1.5e-03", "12.5", "16", "12.3", "12346", "agent12"]


def test_of_more_members_than_there_are_lines_the_best_are_shown():
    results = [result(0, math.nan), result(1, 0.1), result(2, 0.3), result(3, 0.2)]
    lines = seen(members_table(results, {}, room=2))
    assert [line.split()[0] for line in lines] == ["member", "agent2", "agent3", "and"]
    assert lines[-1] == "and 2 more, with lower scores"


def test_the_progress_has_count_time_and_what_is_awaited():
    progress = Progress("training", 95.0, 120, 400, "updates", 180.0, 210.0, {}, "agent0 is waiting for 3 of 64 rollouts, oldest 40 s")
    first, second = seen(*progress_lines(progress, age_s=4.0))
    assert first.startswith("training ━")
    assert first.endswith(" 120/400 updates 99 s elapsed 210 CPU s 3 min left")
    assert second == "agent0 is waiting for 3 of 64 rollouts, oldest 40 s"


def test_a_stage_without_a_count_has_its_time_alone():
    assert seen(*progress_lines(Progress("engines", 12.0), age_s=1.0)) == ["engines 13 s elapsed time left not known yet"]
    assert seen(*progress_lines(Progress("engines", 12.0, eta_s=9.0), age_s=1.0)) == ["engines 13 s elapsed 8 s left"]


@pytest.mark.parametrize(("kind", "columns", "live"), [("xterm", 60, True), ("dumb", 60, False), ("xterm", 59, False), ("xterm", 0, False)])
def test_only_a_terminal_that_can_move_its_cursor_and_has_room_for_a_line_has_a_table(kind, columns, live, monkeypatch):
    """One without a size, of 0 columns, would show nothing at all."""
    monkeypatch.setenv("TERM", kind)
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    with os.fdopen(slave, "w") as stream:
        assert can_be_live(stream) == live
    os.close(master)


def test_what_is_no_terminal_has_no_table(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    assert not can_be_live(io.StringIO())


class Terminal:
    """Of 100 columns, with the script in its foreground."""

    def __init__(self):
        self.master, slave = pty.openpty()
        ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color"}
        self.process = subprocess.Popen([sys.executable, SCRIPT], stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        self.output = ""

    def read_until(self, ready, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while not ready():
            assert time.monotonic() < deadline, self.output
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self.master, 1 << 16).decode()
                except OSError:  # the other end is closed
                    return

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


def test_on_a_terminal_there_is_a_table_above_which_all_else_scrolls_and_ctrl_c_leaves_the_cursor_shown():
    with Terminal() as terminal:
        terminal.read_until(lambda: "from below Python" in terminal.output and terminal.output.count("agent0 trains (40 s)") > 1)
        assert "\x1b[?25l" in terminal.output
        terminal.process.send_signal(signal.SIGINT)
        terminal.read_until(lambda: False)
        assert terminal.process.wait(10) == 130
    assert terminal.output.rfind("\x1b[?25h") > terminal.output.rfind("\x1b[?25l")
    lines = [ESCAPES.sub("", line).strip("\r") for line in terminal.output.split("\n")]
    for said in ("a print of other code", "a logger's warning", "from below Python"):
        assert sum(said == line for line in lines) == 1
    assert any("UserWarning: a warning" in line for line in lines)
    assert any(re.fullmatch(r" +0 s  agent1 \(0\.100\) is now a clone of agent0 \(0\.500\): window 4 -> 8", line) for line in lines)
    assert any(line.split() == ["agent1", "2", "25", "0.500", "1.5e-03", "5.0", "8", "-", "512", "agent0"] for line in lines)
    assert lines[-2] == "error: interrupted"
