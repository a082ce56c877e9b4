import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from pbt_agents.errors import ConfigError
from pbt_agents.run_folder import MANIFEST, manifest_around, new_run, resumed_run

HOLD = """
import sys
from pathlib import Path
from pbt_agents.run_folder import new_run
with new_run(Path(sys.argv[1]), {}):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_process(tmp_path):
    """A process that has a run in tmp_path / 'run'."""
    command = [sys.executable, "-c", HOLD, tmp_path / "run"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_settings_are_on_disk_as_soon_as_the_run_begins_and_are_what_a_resumed_one_gets(tmp_path):
    settings = {"population": 3, "minutes": None, "environment": "sudoku:tiny"}
    with new_run(tmp_path / "a" / "run", settings) as folder:
        manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["settings"] == settings
    with resumed_run(tmp_path / "a" / "run") as resumed:
        assert resumed["settings"] == settings


def test_a_directory_that_holds_something_is_refused_and_left_as_it_is(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="not an empty directory"), new_run(tmp_path, {}):
        pytest.fail("it began")
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "run").write_text("precious")
    with pytest.raises(ConfigError, match="not an empty directory"), new_run(tmp_path / "run", {}):
        pytest.fail("it began")


def test_an_empty_directory_is_taken_also_when_only_a_refused_run_was_there(tmp_path):
    (tmp_path / ".lock").touch()
    with new_run(tmp_path, {"a": 1}):
        pass


def test_a_finished_run_is_resumed_and_not_overwritten(tmp_path):
    with new_run(tmp_path / "run", {"seed": 1}):
        pass
    with pytest.raises(ConfigError, match="--resume"), new_run(tmp_path / "run", {"seed": 2}):
        pytest.fail("it began")
    with resumed_run(tmp_path / "run") as manifest:
        assert manifest["settings"] == {"seed": 1}


@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_resumed_where_no_run_was_and_nothing_is_made_there(tmp_path, there):
    folder = tmp_path if there else tmp_path / "nowhere"
    with pytest.raises(ConfigError, match=f"holds no {MANIFEST}"), resumed_run(folder):
        pytest.fail("it began")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_in_use_is_refused_until_its_process_is_gone_however_it_ended(tmp_path, other_process):
    with pytest.raises(ConfigError, match="another run is at work"), resumed_run(tmp_path / "run"):
        pytest.fail("it began")
    other_process.kill()
    other_process.wait()
    with resumed_run(tmp_path / "run") as manifest:
        assert manifest["settings"] == {}


def test_what_goes_wrong_inside_a_run_is_not_taken_for_another_run(tmp_path):
    with pytest.raises(BlockingIOError), new_run(tmp_path / "run", {}):
        raise BlockingIOError
    with resumed_run(tmp_path / "run"):
        pass


def test_a_directory_that_cannot_be_written_is_refused():
    """Not even root makes a directory in /proc."""
    with pytest.raises(ConfigError, match="cannot be written"), new_run(Path("/proc/run"), {}):
        pytest.fail("it began")


def test_a_directory_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written: Not a directory"), new_run(tmp_path / "file" / "run", {}):
        pytest.fail("it began")


def test_a_manifest_says_what_the_settings_come_to_and_what_ran_them(tmp_path):
    with new_run(tmp_path / "run", {"seed": 3}, {"agent": {"seed": 3}, "size": 2}) as folder:
        manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["population"] == {"agent": {"seed": 3}, "size": 2}
    assert set(manifest) == {"settings", "population", "started", "command", "working_directory", "git", "packages", "machine"}


def test_a_manifest_is_found_from_any_folder_of_its_run_with_numbers_that_are_not_finite(tmp_path):
    adapter = tmp_path / "run" / "population" / "agent0" / "checkpoint_000001" / "trainer"
    with new_run(tmp_path / "run", {"seed": 3}, {"agent": {"objective": {"ratio_max": math.inf}}}):
        adapter.mkdir(parents=True)
    run, manifest = manifest_around(adapter)
    assert run == (tmp_path / "run").resolve()
    assert manifest["population"]["agent"]["objective"]["ratio_max"] == math.inf


def test_another_programs_file_of_the_same_name_is_no_manifest(tmp_path):
    (tmp_path / MANIFEST).write_text('["mine"]')
    assert manifest_around(tmp_path) is None


def test_a_folder_outside_any_run_has_no_manifest(tmp_path):
    assert manifest_around(tmp_path / "nowhere") is None


@pytest.mark.parametrize("there", [True, False])
def test_a_run_that_is_refused_leaves_nothing_that_was_not_there(tmp_path, there):
    """B82."""
    out = tmp_path / "a" / "run"
    if there:
        out.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="does not fit"), new_run(out, {}):
        raise ConfigError("does not fit")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_is_refused_after_it_made_something_keeps_all(tmp_path):
    def refused_late():
        with new_run(tmp_path / "run", {"seed": 1}) as folder:
            (folder / "population").mkdir()
            raise ConfigError("does not fit")

    with pytest.raises(ConfigError, match="does not fit"):
        refused_late()
    with resumed_run(tmp_path / "run") as manifest:
        assert manifest["settings"] == {"seed": 1}


def test_a_run_that_fails_keeps_its_directory(tmp_path):
    with pytest.raises(OSError, match="died"), new_run(tmp_path / "run", {"seed": 1}):
        raise OSError("died")
    assert (tmp_path / "run" / MANIFEST).exists()


def test_who_finds_another_run_at_work_takes_nothing_from_it(tmp_path, other_process):
    (tmp_path / "run" / MANIFEST).rename(tmp_path / "aside")  # as in the moment before it is written
    with pytest.raises(ConfigError, match="another run is at work"), new_run(tmp_path / "run", {}):
        pytest.fail("it began")
    assert (tmp_path / "run" / ".lock").exists()


@pytest.mark.parametrize(
    ("out", "told"), [("thesis.txt/run", "Not a directory"), ("x" * 256, "File name too long"), ("/proc/run", "No such file or directory")]
)
def test_a_directory_that_cannot_be_made_is_refused_with_the_systems_reason(tmp_path, out, told):
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=rf"cannot be written: {told}\. Choose another --out"), new_run(tmp_path / out, {}):
        pytest.fail("it began")
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]
