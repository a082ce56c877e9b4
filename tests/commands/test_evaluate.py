"""The scores of one adapter: its table, and the real thing on a vLLM engine."""

import json
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from pbt_agents.commands.evaluate import Args, Score, main, table
from pbt_agents.errors import ConfigError
from pbt_agents.testing.job import Job
from pbt_agents.testing.random_adapter import random_adapter

NAN = math.nan


def test_the_difference_is_taken_task_by_task_and_a_lost_episode_is_in_no_mean():
    """B06, B63: over the tasks with a verdict for both, 1, 0 and 0.5 above."""
    base, adapter = np.array([0.0, 0.5, 0.5, NAN]), np.array([1.0, 0.5, 1.0, 1.0])
    rows = table({"greedy": {"base": base, "adapter": adapter}})
    assert rows["base"]["greedy"] == Score(pytest.approx(1 / 3), pytest.approx(math.sqrt(1 / 12) / math.sqrt(3)), 1)
    assert rows["adapter"]["greedy"] == Score(0.875, pytest.approx(0.125), 0)
    assert rows["difference"]["greedy"] == Score(0.5, pytest.approx(0.5 / math.sqrt(3)), 1)
    assert str(rows["difference"]["greedy"]) == " 0.500 ±0.289 (1 lost)"


def test_too_few_episodes_for_an_error_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="episodes must be at least 2"):
        main(Args(tmp_path, episodes=1))


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    return random_adapter(tmp_path_factory.mktemp("adapter"), spread=0.5)


@pytest.fixture
def temporary():
    """A temporary folder of the command's own, to see that it is left empty. Ray's sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        yield Path(folder)


def files_in(folder):
    """Torch keeps an empty folder for its compiler wherever it is imported."""
    return [path for path in folder.rglob("*") if not path.is_dir()]


def command(*arguments):
    return [sys.executable, "-m", "pbt_agents", "evaluate", *arguments]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_adapter_and_its_base_are_scored_by_an_engine_that_leaves_nothing(adapter, temporary, tmp_path):
    """B71. Random weights that are wide enough spoil what the base model has learned."""
    before = sorted(adapter.iterdir())
    with Job(command(adapter, "--episodes", "24", "--json"), tmp_path / "log", {"TMPDIR": str(temporary)}) as job:
        assert job.wait(280) == 0, job.output
        job.wait_for_nobody(10)
    told = json.loads(job.output[job.output.index("{") :])
    assert (told["environment"], told["split"], told["episodes"], told["run"]) == ("sudoku:tiny", "test", 24, None)
    for decoding in ("sampled", "greedy"):
        base, spoilt, difference = (told["scores"][row][decoding] for row in ("base", "adapter", "difference"))
        assert base["mean"] > 0.1 > spoilt["mean"]
        assert difference["mean"] == pytest.approx(spoilt["mean"] - base["mean"])
        assert {base["lost"], spoilt["lost"], difference["lost"]} == {0}
    assert sorted(adapter.iterdir()) == before
    assert files_in(temporary) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ctrl_c_while_it_plays_ends_everything(adapter, temporary, tmp_path):
    """B71."""
    with Job(command(adapter, "--episodes", "5000"), tmp_path / "log", {"TMPDIR": str(temporary)}) as job:
        job.wait_for(lambda: "playing" in job.output, "first episode")
        job.interrupt()
        assert job.wait(20) == 130
        job.wait_for_nobody(10)
    assert job.output.splitlines()[-1] == "interrupted"
    assert files_in(temporary) == []


def test_a_wrong_folder_is_one_line_and_exit_code_2_before_any_engine(tmp_path):
    with Job(command(tmp_path), tmp_path / "log") as job:
        assert job.wait(120) == 2
    assert job.output.startswith(f"error: '{tmp_path}' has no adapter_config.json.")
    assert len(job.output.splitlines()) == 1
