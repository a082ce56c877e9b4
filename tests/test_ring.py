"""The whole ring of one agent on real engines, without Ray."""

import asyncio
import math
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pbt_agents.config import AgentConfig, BufferConfig, EnvironmentConfig
from pbt_agents.environment import environment_maker
from pbt_agents.errors import GuardError
from pbt_agents.models import cache_bytes_per_token, resolve_model
from pbt_agents.ring import Place, Ring
from pbt_agents.rollout.engine_client import EngineClient
from pbt_agents.rollout.renderer import load_renderer
from pbt_agents.rollout.vllm_build import EngineSpec
from pbt_agents.testing.engine_process import engine_process
from pbt_agents.testing.tiny_model import BYTE_VOCABULARY, random_model

pytestmark = pytest.mark.slow

OTHER_WEIGHTS = ("another agent's", "those before the last step", "none")
SLOTS = ("synchronous", "asynchronous", "donor", "clone", "evaluated", *OTHER_WEIGHTS)


@contextmanager
def served(config, model_path, *agents):
    """An engine with a slot for each agent; yields what opens the ring of one of them."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        folder, tokens = Path(name), config.rollout.max_episode_tokens
        address, cache = f"ipc://{folder}/engine.sock", cache_bytes_per_token(model_path) * tokens * 16
        opened.enter_context(engine_process(EngineSpec(model_path, agents, config.model.lora_rank, tokens, kv_cache_bytes=cache), address))

        async def connect():
            return [await EngineClient.connect(address)]

        async def layout():
            (client,) = await connect()
            try:
                return await client.layout()
            finally:
                await client.close()

        def ring(agent, config):
            (folder / agent).mkdir()
            place = Place(agent, agents.index(agent), model_path, folder / agent, folder, trainers_at_once=1)
            made = Ring(place, config, asyncio.run(layout()), connect)
            opened.callback(made.close)
            made.start()
            return made

        yield ring


@pytest.fixture(scope="module")
def tiny():
    with served(AgentConfig(), resolve_model("tiny"), *SLOTS) as ring:
        yield ring


def train(ring, updates):
    rows = []
    while len(rows) < updates:
        row = ring.update(lambda: False)
        if row["trainer/stepped"]:
            rows.append(row)
    return rows


def test_a_synchronous_agent_trains_on_what_its_own_weights_sampled(tiny):
    """B12, B14: the ratio is 1 within 1e-3, and not exactly 1 everywhere, since two programs computed it."""
    rows = train(tiny("synchronous", AgentConfig().with_values({"window": 0, "learning_rate": 3e-3})), 4)
    for row in rows:
        assert row["trainer/lag_steps_max"] == 0
        assert math.log1p(-1e-3) < -row["trainer/log_ratio_abs_max"] < 0
        assert set(row["by_lag"]) == {"0"}


def test_an_asynchronous_agent_trains_on_stale_tokens_within_its_window_and_their_ratio_is_not_one(tiny):
    """B28: lag is counted from what the engine stamped."""
    rows = train(tiny("asynchronous", AgentConfig().with_values({"window": 4, "learning_rate": 3e-3, "max_reuse": 2})), 8)
    lags = {int(lag) for row in rows for lag in row["by_lag"]}
    assert max(lags) >= 2
    assert max(lags) <= 4
    stale = [stats["log_ratio_abs_mean"] for row in rows for lag, stats in row["by_lag"].items() if int(lag) >= 2]
    assert max(stale) > 1e-3


def test_a_clone_goes_on_from_its_donors_snapshot_with_its_own_values_and_samples_with_the_donors_weights(tiny, tmp_path):
    """B44 and B48: weights, moments and experience are the donor's, the values are not; the engine answers with them at once."""
    config = AgentConfig().with_values({"window": 4, "max_reuse": 2})
    donor, clone = tiny("donor", config), tiny("clone", config)
    train(donor, 3)
    train(clone, 1)
    state = donor.snapshot(tmp_path)
    lineage, own_updates = clone.lineage, clone.updates
    clone.restore(tmp_path, state, config.with_values({"learning_rate": 2e-4, "ratio_max": 2.5, "window": 8}))
    assert clone.trainer.checksum() == donor.trainer.checksum()
    assert clone.trainer.version == 3
    assert clone.lineage > lineage
    assert clone.in_use() == {"learning_rate": 2e-4, "ratio_max": 2.5, "window": 8}
    (row,) = train(clone, 1)
    assert (row["trainer/learning_rate"], row["trainer/ratio_max"]) == (2e-4, 2.5)
    assert clone.updates == own_updates + 1
    # What was sampled from the donor's version is on-policy for the clone: its weights are the same.
    assert all(stats["log_ratio_abs_mean"] < 1e-3 for lag, stats in row["by_lag"].items() if lag == "0")
    assert clone.evaluate(lambda: False)["evaluation_lost"] == 0


def test_an_evaluation_compares_engine_and_trainer_and_plays_again_what_was_trained_on(tiny):
    agent = tiny("evaluated", AgentConfig().with_values({"learning_rate": 3e-3, "evaluation_episodes": 8, "audited_trajectories": 5}))
    train(agent, 3)
    told = agent.evaluate(lambda: False)
    assert told["canary/tokens"] > 20
    assert 0 < told["canary/gap_mean"] < 1e-5
    assert (told["audit/agreed"], told["audit/not_reproducible"], told["audit/lost"]) == (5, 0, 0)


@pytest.mark.parametrize("weights", OTHER_WEIGHTS)
def test_an_engine_whose_slot_holds_other_weights_is_found_by_the_next_evaluation(tiny, weights):
    """B37, B39: it says that it has loaded what it was given, and goes on with something else."""
    agent = tiny(weights, AgentConfig().with_values({"learning_rate": 1e-3, "evaluation_episodes": 8}))
    train(agent, 2)
    slot = {name: tensor.detach().clone() for name, tensor in agent.trainer.adapter.items()}
    train(agent, 1)
    if weights != "those before the last step":
        rng = np.random.default_rng(0)
        for tensor in slot.values():
            tensor.copy_(torch.from_numpy(rng.normal(scale=0.1 if weights == "another agent's" else 0.0, size=tensor.shape)))
    agent.trainer.version += 1  # as if a step had been taken, and published
    agent.worker.run(agent._publisher.publish(slot, agent._policy()))
    with pytest.raises(GuardError, match=r"engine and trainer disagree on .* nat apart"):
        agent.evaluate(lambda: False)


def test_a_llama_with_another_tokenizer_and_full_prompts_trains_as_well(tmp_path):
    model_path = random_model(tmp_path, "llama", BYTE_VOCABULARY)
    # A random model finds no move, so a score only tells how many format errors fit into an episode. After three actions of
    # full length nothing fits any more, and after any shorter one a fourth does.
    environment = EnvironmentConfig("sudoku:hard", {"format_penalty": 0.1})
    renderer, task, action_tokens = load_renderer(model_path), environment_maker(environment, "train")(), 40
    opening = len(renderer.first(task.reset(0)))
    turn = action_tokens + len(renderer.later(task.step("no move").observation, np.zeros(1, np.int32)))
    settings = {"max_action_tokens": action_tokens, "max_episode_tokens": opening + 3 * turn, "group_size": 4, "groups_per_batch": 1}
    config = replace(AgentConfig(environment), buffer=BufferConfig(window=0)).with_values(settings)
    with served(config, model_path, "agent0") as ring:
        rows = train(ring("agent0", config), 2)
    assert max(row["trainer/log_ratio_abs_max"] for row in rows) < 1e-3
    assert np.isfinite([row["trainer/loss"] for row in rows]).all()
