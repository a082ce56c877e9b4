import json
import os
import subprocess
import sys

import pytest

from pbt_agents.__main__ import main


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run" / "population" / "agent0"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps({"fitness": 0.5, "updates": 10, "version": 10, "lineage": 0}) + "\n")
    return tmp_path / "run"


def test_both_formats_are_written_and_told_with_their_sizes(run, capsys):
    assert main(["export", str(run)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{run}/metrics.parquet: 1 rows of 5 columns",
        f"{run}/updates.parquet: 0 rows of 4 columns",
        f"{run}/tensorboard/agent0: 1 points",
    ]
    assert len(list((run / "tensorboard" / "agent0").iterdir())) == 1


def test_tensorboard_can_be_left_out(run):
    assert main(["export", str(run), "--no-tensorboard"]) == 0
    assert not (run / "tensorboard").exists()


def test_a_directory_without_results_is_refused_and_left_as_it_is(tmp_path, capsys):
    assert main(["export", str(tmp_path)]) == 2
    assert f"error: '{tmp_path}' holds no results" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_whoever_stops_reading_the_output_is_no_error_to_tell(run):
    """As `| head` does."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "pbt_agents", "export", run, "--no-tensorboard"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")
