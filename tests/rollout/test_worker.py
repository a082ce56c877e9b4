import asyncio
import threading

import numpy as np
import pytest

from pbt_agents.config import RolloutConfig
from pbt_agents.environment import StepResult
from pbt_agents.errors import EngineDiedError, EngineError, EpisodeError, NoExperienceError
from pbt_agents.rollout.episode import Limits, play
from pbt_agents.rollout.renderer import ChatRenderer
from pbt_agents.rollout.worker import RolloutWorker, Task
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


def episode(engine, seed=1, budget=400):
    return asyncio.run(play(Countdown, engine, RENDERER, "agent0", seed, Limits(8, budget), 1.0))


def test_the_tokens_of_a_turn_are_a_prefix_of_those_of_the_next():
    """B18: ids sampled are kept as ids."""
    engine = ScriptedEngine()
    trajectory = episode(engine)
    assert engine.prompts == ["<s>@", "<s>@go$<2>@", "<s>@go$<2>@go$<1>@"]
    assert "".join(map(chr, trajectory.token_ids)) == "<s>@go$<2>@go$<1>@go$"
    assert trajectory.stop_reason == "terminated"
    assert trajectory.metrics == {"solved": 1.0}


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
    assert "".join(map(chr, trajectory.token_ids)) == "<s>@go$<2>@go"
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
    """A worker on scripted engines, whose groups are kept."""

    def __init__(self, engines=None, make=Countdown, limit=6, **config):
        self.groups, self.enough, self.limit = [], threading.Event(), limit
        self.engines = engines or [ScriptedEngine()]
        task = Task("agent0", "toy", make, RolloutConfig(**config))
        self.worker = RolloutWorker(task, self.connect, RENDERER, lambda in_flight: self.limit - len(self.groups) - in_flight, self.deliver)

    async def connect(self):
        return self.engines

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
    release = threading.Event()

    class Slow(ScriptedEngine):
        async def generate(self, *args):
            while not release.is_set():
                await asyncio.sleep(0.001)
            return await super().generate(*args)

    with Harness([Slow()], groups_in_flight=2) as harness:
        harness.worker.start(0, np.random.default_rng(0))
        harness.worker.stop()
        release.set()
        harness.worker.run(asyncio.sleep(0.05))
        assert harness.groups == []


def died(worker):
    try:
        worker.check()
    except EngineDiedError:
        return True
    return False


def test_a_dead_engine_is_reported_and_not_counted_as_a_lost_episode():
    with Harness([ScriptedEngine(error=EngineDiedError("gone"))]) as harness:
        harness.worker.start(0, np.random.default_rng(0))
        harness.wait(lambda: died(harness.worker))
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


def test_new_settings_hold_from_the_next_episode_on():
    engine = ScriptedEngine()
    with Harness([engine], max_action_tokens=8, max_episode_tokens=40) as harness:
        for tokens, room in ((8, 40), (5, 40), (5, 6)):
            harness.worker.config = RolloutConfig(max_action_tokens=tokens, max_episode_tokens=room)
            harness.worker.evaluate([1], Countdown, 1.0, "agent0")
    assert [sampling.max_tokens for sampling in engine.samplings] == [8, 8, 8, 5, 5, 5, 2]
