import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from pbt_agents.ray_reaper import mark, reaped

WORKS = "import sys; print('ready', flush=True); sys.stdin.read()"
WORKS_UNDER_A_TITLE = f"import ray._raylet; ray._raylet.setproctitle('ray::IDLE'); {WORKS}"
DRIVES = """
import sys
from pathlib import Path
from pbt_agents.ray_reaper import reaped
with reaped(Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def process(command, environment=None):
    """A process, once it has written a line."""
    environment = {**os.environ, **(environment or {})}
    with subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as started:
        assert started.stdout.readline() == "ready\n"
        yield started
        started.kill()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ray-1" / "session_1" / "logs").mkdir(parents=True)
    return tmp_path / "ray-1"


@pytest.fixture(params=[WORKS, WORKS_UNDER_A_TITLE], ids=["plain", "titled"])
def worker(request, folder):
    """A process of the Ray in the folder, in a session of its own."""
    with process([sys.executable, "-c", request.param], mark(folder)) as started:
        yield started


def test_what_still_works_there_ends_with_the_block_and_the_folder_goes(folder, worker):
    """B71."""
    with reaped(folder):
        assert worker.poll() is None
    assert worker.wait(10) == -signal.SIGKILL
    assert not folder.exists()


def test_it_ends_when_the_driver_is_killed_too(folder, worker):
    """B71."""
    with process([sys.executable, "-c", DRIVES, folder]) as driver:
        assert worker.poll() is None
        driver.send_signal(signal.SIGKILL)
        assert worker.wait(10) == -signal.SIGKILL


def test_who_reads_a_log_or_names_the_folder_lives_on(folder):
    """B71: neither came of this Ray."""
    log = folder / "session_1" / "logs" / "a.log"
    log.write_text("ready\n")
    with (
        process([shutil.which("tail"), "-f", log]) as reader,
        process([sys.executable, "-c", WORKS, f"--session-dir={folder}/session_1"]) as namesake,
    ):
        with reaped(folder):
            pass
        assert reader.poll() is None
        assert namesake.poll() is None
    assert not folder.exists()


def test_the_ray_of_another_run_lives_on(folder, tmp_path):
    """B71: also where its folder begins with the name of this one."""
    with process([sys.executable, "-c", WORKS], mark(tmp_path / "ray-10")) as other:
        with reaped(folder):
            pass
        assert other.poll() is None
