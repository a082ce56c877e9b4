"""With wandb itself, offline; what it wrote is read back from its own files."""

import json
import logging
import math
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import wandb

from pbt_agents.dashboard.wandb_runs import WandbRuns, wandb_mode
from pbt_agents.errors import ConfigError
from pbt_agents.testing.wandb_files import offline_runs

KEYS = ("WANDB_MODE", "WANDB_API_KEY")


@pytest.fixture(autouse=True)
def nobody_logged_in(monkeypatch, tmp_path_factory):
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path_factory.mktemp("home") / ".netrc"))


def trial(name, learning_rate=1e-3):
    return SimpleNamespace(name=name, config={"learning_rate": learning_rate})


def logger_of(folder, members, parents=None):
    return WandbRuns("test", folder, members, lambda trial: trial.name, ({} if parents is None else parents).get)


def log(runs, name, updates, iteration, **values):
    runs.on_trial_result(0, [], trial(name), {"updates": updates, "training_iteration": iteration, "done": False, "config": {}, **values})


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """Two members; agent1 became a clone of agent0, so its training_iteration went back. The run was interrupted and resumed."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_MODE", "offline")
        parents = {}
        first = logger_of(folder, ["agent0", "agent1"], parents)
        first.setup()
        for updates, iteration in [(10, 1), (20, 2), (30, 3)]:
            log(first, "agent0", updates, iteration, fitness=updates / 100)
        log(first, "agent1", 10, 1, fitness=0.01)
        log(first, "agent1", 20, 2, fitness=math.nan)
        parents["agent1"] = "agent0"
        log(first, "agent1", 30, 2, fitness=0.03)
        log(first, "agent1", 40, 1, fitness=0.04)
        first.on_experiment_end([])
        second = logger_of(folder, ["agent0", "agent1"], parents)
        second.setup()
        log(second, "agent1", 50, 2, fitness=0.05)
        log(second, "agent1", 57, 2, fitness=0.05, done=True, cut_short=True)  # a score that is only repeated
        second.on_experiment_end([])
    wandb.teardown()  # W&B writes its files in a process of its own, which finishing a run does not wait for
    return offline_runs(folder)


def test_a_member_has_one_run_in_one_group_also_after_a_resume(logged):
    """B66."""
    assert len(logged) == 2
    [group] = {group for group, _ in logged.values()}
    assert set(logged) == {f"{group}-agent0", f"{group}-agent1"}


def test_no_row_is_lost_where_a_clone_goes_back(logged):
    """B64."""
    rows = {run[-6:]: [row["updates"] for row in rows] for run, (_, rows) in logged.items()}
    assert rows == {"agent0": [10, 20, 30], "agent1": [10, 20, 30, 40, 50]}


def test_rows_at_5_3_and_7_are_all_there(tmp_path):
    """B64: as of a member whose process was killed after its last checkpoint. W&B's own step would drop the second."""
    runs = logger_of(tmp_path, ["agent0"])
    runs.setup()
    for updates in (5, 3, 7):
        log(runs, "agent0", updates, 1, fitness=updates / 10)
    runs.on_experiment_end([])
    wandb.teardown()
    [(_, rows)] = offline_runs(tmp_path).values()
    assert [(row["updates"], row["fitness"]) for row in rows] == [(5, 0.5), (3, 0.3), (7, 0.7)]


def test_a_members_values_are_in_its_own_run(logged):
    """B66."""
    fitness = {run[-6:]: [row["fitness"] for row in rows] for run, (_, rows) in logged.items()}
    assert fitness["agent0"] == [0.1, 0.2, 0.3]
    assert [value for value in fitness["agent1"] if value != "NaN" and not math.isnan(value)] == [0.01, 0.03, 0.04, 0.05]


def test_a_clone_says_whose_it_is(logged):
    """B66."""
    parents = {run[-6:]: [row.get("parent") for row in rows] for run, (_, rows) in logged.items()}
    assert parents == {"agent0": [None] * 3, "agent1": [None, None, "agent0", "agent0", "agent0"]}


def test_runs_in_directories_of_the_same_name_are_different_runs(tmp_path):
    """B66."""
    ids = set()
    for parent in ("a", "b"):
        folder = tmp_path / parent / "run"
        folder.mkdir(parents=True)
        runs = logger_of(folder, ["agent0"])
        runs.setup()
        runs.on_experiment_end([])
        wandb.teardown()
        ids |= set(offline_runs(folder))
    assert len(ids) == 2


class Broken:
    """A run whose log fails from the second row on."""

    def __init__(self):
        self.rows, self.config = [], SimpleNamespace(update=lambda *_, **__: None)

    def log(self, row):
        if self.rows:
            raise ConnectionError("no more")
        self.rows.append(row)

    def finish(self):
        raise ConnectionError("not even that")


def test_a_logger_that_fails_says_so_once_and_lets_the_training_go_on(tmp_path, caplog):
    """B68."""
    runs, broken = logger_of(tmp_path, ["agent0"]), Broken()
    runs._runs = {"agent0": broken}
    with caplog.at_level(logging.WARNING):
        for updates in (10, 20, 30):
            log(runs, "agent0", updates, 1)
        runs.on_experiment_end([])
    [message] = caplog.messages
    assert "no more" in message
    assert "training goes on" in message
    assert len(broken.rows) == 1


def test_a_run_that_cannot_be_opened_does_not_stop_the_training(tmp_path, caplog, monkeypatch):
    """B68."""
    monkeypatch.setattr("wandb.init", lambda **_: (_ for _ in ()).throw(OSError("read-only")))
    runs = logger_of(tmp_path, ["agent0"])
    with caplog.at_level(logging.WARNING):
        runs.setup()
        log(runs, "agent0", 10, 1)
        runs.on_experiment_end([])
    assert len(caplog.messages) == 1


def test_a_run_that_cannot_be_finished_leaves_the_others_to_be(tmp_path, caplog):
    finished = []
    runs = logger_of(tmp_path, ["agent0", "agent1"])
    runs._runs = {"agent0": Broken(), "agent1": SimpleNamespace(finish=lambda: finished.append("agent1"))}
    runs.on_experiment_end([])
    assert finished == ["agent1"]


def test_without_a_key_runs_are_offline_and_nobody_is_asked():
    """B68."""
    assert wandb_mode() == "offline"


def test_a_key_in_the_environment_or_in_the_netrc_is_one(monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password x")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert wandb_mode() == "online"
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_API_KEY", "x")
    assert wandb_mode() == "online"


@pytest.mark.parametrize("mode", ["online", "offline", "disabled"])
def test_the_mode_that_is_asked_for_overrides_the_key(monkeypatch, mode):
    monkeypatch.setenv("WANDB_API_KEY", "x")
    monkeypatch.setenv("WANDB_MODE", mode)
    assert wandb_mode() == mode


def test_an_unknown_mode_is_refused(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offlin")
    with pytest.raises(ConfigError, match="WANDB_MODE is 'offlin'"):
        wandb_mode()


def test_disabled_opens_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr("wandb.init", lambda **_: pytest.fail("opened"))
    runs = logger_of(tmp_path, ["agent0"])
    runs.setup()
    log(runs, "agent0", 10, 1)
    runs.on_experiment_end([])
    assert caplog.messages == []


HANGING = """
import os, signal, sys
from pathlib import Path
from types import SimpleNamespace
import psutil
from pbt_agents.dashboard.wandb_runs import WandbRuns

runs = WandbRuns("test", Path(sys.argv[1]), ["agent0"], lambda trial: "agent0", {}.get, finish_s=3.0)
runs.setup()
runs.on_trial_result(0, [], SimpleNamespace(config={}), {"updates": 10, "fitness": 0.5})
writers = [process for process in psutil.Process().children(recursive=True) if process.name().startswith("wandb")]
assert writers
for process in writers:
    process.suspend()
runs.on_experiment_end([])
print("ended", flush=True)
"""


def test_a_run_whose_upload_never_ends_is_left_behind_with_the_command_that_sends_it(tmp_path):
    """B67: W&B's own process is frozen, so finish() does not return; this process ends by itself, and well."""
    ended = subprocess.run([sys.executable, "-c", HANGING, tmp_path], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "ended"
    assert f"W&B is not done after 3 s and is left behind. Send what there is with: wandb sync {tmp_path}/wandb/*run-*" in ended.stderr
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


def test_the_command_can_be_copied_where_a_path_has_blanks(tmp_path):
    """B67."""
    assert logger_of(tmp_path / "größe und leer", [])._how_to_sync().endswith("größe und leer/wandb'/*run-*")


def test_the_others_finish_beside_a_run_that_does_not_and_the_end_comes_in_time(tmp_path, caplog):
    """B67."""
    over, finished = threading.Event(), []
    runs = WandbRuns("test", tmp_path, [], lambda trial: trial.name, {}.get, finish_s=0.2)
    runs._runs = {"agent0": SimpleNamespace(finish=over.wait), "agent1": SimpleNamespace(finish=lambda: finished.append("agent1"))}
    began = time.monotonic()
    runs.on_experiment_end([])
    assert time.monotonic() - began < 30
    assert finished == ["agent1"]
    [message] = caplog.messages
    assert "wandb sync" in message
    over.set()


def test_a_whole_run_waits_no_longer_than_half_a_minute_for_uploads(tmp_path):
    """B67."""
    assert logger_of(tmp_path, [])._finish_s <= 20


class Counting:
    """A run that keeps what it is given, by size."""

    def __init__(self):
        self.sizes, self.config = [], SimpleNamespace(update=lambda *_, **__: None)

    def log(self, row):
        self.sizes.append(len(json.dumps(row)))


def test_a_row_does_not_grow_with_the_run_and_holds_no_text(tmp_path):
    """B69: of 1,000 steps, one of which brings a text of 5 MB."""
    run, runs, spent = Counting(), logger_of(tmp_path, ["agent0"]), []
    runs._runs = {"agent0": run}
    for step in range(1000):
        remark = {"remark": "x" * 5_000_000} if step == 500 else {}
        began = time.perf_counter()
        log(runs, "agent0", 10 * step, step, fitness=0.5, **{f"metric{number}": 0.25 for number in range(64)}, **remark)
        spent.append(time.perf_counter() - began)
    assert len(run.sizes) == 1000
    assert max(run.sizes) < 1.05 * min(run.sizes)
    assert float(np.median(spent[-100:])) <= 2 * float(np.median(spent[:100]))


WITHOUT_CACHE = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
from pbt_agents.dashboard.wandb_runs import WandbRuns

before = dict(os.environ)
runs = WandbRuns("test", Path(sys.argv[1]), ["agent0"], lambda trial: "agent0", {}.get)
runs.setup()
assert dict(os.environ).get("XDG_CACHE_HOME") == before.get("XDG_CACHE_HOME")
runs.on_trial_result(0, [], SimpleNamespace(config={}), {"updates": 1})
runs.on_experiment_end([])
"""


@pytest.mark.parametrize("home", [{}, {"HOME": "/proc/nowhere"}, {"HOME": "/root", "XDG_CACHE_HOME": "/proc/nowhere"}])
def test_without_a_cache_of_the_users_its_own_process_says_nothing_on_the_terminal(tmp_path, home):
    """It would tell there what it does, in a dozen lines, since it has no file for them."""
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_CACHE_HOME")} | home
    command = [sys.executable, "-c", WITHOUT_CACHE, tmp_path]
    done = subprocess.run(command, env=environment | {"WANDB_MODE": "offline"}, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 1
