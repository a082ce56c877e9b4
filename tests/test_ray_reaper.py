import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from pbt_agents.ray_reaper import reaped

OPENS = "import sys; file = open(sys.stdin.readline().strip(), 'w'); print('ready', flush=True); sys.stdin.read()"
NAMES = "import sys; print('ready', flush=True); sys.stdin.read()"
DRIVES = """
import sys
from pathlib import Path
from pbt_agents.ray_reaper import reaped
with reaped(Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def process(code, *arguments, told=""):
    """A Python process, once it has said that it is ready."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        started.stdin.write(f"{told}\n")
        started.stdin.flush()
        assert started.stdout.readline() == "ready\n"
        yield started
        started.kill()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "ray-1" / "session_1" / "logs").mkdir(parents=True)
    return tmp_path / "ray-1"


@pytest.fixture(params=["by its command", "by an open file"])
def worker(request, folder):
    """A process of the Ray in the folder, as Ray's processes can be known."""
    log = folder / "session_1" / "logs" / "worker.log"
    by_command = process(NAMES, f"--session-dir={folder}/session_1")
    with by_command if request.param == "by its command" else process(OPENS, told=log) as started:
        yield started


def test_what_still_works_there_ends_with_the_block_and_the_folder_goes(folder, worker):
    """B71."""
    with reaped(folder):
        assert worker.poll() is None
    assert worker.wait(10) == -signal.SIGKILL
    assert not folder.exists()


def test_it_ends_when_the_driver_is_killed_too(folder, worker):
    """B71."""
    with process(DRIVES, folder) as driver:
        assert worker.poll() is None
        driver.send_signal(signal.SIGKILL)
        assert worker.wait(10) == -signal.SIGKILL


def test_processes_elsewhere_and_the_driver_itself_are_left_alone(folder):
    """B71."""
    beside = Path(f"{folder}0") / "session_1"
    beside.mkdir(parents=True)
    own = (folder / "session_1" / "driver.log").open("w")
    with process(NAMES, f"--session-dir={beside}") as namesake, process(OPENS, told=beside / "log") as other, own:
        with reaped(folder):
            pass
        assert namesake.poll() is None
        assert other.poll() is None
    assert beside.exists()
