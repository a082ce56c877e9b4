"""Scores of finished adapters, on an engine without a model and tasks that come to what they are told."""

import math
from collections import Counter, defaultdict
from types import SimpleNamespace

import pytest
import torch

from pbt_agents import evaluation
from pbt_agents.config import AgentConfig, ModelConfig
from pbt_agents.engine import SlotTensor
from pbt_agents.environment import StepResult
from pbt_agents.errors import EngineDiedError, EpisodeError, GuardError
from pbt_agents.evaluation import Evaluator, Scores
from pbt_agents.models import resolve_model
from pbt_agents.testing.fake_engine import FakeEngine
from pbt_agents.trainer.lora import adapter_tensors, build_policy, save_adapter

LOST = "lost"


class Told:
    """One turn, for this reward."""

    def __init__(self, reward):
        self.reward = reward

    def reset(self, seed):
        if self.reward == LOST:
            raise ValueError("no task today")
        return "go"

    def step(self, action):
        return StepResult("", self.reward, terminated=True)


@pytest.fixture(scope="module")
def model():
    return build_policy(resolve_model("tiny"), ModelConfig(), seed=0)


@pytest.fixture
def engine(model):
    places = [name.split(".lora_") for name in adapter_tensors(model)]
    shapes = [tuple(tensor.shape) for tensor in adapter_tensors(model).values()]
    modules = [module.removeprefix("base_model.model.") for module, _ in places]
    matrices = [matrix[0].lower() for _, matrix in places]
    layout = tuple(SlotTensor(module, 0, matrix, shape) for module, matrix, shape in zip(modules, matrices, shapes, strict=True))
    return FakeEngine(("agent0",), layout, lambda prompt, sampling: [sampling.stop_token_ids[0]])


@pytest.fixture
def scoring(engine, tmp_path, monkeypatch):
    """An evaluator whose episodes, one after the other, come to the rewards given."""

    async def connect(agent):
        return [engine]

    rewards = []
    monkeypatch.setattr(evaluation, "environment_maker", lambda config, split: lambda: Told(rewards.pop(0)))
    fleet = SimpleNamespace(folder=str(tmp_path), layout=engine.layout(), connect=connect)
    with Evaluator(fleet, AgentConfig(), resolve_model("tiny")) as evaluator:

        def evaluator_for(*told):
            rewards[:] = told
            return evaluator

        yield evaluator_for


def saved(model, folder, value=0.5):
    """An adapter with this value in its first place."""
    folder.mkdir()
    with torch.no_grad():
        next(iter(adapter_tensors(model).values()))[0, 0] = value
    save_adapter(model, folder)
    return folder


def test_a_lost_episode_is_in_no_mean_and_is_counted(scoring, caplog):
    """B06, B63: sampled 1, 0 and 0.5; greedy three times 1."""
    scores = scoring(1.0, LOST, 0.0, 0.5, 1.0, 1.0, LOST, 1.0).base("test", 4)
    assert scores == Scores(4, 0.5, pytest.approx(0.5 / math.sqrt(3)), 1.0, 0.0, lost=2)
    assert caplog.messages[0].startswith("1 of 4 evaluation episodes were lost, the last to: ")
    assert caplog.messages[0].endswith("no task today")


def test_a_reward_without_verdict_is_counted_as_lost(scoring):
    """B06."""
    scores = scoring(1.0, math.nan, 0.0, 0.5, 1.0, 1.0, 1.0, 1.0).base("test", 4)
    assert (scores.sampled, scores.lost) == (0.5, 1)


def test_where_most_episodes_are_lost_there_is_no_score(scoring, model, tmp_path):
    """B63."""
    assert math.isnan(scoring(LOST, LOST, LOST, 1.0).sampled(saved(model, tmp_path / "adapter"), "validation", 4))


def test_an_adapter_that_is_not_finite_is_refused_and_the_next_one_is_scored(scoring, engine, model, tmp_path):
    """B15."""
    with pytest.raises(GuardError, match="not finite"):
        scoring(1.0, 1.0).sampled(saved(model, tmp_path / "diverged", math.inf), "validation", 2)
    assert engine.slots == {}
    assert scoring(1.0, 0.0).sampled(saved(model, tmp_path / "sound", 0.5), "validation", 2) == 0.5
    assert 0.5 in engine.slots["agent0"]


def test_a_dead_engine_is_no_lost_episode(scoring, engine):
    engine.die()
    with pytest.raises(EngineDiedError):
        scoring(1.0, 1.0, 1.0, 1.0).base("test", 2)


@pytest.mark.parametrize(("lost", "end"), [(0, "±0.010"), (3, "±0.010, 3 of 512 episodes lost")])
def test_scores_tell_how_many_episodes_were_lost_if_any_was(lost, end):
    assert str(Scores(256, 0.5, 0.02, 0.4, 0.01, lost)) == f"sampled 0.500 ±0.020, greedy 0.400 {end}"


def test_single_scores_come_task_by_task_with_nan_where_one_was_lost(scoring, engine, model, tmp_path):
    """B06."""
    folder = saved(model, tmp_path / "adapter")
    scores = scoring(1.0, LOST, 0.25).scores(folder, "validation", 3, 0.0)
    assert scores.tolist() == [1.0, pytest.approx(math.nan, nan_ok=True), 0.25]
    assert {(agent, sampling.temperature) for agent, _, sampling, _ in engine.asked} == {("agent0", 0.0)}
    scoring(1.0, 1.0).scores(None, "validation", 2, 1.0)
    assert {(agent, sampling.temperature) for agent, _, sampling, _ in engine.asked[2:]} == {(None, 1.0)}


def test_many_tasks_are_played_some_at_a_time_in_their_order(scoring, monkeypatch):
    monkeypatch.setattr(evaluation, "_AT_ONCE", 2)
    assert scoring(1.0, 0.0, 0.5, 0.25, 0.75).scores(None, "test", 5, 1.0).tolist() == [1.0, 0.0, 0.5, 0.25, 0.75]


def test_one_episode_is_watched_and_its_loss_is_told(scoring):
    evaluator = scoring()
    assert evaluator.watch(None, lambda: Told(0.5), 7, 0.0).score == 0.5
    with pytest.raises(EpisodeError, match="no task today"):
        evaluator.watch(None, lambda: Told(LOST), 7, 0.0)


def test_scores_are_of_the_split_that_was_asked_for_and_no_seed_is_in_two(scoring, monkeypatch):
    played = defaultdict(set)

    def maker(config, split):
        class Noted(Told):
            def reset(self, seed):
                played[split].add(seed)
                return super().reset(seed)

        return lambda: Noted(1.0)

    monkeypatch.setattr(evaluation, "environment_maker", maker)
    evaluator = scoring()
    for split in ("validation", "test"):
        evaluator.base(split, 8)
        assert len(played[split]) == 8
    assert set(played) == {"validation", "test"}
    assert not played["validation"] & played["test"]


def test_base_and_adapter_are_each_scored_sampled_and_greedy(scoring, engine, model, tmp_path):
    scoring(*[1.0] * 4).base("test", 2)
    scoring(*[1.0] * 4).adapter(saved(model, tmp_path / "adapter"), "test", 2)
    asked = Counter((agent, sampling.temperature) for agent, _, sampling, _ in engine.asked)
    assert asked == {(None, 1.0): 2, (None, 0.0): 2, ("agent0", 1.0): 2, ("agent0", 0.0): 2}
