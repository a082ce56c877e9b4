"""The user's environment as an episode meets it: whatever it does wrong costs that episode, and is told in its own names.

Owns what an environment may return. What one is, is said in pbt_agents/environment.py.
"""

import asyncio
import reprlib
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

import numpy as np

from pbt_agents.environment import Environment, StepResult
from pbt_agents.errors import EpisodeError

Value = TypeVar("Value")
_LARGEST = float(np.finfo(np.float32).max)
"""Rewards are kept as float32."""
_TOLD = 1000
"""Characters of an error."""


class UserEnvironment:
    """Its code runs in a thread of `executor`, where there is one, since it may be slow. Each method raises EpisodeError."""

    def __init__(self, environment: Environment, executor: Executor | None) -> None:
        self._environment, self._executor = environment, executor

    @classmethod
    async def make(cls, make_environment: Callable[[], Environment], executor: Executor | None) -> "UserEnvironment":
        return cls(await _call(executor, f"{_name(make_environment)}()", make_environment), executor)

    async def reset(self, seed: int) -> str:
        method = self._method("reset")
        observation = await _call(self._executor, method, lambda: self._environment.reset(seed))
        if not _is_text(observation):
            raise _wrong(method, observation, "the first observation, a str that UTF-8 can encode")
        return observation

    async def step(self, action: str) -> StepResult:
        """In the declared types exactly: numpy's numbers have become Python's."""
        method = self._method("step")
        result = await _call(self._executor, method, lambda: self._environment.step(action))
        _check(method, result)
        metrics = {name: float(value) for name, value in result.metrics.items()}
        return StepResult(result.observation, float(result.reward), bool(result.terminated), bool(result.truncated), metrics)

    def _method(self, name: str) -> str:
        return f"{type(self._environment).__name__}.{name}"


async def _call(executor: Executor | None, name: str, call: Callable[[], Value]) -> Value:
    if executor is None:
        return _guarded(name, call)
    return await asyncio.get_running_loop().run_in_executor(executor, _guarded, name, call)


def _guarded(name: str, call: Callable[[], Value]) -> Value:
    """Nothing but EpisodeError leaves: a SystemExit would end the event loop of every episode, a StopIteration confuse it."""
    try:
        return call()
    except BaseException as error:
        raise EpisodeError(f"{name} raised {_told(error)}") from error


def _check(method: str, result: StepResult) -> None:
    if not isinstance(result, StepResult):
        raise _wrong(method, result, "a StepResult(observation, reward, terminated, truncated, metrics)")
    fields = (
        ("observation", _is_text(result.observation), "a str that UTF-8 can encode"),
        ("reward", _is_number(result.reward), "a finite float, or NaN for no verdict"),
        ("terminated", _is_flag(result.terminated), "a bool"),
        ("truncated", _is_flag(result.truncated), "a bool"),
        ("metrics", _are_metrics(result.metrics), "finite floats by name"),
    )
    for field, holds, expected in fields:
        if not holds:
            raise _wrong(method, getattr(result, field), f"{expected}, as its {field}")


def _is_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_number(value: object) -> bool:
    """Finite or NaN, as float32 too."""
    return isinstance(value, int | float | np.integer | np.floating) and not (value > _LARGEST or value < -_LARGEST)


def _is_flag(value: object) -> bool:
    return isinstance(value, bool | np.bool_)


def _are_metrics(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) and _is_number(number) for name, number in value.items())


def _wrong(method: str, returned: object, expected: str) -> EpisodeError:
    return EpisodeError(f"{method} returned {reprlib.repr(returned)} ({type(returned).__name__}), expected {expected}.")


def _told(error: BaseException) -> str:
    """`ValueError: thirteen`, or `AssertionError` where it says no more. What is long is cut, since results and logs keep it."""
    whole = "".join(traceback.format_exception_only(error)).strip()
    return whole if len(whole) <= _TOLD else f"{whole[:_TOLD]} ... (cut, {len(whole)} characters in all)"


def _name(make: Callable[[], object]) -> str:
    """What the user wrote, without the arguments that were bound to it."""
    function: object = make
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", type(function).__name__)
