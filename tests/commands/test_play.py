"""An episode as it is watched: its words, and the real thing on a vLLM engine."""

import re
import sys

import pytest

from pbt_agents.commands.play import Args, Watched, indented, main
from pbt_agents.config import EnvironmentConfig
from pbt_agents.environment import StepResult, environment_maker
from pbt_agents.errors import ConfigError
from pbt_agents.testing.job import Job
from pbt_agents.testing.random_adapter import random_adapter


class Told:
    def reset(self, seed):
        return f"task {seed}"

    def step(self, action):
        return StepResult("right\nand done", 0.5, terminated=True, metrics={"solved": 1.0})


def test_each_turn_is_told_as_it_happens_and_nothing_is_changed():
    told = []
    watched = Watched(Told(), told.append)
    assert watched.reset(7) == "task 7"
    assert watched.step("go\nleft") == Told().step("go\nleft")
    assert told == ["    task 7", "\nturn 1\n  > go\n  > left", "  reward +0.500\n    right\n    and done"]


@pytest.mark.parametrize("answer", [None, ("right", 0.5, True), StepResult("right", "much"), StepResult(None, 0.5)])
def test_an_answer_that_is_none_is_left_to_who_plays_to_be_refused(answer):
    class Wrong(Told):
        def step(self, action):
            return answer

    assert Watched(Wrong(), [].append).step("go") is answer


def test_a_board_is_told_as_the_environment_draws_it():
    told = []
    board = Watched(environment_maker(EnvironmentConfig("sudoku:tiny"), "test")(), told.append).reset(3)
    assert told == ["    " + board.replace("\n", "\n    ")]
    assert len(told[0].splitlines()) == 5


def test_what_would_move_a_terminals_cursor_is_written_out():
    assert indented("\x1b[2Jhé\r") == "    \\x1b[2Jhé\\r"


def test_nobody_to_play_is_refused():
    with pytest.raises(ConfigError, match="--base"):
        main(Args())


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_base_model_plays_on_a_real_engine_for_the_sum_of_its_rewards(tmp_path):
    adapter = random_adapter(tmp_path / "adapter")
    command = [sys.executable, "-m", "pbt_agents", "play", adapter, "--episodes", "2", "--greedy", "--seed", "1"]
    with Job(command, tmp_path / "log") as job:
        assert job.wait(280) == 0, job.output
        job.wait_for_nobody(10)
    episodes = job.output.split("test task ")[1:]
    assert len(episodes) == 2
    for episode in episodes:
        rewards = [float(reward) for reward in re.findall(r"  reward ([+-]\d\.\d+)", episode)]
        score, turns = re.search(r"score (-?\d\.\d+) in (\d+) turns; the environment", episode).groups()
        assert float(score) == pytest.approx(sum(rewards), abs=0.003)
        assert int(turns) == len(rewards) == episode.count("  > \\boxed")
