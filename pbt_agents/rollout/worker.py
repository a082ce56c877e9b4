"""The rollout side of one agent: keeps groups in flight, in an event loop of its own thread.

Owns which episodes are played and what a lost one costs. Where finished groups go, and how many may be started, are
callables given by the pipeline.
"""

import asyncio
import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from pbt_agents.config import RolloutConfig
from pbt_agents.engine import RolloutEngine
from pbt_agents.environment import Environment
from pbt_agents.errors import EngineDiedError, EngineError, EpisodeError, NoExperienceError
from pbt_agents.rollout.episode import Limits, Replay, play, replay
from pbt_agents.rollout.renderer import ChatRenderer
from pbt_agents.types import Group, Trajectory, group_prefix

Value = TypeVar("Value")
_IDLE_S = 0.005
"""Between looks for room when nothing is in flight."""
_LOOK_S = 0.2
"""Between looks for a reason to stop an evaluation."""
_LOST_GROUPS = 6
"""In a row: not an accident any more."""
_PAUSE_S = 0.2
"""After a lost group, so that an engine that refuses at once is not asked without end."""


@dataclass(frozen=True)
class Task:
    """What a worker plays: the agent, its environments, and the limits of an episode."""

    agent: str
    environment: str
    make_environment: Callable[[], Environment]
    config: RolloutConfig


@dataclass(frozen=True)
class InFlight:
    """Episodes, those of an evaluation among them."""

    episodes: int
    """That are being played."""
    begun: int
    """In the groups and evaluations that are not finished, those that are over among them."""
    oldest_s: float
    """Since the oldest of those being played began; 0 when there is none."""


class RolloutWorker:
    """Plays groups without a pause from `start` to `close`.

    `room(in_flight)` says how many more groups may be started; `deliver(group)` takes a finished one. Both are called from the
    worker's thread and must return at once.
    """

    def __init__(
        self,
        task: Task,
        connect: Callable[[], Awaitable[Sequence[RolloutEngine]]],
        renderer: ChatRenderer,
        room: Callable[[int], int],
        deliver: Callable[[Group], None],
    ) -> None:
        self._task, self._renderer, self._room, self._deliver = task, renderer, room, deliver
        self._executor = self._threads()
        self._counts: dict[str, float] = defaultdict(float)
        self._episodes_on: Counter[int] = Counter()
        self._playing: list[float] = []
        """When each episode in flight began, the oldest first."""
        self._evaluated = 0
        """Episodes of the evaluations under way."""
        self._groups: set[asyncio.Task[None]] = set()
        self._seeds: np.random.Generator | None = None
        self._error: Exception | None = None
        self.last_abort: Exception | None = None
        """Why the latest lost episode was lost."""
        self._lost_groups = 0
        """Since the last one that was not."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollout", daemon=True)
        self._thread.start()
        self.engines = self.run(_gather(connect))
        self._feeder = self.submit(self._feed())

    def run(self, coroutine: Coroutine[Any, Any, Value], timeout_s: float | None = None) -> Value:
        """Run a coroutine in the worker's loop from another thread, and wait for it."""
        future = self.submit(coroutine)
        try:
            return future.result(timeout_s)
        except BaseException:  # an interruption of who waits, too
            future.cancel()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, Value]) -> Future[Value]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def start(self, lineage: int, seeds: np.random.Generator) -> None:
        """Play from now on, with task seeds from `seeds`; groups are named by `lineage`."""
        self.run(self._start(lineage, seeds))

    @property
    def config(self) -> RolloutConfig:
        return self._task.config

    @config.setter
    def config(self, config: RolloutConfig) -> None:
        """From the next episode on."""
        self._task = replace(self._task, config=config)

    def stop(self) -> None:
        """Drop what is in flight: it belongs to a policy that was replaced."""
        self.run(self._stop())

    def evaluate(
        self,
        seeds: Sequence[int],
        make_environment: Callable[[], Environment],
        temperature: float,
        agent: str | None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[Trajectory | None] | None:
        """Play each task once with the newest adapter of `agent` (the base model for None).

        None where the episode was lost, as it is when it takes longer than a group may; None for all when told to stop meanwhile.
        """
        played = self.submit(self._evaluate(seeds, make_environment, temperature, agent))
        try:
            while not wait([played], _LOOK_S).done:
                if should_stop():
                    return None
            return played.result()
        finally:
            played.cancel()

    def replay(self, seed: int, actions: Sequence[str]) -> Replay:
        """What a fresh environment says to these actions. Raises EpisodeError when it fails, or takes longer than a group may."""
        return self.run(self._replay(seed, actions))

    def check(self) -> None:
        """Raise what ended the rollouts, if anything did; NoExperienceError while group after group is lost."""
        if self._error is not None:
            raise self._error
        if self._lost_groups >= _LOST_GROUPS:
            raise NoExperienceError(f"{self._lost_groups} groups in a row were lost, the last to: {self.last_abort}") from self.last_abort

    def stats(self) -> dict[str, float]:
        """Totals since the start of this process."""
        return {f"rollout/{name}": count for name, count in dict(self._counts).items()}

    def in_flight(self) -> InFlight:
        playing, groups = self._playing[:], len(self._groups)
        oldest_s = time.perf_counter() - playing[0] if playing else 0.0
        return InFlight(len(playing), groups * self._task.config.group_size + self._evaluated, oldest_s)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self.stop()
        self._feeder.cancel()
        self.run(_close(self.engines))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._executor:
            self._executor.shutdown(wait=False, cancel_futures=True)

    async def _start(self, lineage: int, seeds: np.random.Generator) -> None:
        self._lost_groups = 0
        self._names = (f"{group_prefix(self._task.agent, lineage)}{number}" for number in itertools.count())
        self._seeds = seeds

    async def _stop(self) -> None:
        self._seeds = None
        for group in self._groups:
            group.cancel()
        await asyncio.gather(*self._groups, return_exceptions=True)

    async def _feed(self) -> None:
        try:
            while self._error is None:
                started = self._start_groups()
                if not started and self._groups:
                    await asyncio.wait(self._groups, return_when=asyncio.FIRST_COMPLETED, timeout=_IDLE_S * 10)
                elif not started:
                    await asyncio.sleep(_IDLE_S)
        except Exception as error:
            self._end(error)

    def _start_groups(self) -> int:
        if self._seeds is None:
            return 0
        in_flight = len(self._groups)
        count = min(self._task.config.groups_in_flight - in_flight, self._room(in_flight))
        for _ in range(count):
            seed = int(self._seeds.integers(1 << 62))
            group = asyncio.ensure_future(self._group(next(self._names), seed))
            self._groups.add(group)
            group.add_done_callback(self._groups.discard)
        return max(count, 0)

    async def _group(self, name: str, seed: int) -> None:
        try:
            trajectories = await self._attempts(name, seed)
            if len(trajectories) < 2:
                self._lost_groups += 1
                await asyncio.sleep(_PAUSE_S)
                return
            self._counts["groups"] += 1
            self._lost_groups = 0
            self._deliver(Group(name, self._task.environment, seed, tuple(trajectories)))
        except Exception as error:  # a lost episode never comes this far: an engine is gone, or our own code is at fault
            self._end(error)

    async def _attempts(self, name: str, seed: int) -> list[Trajectory]:
        """Those at one task that were not lost; none when time ran out."""
        try:
            async with self._time_limit(f"a group of {self._task.config.group_size} attempts"):
                attempts = await _together([self._episode(seed, f"{name}.{i}") for i in range(self._task.config.group_size)])
        except EpisodeError as error:
            self._lose("groups_timed_out", error)
            return []
        trajectories = [trajectory for trajectory in attempts if trajectory is not None]
        if len(trajectories) < 2:
            self._counts["groups_dropped"] += 1
        return trajectories

    async def _episode(self, seed: int, salt: str) -> Trajectory | None:
        keep_cache = self._task.config.prefix_salt == "episode"
        temperature = self._task.config.temperature
        return await self._play(self._task.make_environment, seed, temperature, self._task.agent, salt if keep_cache else None)

    async def _evaluate(
        self, seeds: Sequence[int], make_environment: Callable[[], Environment], temperature: float, agent: str | None
    ) -> list[Trajectory | None]:
        self._evaluated += len(seeds)
        try:
            return await _together([self._play_in_time(make_environment, seed, temperature, agent) for seed in seeds])
        finally:
            self._evaluated -= len(seeds)

    async def _play_in_time(
        self, make_environment: Callable[[], Environment], seed: int, temperature: float, agent: str | None
    ) -> Trajectory | None:
        try:
            async with self._time_limit("an evaluation episode"):
                return await self._play(make_environment, seed, temperature, agent)
        except EpisodeError as error:
            self._lose("evaluation_episodes_timed_out", error)
            return None

    async def _replay(self, seed: int, actions: Sequence[str]) -> Replay:
        async with self._time_limit("an episode played again"):
            return await replay(self._task.make_environment, seed, actions, self._executor)

    @asynccontextmanager
    async def _time_limit(self, what: str) -> AsyncIterator[None]:
        """Raises EpisodeError when it is over. Steps that hang keep their threads for good, so that later ones get new threads."""
        seconds = self._task.config.group_timeout_s
        try:
            async with asyncio.timeout(seconds) as clock:
                yield
        except TimeoutError as error:
            if not clock.expired():
                raise
            self._executor = self._threads()
            raise EpisodeError(f"{what} took longer than group_timeout_s, {seconds:g} s. Raise it, or find what hangs.") from error

    def _threads(self) -> ThreadPoolExecutor | None:
        count = self._task.config.environment_threads
        return ThreadPoolExecutor(count, "environment") if count else None

    def _lose(self, counter: str, error: Exception) -> None:
        self._counts[counter] += 1
        self.last_abort = error

    def _end(self, error: Exception) -> None:
        """No more groups: `check` raises the first such error."""
        self._error = self._error or error

    async def _play(
        self, make_environment: Callable[[], Environment], seed: int, temperature: float, agent: str | None, salt: str | None = None
    ) -> Trajectory | None:
        """One episode on the engine with the fewest; all its turns stay there, where its prefix is cached."""
        chosen = min(range(len(self.engines)), key=lambda i: self._episodes_on[i])
        self._episodes_on[chosen] += 1
        started = time.perf_counter()
        self._playing.append(started)
        limits = Limits(self._task.config.max_action_tokens, self._task.config.max_episode_tokens)
        try:
            trajectory = await play(
                make_environment,
                self.engines[chosen],
                self._renderer,
                agent,
                seed,
                limits,
                temperature,
                salt,
                self._executor,
            )
        except EngineDiedError:
            raise
        except (EpisodeError, EngineError) as error:  # a lost episode is data: count it and go on
            self._lose(f"aborted_{type(error).__name__}", error)
            return None
        finally:
            self._episodes_on[chosen] -= 1
            self._playing.remove(started)
            self._counts["episode_s"] += time.perf_counter() - started
        self._counts["episodes"] += 1
        self._counts["action_tokens"] += int(trajectory.loss_mask.sum())
        return trajectory


async def _gather(connect: Callable[[], Awaitable[Value]]) -> Value:
    return await connect()


async def _together(coroutines: Sequence[Coroutine[Any, Any, Value]]) -> list[Value]:
    """Their results, in order. The first error ends all of them."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def _close(engines: Sequence[RolloutEngine]) -> None:
    await asyncio.gather(*[engine.close() for engine in engines], return_exceptions=True)
