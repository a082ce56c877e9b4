import asyncio
import threading
import time
from typing import ClassVar

import numpy as np
import pytest

from pbt_agents.config import RolloutConfig
from pbt_agents.environment import StepResult
from pbt_agents.errors import EngineDiedError, EngineError, EpisodeError, NoExperienceError
from pbt_agents.rollout.episode import Limits, play
from pbt_agents.rollout.renderer import ChatRenderer
from pbt_agents.rollout.worker import InFlight, RolloutWorker, Task
from pbt_agents.testing.character_tokenizer import CharacterTokenizer, ids
from pbt_agents.types import Completion, PolicyId, PolicySpan

RENDERER = ChatRenderer(CharacterTokenizer(), "toy")


class ScriptedEngine:
    """Answers `action`, and keeps what it was asked. Each call is one policy version later."""

    def __init__(self, action="go$", error=None):
        self.action, self.error = action, error
        self.prompts, self.agents, self.samplings, self.salts = [], [], [], []

    async def generate(self, agent, prompt_ids, sampling, salt=None):
        await asyncio.sleep(0)
        self.prompts.append("".join(map(chr, prompt_ids)))
        self.agents.append(agent)
        self.samplings.append(sampling)
        self.salts.append(salt)
        if self.error:
            raise self.error
        action = ids(self.action)[: sampling.max_tokens]
        spans = (PolicySpan(0, len(action), PolicyId(agent or "", 0, len(self.prompts))),)
        return Completion(action, np.full(len(action), -0.5, np.float32), "stop", spans)

    async def load_adapter(self, adapter):
        return adapter.policy

    async def check_health(self):
        return {}

    async def close(self):
        pass


class Countdown:
    """Ends after three turns; rewards 1 at the end. The seed 13 breaks it."""

    def reset(self, seed):
        self.seed, self.left = seed, 3
        return "s"

    def step(self, action):
        if self.seed == 13:
            raise ValueError("thirteen")
        self.left -= 1
        return StepResult(
            str(self.left), float(self.left == 0), terminated=self.left == 0, metrics={"solved": 1.0} if not self.left else {}
        )


def episode(engine, seed=1, budget=400, renderer=RENDERER):
    return asyncio.run(play(Countdown, engine, renderer, "agent0", seed, Limits(8, budget), 1.0))


def text(token_ids):
    return "".join(map(chr, token_ids))


def test_the_tokens_of_a_turn_are_a_prefix_of_those_of_the_next():
    """B18: ids sampled are kept as ids."""
    engine = ScriptedEngine()
    trajectory = episode(engine)
    assert engine.prompts == ["<s>@", "<s>@go$<2>@", "<s>@go$<2>@go$<1>@"]
    assert text(trajectory.token_ids) == "<s>@go$<2>@go$<1>@go$"
    assert trajectory.stop_reason == "terminated"
    assert trajectory.metrics == {"solved": 1.0}


def test_an_action_is_continued_and_kept_as_it_was_sampled():
    """B18: two ids whose text has a shorter encoding stay two."""
    engine = ScriptedEngine()
    trajectory = episode(engine, renderer=ChatRenderer(CharacterTokenizer(merged="go"), "toy"))
    assert engine.prompts[1:] == ["<s>@go$<2>@", "<s>@go$<2>@go$<1>@"]
    assert [text(turn.action_ids) for turn in trajectory.turns] == ["go$"] * 3


def test_spans_and_mask_cover_exactly_the_sampled_tokens():
    """B20 and B28: each token knows its policy, and the environment's tokens have none."""
    trajectory = episode(ScriptedEngine())
    covered = np.zeros(len(trajectory.token_ids), bool)
    for span in trajectory.policy_spans:
        covered[span.start : span.stop] = True
    np.testing.assert_array_equal(covered, trajectory.loss_mask)
    assert [span.policy.version for span in trajectory.policy_spans] == [1, 2, 3]
    assert trajectory.oldest_version == 1


def test_an_episode_stops_at_its_token_budget_and_says_so():
    engine = ScriptedEngine()
    trajectory = episode(engine, budget=13)
    assert trajectory.stop_reason == "length"
    assert text(trajectory.token_ids) == "<s>@go$<2>@go"
    assert engine.samplings[1].max_tokens == 2


def test_every_sampling_field_is_sent():
    """B13: nothing is left for the engine to fill in."""
    engine = ScriptedEngine()
    episode(engine)
    assert (engine.samplings[0].max_tokens, engine.samplings[0].temperature) == (8, 1.0)
    assert engine.samplings[0].stop_token_ids == (ord("$"),)


def test_an_environment_that_raises_costs_its_episode_with_the_reason():
    """B63."""
    with pytest.raises(EpisodeError, match=r"Countdown\.step raised ValueError: thirteen"):
        episode(ScriptedEngine(), seed=13)


class Harness:
    """A worker on scripted engines, whose groups are kept. `room` and `deliver` stand for a buffer of `limit` groups."""

    def __init__(self, engines=None, make=Countdown, limit=6, renderer=RENDERER, room=None, deliver=None, **config):
        self.groups, self.enough, self.limit = [], threading.Event(), limit
        self.engines = engines or [ScriptedEngine()]
        task = Task("agent0", "toy", make, RolloutConfig(**config))
        self.worker = RolloutWorker(task, self.connect, renderer, room or self.room, deliver or self.deliver)

    async def connect(self):
        return self.engines

    def room(self, in_flight):
        return self.limit - len(self.groups) - in_flight

    def deliver(self, group):
        self.groups.append(group)
        if len(self.groups) == self.limit:
            self.enough.set()

    def wait(self, condition):
        for _ in range(3000):
            if condition():
                return
            self.worker.run(asyncio.sleep(0.01))
        pytest.fail("waited for 30 s")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.worker.close()


def test_groups_are_complete_named_by_lineage_and_never_more_than_there_is_room_for():
    with Harness(group_size=4, groups_in_flight=3) as harness:
        harness.worker.start(2, np.random.default_rng(0))
        assert harness.enough.wait(10)
        harness.worker.stop()
    assert {len(group.trajectories) for group in harness.groups} == {4}
    assert sorted(group.group_id for group in harness.groups) == [f"agent0.2.{number}" for number in range(6)]
    assert harness.worker.stats()["rollout/episodes"] == 24


def test_the_attempts_of_a_group_play_its_task():
    class Numbered(Countdown):
        def reset(self, seed):
            super().reset(seed)
            return str(seed)

    with Harness(make=Numbered, group_size=4, groups_in_flight=1, limit=2) as harness:
        harness.worker.start(0, np.random.default_rng(0))
        assert harness.enough.wait(10)
    for group in harness.groups:
        assert [text(trajectory.turns[0].observation_ids) for trajectory in group.trajectories] == [f"<{group.seed}>@"] * 4


def test_one_seed_gives_the_same_tasks_in_the_same_order():
    def tasks(seed):
        with Harness(groups_in_flight=1) as harness:
            harness.worker.start(0, np.random.default_rng(seed))
            assert harness.enough.wait(10)
        return [group.seed for group in harness.groups]

    assert tasks(5) == tasks(5) != tasks(6)


def test_an_aborted_episode_leaves_a_group_of_the_rest():
    """B30 and B63: three rows, not four with a zero."""

    class SecondBreaks(Countdown):
        made = 0

        def __init__(self):
            type(self).made += 1
            self.breaks = type(self).made % 4 == 2

        def step(self, action):
            if self.breaks:
                raise RuntimeError("sandbox lost")
            return super().step(action)

    with Harness(make=SecondBreaks, group_size=4, groups_in_flight=1) as harness:
        harness.worker.start(0, np.random.default_rng(0))
        assert harness.enough.wait(10)
    assert {len(group.trajectories) for group in harness.groups} == {3}
    assert harness.worker.stats()["rollout/aborted_EpisodeError"] == 6
    assert "sandbox lost" in str(harness.worker.last_abort)


def test_turns_of_an_episode_stay_on_one_engine_and_episodes_are_spread():
    engines = [ScriptedEngine(), ScriptedEngine()]
    with Harness(engines, group_size=4, groups_in_flight=1, limit=1) as harness:
        harness.worker.start(0, np.random.default_rng(0))
        assert harness.enough.wait(10)
    assert [len(engine.prompts) for engine in engines] == [6, 6]
    assert all(sum(prompt.count("$") == 2 for prompt in engine.prompts) == 2 for engine in engines)


def test_nothing_is_delivered_after_stop():
    """A clone drops what its replaced policy still had in flight."""
    asked, release = threading.Event(), threading.Event()

    class Slow(ScriptedEngine):
        async def generate(self, *args):
            asked.set()
            while not release.is_set():
                await asyncio.sleep(0.001)
            return await super().generate(*args)

    with Harness([Slow()], groups_in_flight=2) as harness:
        harness.worker.start(0, np.random.default_rng(0))
        assert asked.wait(10)
        harness.worker.stop()
        release.set()
        harness.wait(lambda: not harness.worker._groups)
        assert harness.groups == []


def test_what_is_in_flight_can_be_asked_from_another_thread():
    """B84: of four attempts at one task and an evaluation of five, the first attempt hangs."""
    release = threading.Event()

    class FirstHangs(ScriptedEngine):
        async def generate(self, *args):
            first, self.asked = not hasattr(self, "asked"), True
            answer = await super().generate(*args)
            while first and not release.is_set():
                await asyncio.sleep(0.001)
            return answer

    with Harness([FirstHangs()], group_size=4, groups_in_flight=1, limit=1) as harness:
        worker = harness.worker
        assert worker.in_flight() == InFlight(0, 0, 0.0)
        worker.start(0, np.random.default_rng(0))
        harness.wait(lambda: worker.in_flight().episodes == 1 and worker.in_flight().begun == 4)
        age = worker.in_flight().oldest_s

        async def evaluated():
            played = asyncio.ensure_future(worker._evaluate([1, 2, 3, 4, 13], Countdown, 1.0, "agent0"))
            while (seen := worker.in_flight()).begun == 4:
                await asyncio.sleep(0)
            await played
            return seen

        assert worker.run(evaluated()).begun == 9
        assert (worker.in_flight().episodes, worker.in_flight().begun) == (1, 4)
        assert worker.in_flight().oldest_s > age
        release.set()
        assert harness.enough.wait(10)
        harness.wait(lambda: worker.in_flight() == InFlight(0, 0, 0.0))


def ended(worker, kind):
    """What `check` raises, once it does."""
    try:
        worker.check()
    except kind:
        return True
    return False


def test_a_dead_engine_is_reported_and_not_counted_as_a_lost_episode():
    with Harness([ScriptedEngine(error=EngineDiedError("gone"))]) as harness:
        harness.worker.start(0, np.random.default_rng(0))
        harness.wait(lambda: ended(harness.worker, EngineDiedError))
        assert "rollout/aborted_EngineDiedError" not in harness.worker.stats()


def test_evaluation_plays_each_task_once_and_marks_lost_ones():
    with Harness() as harness:
        trajectories = harness.worker.evaluate([1, 13, 2], Countdown, 1.0, "agent0")
    assert [None if trajectory is None else trajectory.score for trajectory in trajectories] == [1.0, None, 1.0]


def test_the_salt_follows_the_episode_only_when_asked():
    """B37: by default the engine keys its cache with the whole PolicyId."""
    for choice, expected in (("turn", {None}), ("episode", {"agent0.0.0.0", "agent0.0.0.1"})):
        engine = ScriptedEngine()
        with Harness([engine], group_size=2, groups_in_flight=1, limit=1, prefix_salt=choice) as harness:
            harness.worker.start(0, np.random.default_rng(0))
            assert harness.enough.wait(10)
        assert set(engine.salts) == expected


def test_an_agent_that_the_engine_refuses_again_and_again_says_so_and_does_not_hammer():
    """A diverged adapter is refused at once; without a pause the worker would ask thousands of times."""
    engine = ScriptedEngine(error=EngineError("agent0 has diverged"))
    with Harness([engine], group_size=2, groups_in_flight=2) as harness:
        harness.worker.start(0, np.random.default_rng(0))
        harness.wait(lambda: harness.worker.stats().get("rollout/groups_dropped", 0) >= 6)
        with pytest.raises(NoExperienceError, match=r"groups in a row were lost.*has diverged"):
            harness.worker.check()
        assert len(engine.prompts) < 50
        engine.error = None
        harness.worker.stop()
        harness.worker.start(1, np.random.default_rng(0))
        harness.worker.check()


def test_an_environment_that_cannot_be_made_is_lost_experience_with_its_own_words_as_the_reason():
    """B63. A broken constructor must not spin, and must not hide."""
    made = []

    def make():
        made.append(1)
        raise OSError("no display")

    with Harness(make=make, group_size=2, groups_in_flight=2) as harness:
        harness.worker.start(0, np.random.default_rng(0))
        harness.wait(lambda: ended(harness.worker, NoExperienceError))
        with pytest.raises(NoExperienceError, match=r"the last to: make\(\) raised OSError: no display") as caught:
            harness.worker.check()
        assert isinstance(caught.value.__cause__.__cause__, OSError)
        assert len(made) < 50


def test_an_environment_that_answers_as_gymnasium_does_is_lost_experience_that_says_so():
    class Gymnasium(Countdown):
        def step(self, action):
            return "obs", 0.0, False, False, {}

    with Harness(make=Gymnasium, group_size=2) as harness:
        harness.worker.start(0, np.random.default_rng(0))
        harness.wait(lambda: ended(harness.worker, NoExperienceError))
        with pytest.raises(
            NoExperienceError, match=r"Gymnasium.step returned \('obs', 0.0, False, False, \{\}\) \(tuple\), expected a Step"
        ):
            harness.worker.check()
        assert harness.worker.evaluate([1, 2], Gymnasium, 1.0, "agent0") == [None, None]


class Fault(Exception):
    """Of our own code."""


def fails(*_):
    raise Fault("ours")


class FaultyRenderer(ChatRenderer):
    def text(self, action_ids):
        raise Fault("ours")


@pytest.mark.parametrize(
    "faulty",
    [
        {"renderer": FaultyRenderer(CharacterTokenizer(), "toy")},
        {"engines": [ScriptedEngine(error=Fault("ours"))]},
        {"room": fails},
        {"deliver": fails},
    ],
    ids=["tokenizer", "engine", "room", "deliver"],
)
def test_a_fault_of_our_own_ends_the_rollouts_and_is_raised_to_who_asks(faulty, caplog):
    with Harness(**faulty) as harness:
        harness.worker.start(0, np.random.default_rng(0))
        harness.wait(lambda: ended(harness.worker, Fault))
    assert caplog.text == ""


def test_a_fault_of_our_own_ends_an_evaluation():
    with Harness(renderer=FaultyRenderer(CharacterTokenizer(), "toy")) as harness, pytest.raises(Fault):
        harness.worker.evaluate([1, 2], Countdown, 1.0, "agent0")


def test_the_first_error_of_a_group_ends_its_other_attempts():
    class FirstFails(ScriptedEngine):
        """The second attempt waits for ever, and tells when it is cancelled."""

        ended = threading.Event()

        async def generate(self, *args):
            self.prompts.append(args)
            if len(self.prompts) == 1:
                await asyncio.sleep(0)
                raise Fault("ours")
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()

    engine = FirstFails()
    with Harness([engine], group_size=2, groups_in_flight=1) as harness:
        harness.worker.start(0, np.random.default_rng(0))
        assert engine.ended.wait(10)
        harness.wait(lambda: ended(harness.worker, Fault))


class Stuck(Countdown):
    """Its steps return when the test is over."""

    over = threading.Event()

    def step(self, action):
        self.over.wait(30)
        return super().step(action)


@pytest.fixture
def stuck():
    Stuck.over = threading.Event()
    yield Stuck
    Stuck.over.set()


def test_groups_that_run_out_of_time_are_lost_experience(stuck):
    """B30 and B60: hung steps may hold every thread."""
    with Harness(make=stuck, group_size=2, groups_in_flight=3, group_timeout_s=0.05, environment_threads=1) as harness:
        harness.worker.start(0, np.random.default_rng(0))
        harness.wait(lambda: ended(harness.worker, NoExperienceError))
        with pytest.raises(NoExperienceError, match=r"a group of 2 attempts took longer than group_timeout_s, 0\.05 s"):
            harness.worker.check()
        assert harness.worker.stats()["rollout/groups_timed_out"] >= 6


def test_steps_that_hang_do_not_hold_the_threads_of_later_episodes(stuck):
    """B60: the pool is as large afterwards."""
    with Harness(make=stuck, group_timeout_s=0.05, environment_threads=1) as harness:
        assert harness.worker.evaluate([1], stuck, 1.0, "agent0") == [None]
        assert harness.worker.evaluate([1], Countdown, 1.0, "agent0")[0].score == 1.0


def test_an_evaluation_episode_that_runs_out_of_time_is_lost_and_the_others_count(stuck):
    """B60: no verdict, which is not 0."""
    made = iter([stuck, Countdown])
    with Harness(group_timeout_s=0.2, environment_threads=2) as harness:
        lost, played = harness.worker.evaluate([1, 2], lambda: next(made)(), 1.0, "agent0")
        assert lost is None
        assert played.score == 1.0
        assert harness.worker.stats()["rollout/evaluation_episodes_timed_out"] == 1
        assert str(harness.worker.last_abort).startswith("an evaluation episode took longer than group_timeout_s, 0.2 s.")


class Judge:
    """Judges in the thread that it is asked in, and takes a moment for it."""

    asked_in: ClassVar[set[int]] = set()

    def reset(self, seed):
        return "2 + 2"

    def step(self, action):
        self.asked_in.add(threading.get_ident())
        time.sleep(0.002)
        return StepResult("", float(action.strip("$") == "go"), terminated=True)


@pytest.mark.parametrize("threads", [0, 4])
def test_an_answer_is_judged_alike_in_the_loop_and_in_threads_and_two_hundred_at_once_have_no_false_zero(threads):
    """B60: the time that an answer waits for a thread is not the judge's."""
    Judge.asked_in.clear()
    with Harness(make=Judge, environment_threads=threads) as harness:
        [alone] = harness.worker.evaluate([1], Judge, 1.0, "agent0")
        together = harness.worker.evaluate(list(range(200)), Judge, 1.0, "agent0")
        assert (harness.worker._thread.ident in Judge.asked_in) == (threads == 0)
    assert alone.score == 1.0
    assert [trajectory.score for trajectory in together] == [1.0] * 200
    assert len(Judge.asked_in) == max(threads, 1)


def test_an_evaluation_may_be_asked_for_inside_a_running_loop_and_twice_and_leaves_no_thread():
    """B87."""
    before = set(threading.enumerate())

    async def cell():
        with Harness(environment_threads=2) as harness:
            return harness.worker.evaluate([1, 2], Countdown, 1.0, "agent0")

    for _ in range(2):
        assert [trajectory.score for trajectory in asyncio.run(cell())] == [1.0, 1.0]
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert not set(threading.enumerate()) - before


def test_a_time_out_that_is_not_ours_is_not_taken_for_a_slow_episode():
    with Harness([ScriptedEngine(error=TimeoutError("of a socket"))]) as harness:
        harness.worker.start(0, np.random.default_rng(0))
        harness.wait(lambda: ended(harness.worker, TimeoutError))
        assert "rollout/groups_timed_out" not in harness.worker.stats()


def test_new_settings_hold_from_the_next_episode_on():
    engine = ScriptedEngine()
    with Harness([engine], max_action_tokens=8, max_episode_tokens=40) as harness:
        for tokens, room in ((8, 40), (5, 40), (5, 6)):
            harness.worker.config = RolloutConfig(max_action_tokens=tokens, max_episode_tokens=room)
            harness.worker.evaluate([1], Countdown, 1.0, "agent0")
    assert [sampling.max_tokens for sampling in engine.samplings] == [8, 8, 8, 5, 5, 5, 2]
