"""A session with a real Ray is in a process of its own, and slow."""

import json
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from pbt_agents.errors import ConfigError
from pbt_agents.ray_reaper import workers_in
from pbt_agents.ray_session import _own_token, _token, check_address, ray_session, temporary_folder
from pbt_agents.testing.job import Job

SCRIPT = """
import json, os, signal, sys, tempfile, threading
from pathlib import Path
from pbt_agents.ray_session import ray_session

def work():
    pass

def state():
    import ray
    return {
        "initialized": ray.is_initialized(),
        "marked": "PBT_AGENTS_RAY" in os.environ,
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
        import ray
        worker = ray.remote(work)
        ray.get([worker.remote(), worker.options(runtime_env={"env_vars": {"OF_AN_ENGINE": "1"}}).remote()])
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


@pytest.mark.slow
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
        "marked": False,
        "temporary": tempfile.gettempdir(),
        "variable": os.environ.get("TMPDIR"),
        "terminate": True,
        "link": None,
        "threads": before["threads"],
    }
    assert inside["initialized"]
    assert not inside["marked"]  # what the driver starts beside Ray is not Ray's
    assert inside["terminate"]
    assert inside["temporary"] == inside["variable"] == inside["link"]
    assert inside["link"].startswith(tempfile.gettempdir())
    assert inside["threads"] == "3"  # what the user has set is kept
    assert not Path(inside["link"]).exists()
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.slow
def test_all_that_ray_starts_is_known_as_this_runs_and_nothing_else_is(job, tmp_path):
    """B71: daemons, agents, and workers with and without an environment of their own."""
    job.wait_for(lambda: "up" in job.output, "second session")
    folder = (tmp_path / "out" / "ray").resolve()

    def came_of_ray():
        return {process for process in job.processes() if process.pid != job.pid and "pbt_agents.ray_reaper" not in process.cmdline()}

    job.wait_for(lambda: came_of_ray() == set(workers_in(folder)), "mark on every process", timeout_s=10)
    commands = " ".join(" ".join(process.cmdline()) for process in workers_in(folder))
    assert all(part in commands for part in ("gcs_server", "raylet/raylet", "RuntimeEnvAgent", "ray::IDLE"))


@pytest.mark.slow
def test_nothing_is_left_ten_seconds_after_the_driver_was_killed(job, tmp_path):
    """B71. Ray's own agents would stay for a minute."""
    job.wait_for(lambda: "up" in job.output, "second session")
    folder = (tmp_path / "out" / "ray").resolve()
    assert folder.exists()
    job.send(signal.SIGKILL)
    job.wait_for_nobody(10)
    assert not folder.exists()


@pytest.mark.slow
def test_an_interruption_while_ray_starts_ends_it_at_once_and_leaves_nothing(tmp_path):
    """B71."""
    (tmp_path / "out").mkdir()
    with Job([sys.executable, "-c", SCRIPT, tmp_path / "out"], tmp_path / "log") as job:
        job.wait_for(lambda: "gcs_server" in " ".join(job.commands()), "start of Ray")
        job.interrupt()
        assert job.wait(10) == 130
        job.wait_for_nobody(10)
    assert job.output.splitlines()[1:] == ["interrupted while Ray was starting"]


def test_an_address_where_nobody_answers_is_refused_by_name(tmp_path, monkeypatch):
    """B82."""

    def nobody(**_):
        raise ConnectionError("timed out")

    monkeypatch.setattr("ray.init", nobody)
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at 'auto': timed out"), ray_session(tmp_path, "auto"):
        raise AssertionError("it was joined")


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_host_where_nobody_listens_is_refused_before_ray_tries_for_minutes(scheme):
    """B82."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"{scheme}127.0.0.1:{listening.getsockname()[1]}"
        check_address(address)
    with pytest.raises(ConfigError, match=rf"no Ray cluster answers at '{address}': .*Connection refused"):
        check_address(address)


def test_an_address_whose_port_is_no_number_is_refused_and_what_is_no_host_is_left_to_ray():
    """B82."""
    check_address("auto")
    with pytest.raises(ConfigError, match="the address is empty"):
        check_address("")
    with pytest.raises(ConfigError, match=r"no Ray cluster answers at 'head:six'"):
        check_address("head:six")


def test_a_temporary_folder_whose_sockets_would_have_too_long_a_path_is_refused(monkeypatch):
    """B77."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "x" * 25)
    assert temporary_folder() == Path("/tmp") / ("x" * 25)
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/" + "x" * 26)
    with pytest.raises(
        ConfigError, match=r"'/tmp/x+' has a path of 31 bytes, and Ray's sockets leave room for 30\. Set TMPDIR to a shorter"
    ):
        temporary_folder()


def test_a_temporary_folder_whose_letters_ray_cannot_read_is_refused(monkeypatch):
    """B77."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/für")
    with pytest.raises(ConfigError, match=r"'/tmp/für' has letters in its path that Ray cannot read\. Set TMPDIR"):
        temporary_folder()


def test_a_machine_without_a_temporary_folder_is_told_so(monkeypatch):
    """B77."""

    def nowhere():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    with pytest.raises(ConfigError, match=r"no temporary directory can be written.* Set TMPDIR"):
        temporary_folder()


def test_rays_word_is_in_no_file_and_the_same_for_all_sessions_of_a_process_unless_the_user_has_one(monkeypatch, tmp_path):
    """B77: HOME need not be writable."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/proc/none")
    assert _token() == _token() == {"RAY_AUTH_TOKEN": _own_token()}
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "RAY_AUTH_TOKEN" in _token()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").touch()
    assert _token() == {}
    monkeypatch.setenv("HOME", "/proc/none")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/of/a/cluster")
    assert _token() == {}
