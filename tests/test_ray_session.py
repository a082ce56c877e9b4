"""With a real Ray, each in a process of its own."""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from pbt_agents.testing.job import Job

pytestmark = pytest.mark.slow

SCRIPT = """
import json, os, signal, sys, tempfile, threading
from pathlib import Path
from pbt_agents.ray_session import ray_session

def state():
    import ray
    return {
        "initialized": ray.is_initialized(),
        "temporary": tempfile.gettempdir(),
        "variable": os.environ.get("TMPDIR"),
        "terminate": signal.getsignal(signal.SIGTERM) is signal.default_int_handler,
        "link": str(Path(sys.argv[1], "ray").resolve()) if Path(sys.argv[1], "ray").is_symlink() else None,
        "threads": os.environ.get("OMP_NUM_THREADS"),
    }

signal.signal(signal.SIGTERM, signal.default_int_handler)
print(json.dumps(state()), flush=True)
with ray_session(Path(sys.argv[1])):
    print(json.dumps(state()), flush=True)
print(json.dumps(state()), flush=True)
try:
    with ray_session(Path(sys.argv[1])):
        print("up", flush=True)
        threading.Event().wait()
except KeyboardInterrupt:
    print(json.dumps(state()), flush=True)
    sys.exit(130)
"""


@pytest.fixture
def job(tmp_path):
    (tmp_path / "out").mkdir()
    environment = {"RAY_ADDRESS": "192.0.2.1:1", "OMP_NUM_THREADS": "3"}
    with Job([sys.executable, "-c", SCRIPT, tmp_path / "out"], tmp_path / "log", environment) as started:
        yield started


def test_it_leaves_no_process_no_file_and_no_word_and_gives_everything_back(job, tmp_path):
    """B71, B77."""
    job.wait_for(lambda: "up" in job.output, "second session")
    job.send(signal.SIGTERM)
    assert job.wait(10) == 130
    job.wait_for_nobody(10)

    before, inside, between, after = (json.loads(line) for line in job.output.splitlines() if line != "up")
    assert len(job.output.splitlines()) == 5  # Ray has not said a word
    assert before == between == after
    assert before == {
        "initialized": False,
        "temporary": tempfile.gettempdir(),
        "variable": os.environ.get("TMPDIR"),
        "terminate": True,
        "link": None,
        "threads": before["threads"],
    }
    assert inside["initialized"]
    assert inside["terminate"]
    assert inside["temporary"] == inside["variable"] == inside["link"]
    assert inside["link"].startswith(tempfile.gettempdir())
    assert inside["threads"] == "3"  # what the user has set is kept
    assert not Path(inside["link"]).exists()
    assert list((tmp_path / "out").iterdir()) == []


def test_nothing_is_left_ten_seconds_after_the_driver_was_killed(job, tmp_path):
    """B71. Ray's own agents would stay for a minute."""
    job.wait_for(lambda: "up" in job.output, "second session")
    folder = (tmp_path / "out" / "ray").resolve()
    assert folder.exists()
    job.send(signal.SIGKILL)
    job.wait_for_nobody(10)
    assert not folder.exists()


def test_an_interruption_while_ray_starts_ends_it_at_once_and_leaves_nothing(tmp_path):
    """B71."""
    (tmp_path / "out").mkdir()
    with Job([sys.executable, "-c", SCRIPT, tmp_path / "out"], tmp_path / "log") as job:
        job.wait_for(lambda: "gcs_server" in " ".join(job.commands()), "start of Ray")
        job.interrupt()
        assert job.wait(10) == 130
        job.wait_for_nobody(10)
    assert job.output.splitlines()[1:] == ["interrupted while Ray was starting"]
