"""What an episode makes of an environment that does not keep to its contract."""

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from pbt_agents.environment import StepResult
from pbt_agents.errors import EpisodeError
from pbt_agents.rollout.user_environment import UserEnvironment


class Maze:
    """Returns what it is told to; raises it where it is an exception."""

    def __init__(self, first="start", result=None):
        self.first, self.result = first, result

    def reset(self, seed):
        return given(self.first)

    def step(self, action):
        return given(self.result)


def given(answer):
    if isinstance(answer, BaseException):
        raise answer
    return answer


def broken_maze():
    raise OSError("no display")


def reset(environment, executor=None):
    return asyncio.run(UserEnvironment(environment, executor).reset(1))


def step(result, executor=None):
    return asyncio.run(UserEnvironment(Maze(result=result), executor).step("go"))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("thirteen"), "Maze.step raised ValueError: thirteen"),
        (AssertionError(), "Maze.step raised AssertionError"),
        (SystemExit(2), "Maze.step raised SystemExit: 2"),  # as argparse does
        (StopIteration(), "Maze.step raised StopIteration"),  # as next() does
        (asyncio.CancelledError(), "Maze.step raised asyncio.exceptions.CancelledError"),
    ],
)
@pytest.mark.parametrize("threads", [0, 1])
def test_whatever_an_environment_raises_is_told_with_its_class_and_method(error, told, threads):
    """B63."""
    executor = ThreadPoolExecutor(threads) if threads else None
    with pytest.raises(EpisodeError) as caught:
        step(error, executor)
    assert str(caught.value) == told
    assert caught.value.__cause__ is error


def test_an_environment_that_cannot_be_made_is_told_with_what_was_to_make_it():
    for make in (broken_maze, partial(broken_maze), partial(partial(broken_maze))):
        with pytest.raises(EpisodeError, match=r"^broken_maze\(\) raised OSError: no display$"):
            asyncio.run(UserEnvironment.make(make, None))


def test_an_environment_without_the_method_is_told():
    with pytest.raises(EpisodeError, match=r"^object\.reset raised AttributeError: 'object' object has no attribute 'reset'$"):
        reset(object())


@pytest.mark.parametrize("first", [("start", {}), None, b"start", "\ud800"])
def test_a_first_observation_that_is_no_text_is_refused(first):
    """Gymnasium returns (observation, info)."""
    with pytest.raises(
        EpisodeError, match=r"^Maze\.reset returned .* \(\w+\), expected the first observation, a str that UTF-8 can encode"
    ):
        reset(Maze(first))


def test_gymnasiums_five_values_are_shown_beside_what_was_expected():
    with pytest.raises(EpisodeError) as caught:
        step(("wall", 0.0, False, False, {}))
    assert str(caught.value) == (
        "Maze.step returned ('wall', 0.0, False, False, {}) (tuple), "
        "expected a StepResult(observation, reward, terminated, truncated, metrics)."
    )


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (StepResult(None, 0.0), r"None \(NoneType\), expected a str that UTF-8 can encode, as its observation"),
        (StepResult("\udcff", 0.0), r"expected a str that UTF-8 can encode, as its observation"),
        (StepResult("", None), r"None \(NoneType\), expected a finite float, or NaN for no verdict, as its reward"),
        (StepResult("", "1"), r"'1' \(str\), expected a finite float"),
        (StepResult("", -math.inf), r"-inf \(float\), expected a finite float"),
        (StepResult("", 1e39), r"1e\+39 \(float\), expected a finite float"),  # infinite as float32
        (StepResult("", 10**400), r"10+\.\.\.0+ \(int\), expected a finite float"),
        (StepResult("", 0.0, terminated=None), r"None \(NoneType\), expected a bool, as its terminated"),
        (StepResult("", 0.0, truncated=np.zeros(2)), r"\(ndarray\), expected a bool, as its truncated"),
        (StepResult("", 0.0, metrics=None), r"None \(NoneType\), expected finite floats by name, as its metrics"),
        (StepResult("", 0.0, metrics={"solved": "yes"}), r"\{'solved': 'yes'\} \(dict\), expected finite floats by name"),
        (StepResult("", 0.0, metrics={1: 1.0}), r"\{1: 1\.0\} \(dict\), expected finite floats by name"),
    ],
)
def test_a_field_of_another_type_is_shown_beside_what_was_expected(result, told):
    """B06: None is no reward; NaN is how one says that there was no verdict."""
    with pytest.raises(EpisodeError, match=r"^Maze\.step returned .*" + told):
        step(result)


def test_an_error_with_a_text_of_five_megabytes_is_cut_and_marked():
    """B69: a member's results keep why its episodes were lost."""
    with pytest.raises(EpisodeError) as caught:
        step(ValueError("x" * 5_000_000))
    told = str(caught.value)
    assert told.startswith("Maze.step raised ValueError: xxx")
    assert told.endswith("x ... (cut, 5000012 characters in all)")
    assert len(told) < 1100


def test_a_long_answer_is_not_told_whole():
    with pytest.raises(EpisodeError) as caught:
        step("x" * 100_000)
    assert len(str(caught.value)) < 200


def test_numpys_numbers_become_pythons():
    result = step(StepResult("go on", np.float32(0.5), np.bool_(True), metrics={"solved": np.int64(1), "lost": True}))
    assert result == StepResult("go on", 0.5, True, False, {"solved": 1.0, "lost": 1.0})
    assert [type(value) for value in (result.reward, result.terminated, *result.metrics.values())] == [float, bool, float, float]


def test_no_verdict_is_a_reward():
    assert math.isnan(step(StepResult("", math.nan)).reward)
