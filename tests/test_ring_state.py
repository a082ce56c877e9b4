"""What a ring keeps, drops and refuses, on an engine without a model. On real engines it is tested in test_ring.py."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from pbt_agents.buffer.replay import SampleTimeoutError
from pbt_agents.config import AgentConfig
from pbt_agents.engine import SlotTensor
from pbt_agents.environment import environment_maker
from pbt_agents.errors import EngineError, GuardError, NothingToLearnError
from pbt_agents.models import resolve_model
from pbt_agents.ring import Place, Ring
from pbt_agents.testing.fake_engine import FakeEngine
from pbt_agents.testing.random_groups import random_group
from pbt_agents.trainer.lora import adapter_tensors, build_policy
from pbt_agents.turnstile import Turnstile
from pbt_agents.types import PolicyId

CONFIG = AgentConfig().with_values({"groups_per_batch": 1, "group_size": 2, "window": 4, "micro_batch_tokens": 256})


@pytest.fixture(scope="module")
def layout():
    """Every matrix of the adapter in a slot of its own."""
    model = build_policy(resolve_model("tiny"), CONFIG.model, seed=0)
    tensors = []
    for name, tensor in adapter_tensors(model).items():
        module, _, matrix = name.removeprefix("base_model.model.").partition(".lora_")
        tensors.append(SlotTensor(module, 0, matrix[0].lower(), tuple(tensor.shape)))
    return tuple(tensors)


class Served(FakeEngine):
    """Lives on when a client closes, as an engine behind a socket does."""

    async def close(self):
        pass


@pytest.fixture
def engine(layout):
    """Takes adapters, and lets every episode wait."""
    made = Served(("agent0", "agent1"), layout)
    made.hold()
    return made


@pytest.fixture
def ring(engine, layout, tmp_path):
    """Opens the ring of an agent, as a new process does; the one before is closed."""
    opened = {}

    async def connect():
        return [engine]

    def ring_of(agent="agent0", start=True):
        if agent in opened:
            opened[agent].close()
        folder = tmp_path / agent
        folder.mkdir(exist_ok=True)
        place = Place(agent, int(agent[-1]), resolve_model("tiny"), folder, tmp_path, trainers_at_once=1)
        opened[agent] = Ring(place, CONFIG, layout, connect)
        if start:
            opened[agent].start()
        return opened[agent]

    yield ring_of
    for one in opened.values():
        one.close()


def train(ring, updates, scores=(0.0, 1.0)):
    """So many updates on random groups; the rows."""
    rng, rows = np.random.default_rng(ring.updates), []
    for _ in range(updates):
        ring.buffer.append(random_group(rng, scores, turns=2, version=ring.trainer.version))
        rows.append(ring.update(lambda: False))
    return rows


def standing(ring):
    return ring.updates, ring.trainer.version, ring.lineage


def test_updates_and_version_go_on_in_a_new_process_and_the_lineage_is_another(ring, tmp_path):
    first = ring()
    train(first, 2)
    state = first.snapshot(tmp_path / "saved")
    assert standing(first) == (2, 2, 0)
    second = ring()
    second.restore(tmp_path / "saved", state, CONFIG)
    assert standing(second) == (2, 2, 2)  # it took lineage 1 when it began, before it knew of a snapshot
    train(second, 1)
    assert standing(second) == (3, 3, 2)


def test_a_clone_keeps_its_own_count_of_updates_also_in_a_new_process(ring, tmp_path):
    donor, clone = ring("agent0"), ring("agent1")
    train(donor, 3)
    train(clone, 1)
    state = donor.snapshot(tmp_path / "saved")
    clone.restore(tmp_path / "saved", state, CONFIG)
    assert standing(clone) == (1, 3, 1)
    clone = ring("agent1")
    clone.restore(tmp_path / "saved", state, CONFIG)
    assert standing(clone) == (1, 3, 3)


def test_the_count_of_updates_never_goes_back_to_that_of_an_older_snapshot(ring, tmp_path):
    agent = ring()
    train(agent, 1)
    older = agent.snapshot(tmp_path / "older")
    train(agent, 2)
    agent.snapshot(tmp_path / "newer")
    agent = ring()
    agent.restore(tmp_path / "older", older, CONFIG)
    assert (agent.updates, agent.trainer.version) == (3, 1)


def test_a_lineage_is_on_disk_before_an_engine_hears_of_it(ring, engine, monkeypatch):
    """B43: however a process ends, its lineage is never used again."""

    async def refuse(adapter):
        raise EngineError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(engine, "load_adapter", refuse)
        agent = ring(start=False)
        with pytest.raises(EngineError):
            agent.start()
    assert ring().lineage == 1
    assert engine.policies["agent0"].lineage == 1


def test_a_version_that_engines_refused_is_not_the_buffers(ring, engine, monkeypatch):
    """B28: what the buffer calls current is what engines sample from."""

    async def refuse(adapter):
        raise EngineError("not now")

    agent = ring()
    monkeypatch.setattr(engine, "load_adapter", refuse)
    with pytest.raises(EngineError):
        train(agent, 1)
    assert agent.trainer.version == 1
    agent.buffer.append(random_group(np.random.default_rng(0), DIFFERENT, turns=2, version=0))
    agent.buffer.wait_fresh(1, timeout_s=0)


def test_what_was_in_flight_before_a_restore_is_dropped(ring, engine, tmp_path):
    """Another policy played it."""
    agent = ring()
    state = agent.snapshot(tmp_path / "saved")
    before = begun(engine)
    agent.restore(tmp_path / "saved", state, CONFIG)
    for _ in before:
        assert engine.cancellations.acquire(timeout=30)


def test_the_engine_gets_the_restored_adapter_under_the_new_lineage(ring, engine, tmp_path):
    """B43."""
    donor, clone = ring("agent0"), ring("agent1")
    train(donor, 2)
    clone.restore(tmp_path / "saved", donor.snapshot(tmp_path / "saved"), CONFIG)
    assert np.array_equal(engine.slots["agent1"], engine.slots["agent0"])
    assert (engine.policies["agent1"].lineage, engine.policies["agent1"].version) == (1, 2)


def test_a_restore_brings_the_donors_experience_and_drops_ones_own(ring, tmp_path):
    donor, clone = ring("agent0"), ring("agent1")
    train(donor, 1)
    rng = np.random.default_rng(7)
    kept = [random_group(rng, (0.0, 1.0), turns=2, version=1) for _ in range(2)]
    for group in kept:
        donor.buffer.append(group)
    clone.buffer.append(random_group(rng, (0.0, 1.0), turns=2, version=0))
    clone.restore(tmp_path / "saved", donor.snapshot(tmp_path / "saved"), CONFIG)
    assert clone.buffer.group_ids() == [group.group_id for group in kept]


def test_experience_that_is_no_longer_there_is_played_anew(ring, tmp_path):
    """A run directory that was moved, or a donor that went on for long."""
    agent = ring()
    train(agent, 2)
    agent.buffer.append(random_group(np.random.default_rng(0), (0.0, 1.0), turns=2, version=2))
    state = agent.snapshot(tmp_path / "saved")
    shutil.rmtree(tmp_path / "agent0" / "pins")
    agent = ring()
    agent.restore(tmp_path / "saved", state, CONFIG)
    assert agent.buffer.group_ids() == []
    assert agent.trainer.version == 2
    train(agent, 1)
    assert agent.trainer.version == 3


def test_old_pins_go_and_the_last_ones_stay(ring, tmp_path):
    agent = ring()
    states = []
    for number in range(6):
        train(agent, 1)
        states.append(agent.snapshot(tmp_path / f"saved{number}"))
    assert [(tmp_path / state["pinned"]).exists() for state in states] == [False, False, True, True, True, True]


def test_new_values_are_read_back_from_what_trains(ring):
    """B44."""
    agent = ring()
    agent.apply(CONFIG.with_values({"learning_rate": 3e-4, "ratio_max": 2.5, "window": 9}))
    assert agent.in_use() == {"learning_rate": 3e-4, "ratio_max": 2.5, "window": 9}
    [row] = train(agent, 1)
    assert (row["trainer/learning_rate"], row["trainer/ratio_max"]) == (3e-4, 2.5)


def test_values_that_do_not_reach_what_trains_are_not_trained_on(ring, monkeypatch):
    """B44."""
    agent = ring()
    monkeypatch.setattr(agent.trainer, "apply", lambda config: None)
    with pytest.raises(GuardError, match=r"learning_rate.*0\.0003"):
        agent.apply(CONFIG.with_values({"learning_rate": 3e-4}))


def test_a_batch_that_allows_no_step_is_neither_counted_nor_published(ring, engine):
    agent = ring()
    reads = engine.reads
    [row] = train(agent, 1, scores=(0.5, 0.5))
    assert row["trainer/stepped"] == 0
    assert standing(agent) == (0, 0, 0)
    assert engine.reads == reads
    [row] = train(agent, 1)
    assert row["trainer/stepped"] == 1
    assert engine.policies["agent0"].version == 1


def test_whoever_waits_for_a_batch_can_be_told_to_stop(ring):
    answers = iter([False, True])
    assert ring().update(lambda: next(answers)) is None


def test_a_ring_is_prepared_once_it_holds_fresh_groups_for_an_update_and_none_is_drawn(ring):
    agent = ring()
    rng = np.random.default_rng(0)
    train(agent, 1)
    agent.buffer.append(random_group(rng, (0.0, 1.0), turns=2, version=0))
    agent.prepare(iter([False, True]).__next__)
    with ThreadPoolExecutor() as threads:
        prepared = threads.submit(agent.prepare, lambda: False)
        assert not prepared.done()
        agent.buffer.append(random_group(rng, (0.0, 1.0), turns=2, version=1))
        prepared.result(30)
    assert agent.buffer.stats()["buffer/drawn"] == 1
    assert agent.buffer.stats()["buffer/groups"] == 2


def test_the_narrowest_of_clones_can_train_at_once_on_the_snapshot_of_a_prepared_donor(ring, tmp_path):
    """The donor's window of 4 is full of older groups; the clone's is 0."""
    donor, clone = ring("agent0"), ring("agent1")
    rng = np.random.default_rng(0)
    train(donor, 1)
    for _ in range(5):
        donor.buffer.append(random_group(rng, (0.0, 1.0), turns=2, version=0))
    assert donor.buffer.room(0) == 0
    donor.evaluate(lambda: True)
    assert donor.buffer.room(0) == 1
    donor.buffer.append(random_group(rng, (0.0, 1.0), turns=2, version=1))
    donor.prepare(lambda: False)
    clone.restore(tmp_path / "saved", donor.snapshot(tmp_path / "saved"), CONFIG.with_values({"window": 0}))
    row = clone.update(lambda: False)
    assert (row["trainer/stepped"], set(row["by_lag"])) == (1, {"0"})


def deliver(ring, *groups_scores):
    """Groups as the rollouts hand them over."""
    rng = np.random.default_rng(ring.updates)
    for scores in groups_scores:
        ring.worker._deliver(random_group(rng, scores, turns=2, version=ring.trainer.version))


ALIKE, DIFFERENT = (0.5, 0.5), (0.0, 1.0)


def test_groups_without_a_difference_for_a_whole_interval_are_told_and_then_counted_anew(ring):
    """B01: the interval is 10 updates of 1 group."""
    agent = ring()
    deliver(agent, *[ALIKE] * 10)
    with pytest.raises(NothingToLearnError, match=r"10 groups in a row .*'other': 10"):
        agent.update(lambda: False)
    assert agent.update(iter([False, True]).__next__) is None
    assert agent.stats()["rollout/groups_other"] == 10


def test_a_group_that_tells_something_begins_the_count_anew_and_is_trained_on(ring):
    agent = ring()
    deliver(agent, *[ALIKE] * 9, DIFFERENT, *[ALIKE] * 9)
    assert agent.update(lambda: False)["trainer/stepped"] == 1
    assert agent.update(iter([False, True]).__next__) is None


@pytest.mark.parametrize("groups", [[ALIKE], [(np.nan, np.nan)]], ids=["alike", "without verdict"])
def test_a_ring_is_not_prepared_for_long_where_groups_tell_nothing(ring, groups):
    """The result that waits for it is what gets such a member replaced."""
    agent = ring()
    deliver(agent, *groups)
    agent.prepare(lambda: False)


def test_a_buffer_that_never_holds_a_batch_is_found_out(ring, monkeypatch):
    """Groups come and are lost to capacity_bytes: eight times what the window of 4 admits."""
    agent = ring()

    def lost(count, timeout_s):
        deliver(agent, *[DIFFERENT] * 41)
        raise SampleTimeoutError("0 of 1 groups")

    monkeypatch.setattr(agent.buffer, "wait_fresh", lost)
    with pytest.raises(GuardError, match="never has a batch: 0 of 1 groups"):
        agent.prepare(lambda: False)


def test_after_a_restart_what_was_played_since_the_snapshot_is_still_there(ring, tmp_path):
    """B32: of this line of descent; a lineage in between played with other weights."""
    agent = ring()
    rng = np.random.default_rng(0)
    names = ["agent0.0.1", "agent0.0.2", "agent0.1.0"]
    groups = [replace(random_group(rng, DIFFERENT, turns=2, version=0), group_id=name) for name in names]
    agent.buffer.append(groups[0])
    state = agent.snapshot(tmp_path / "saved")
    for group in groups[1:]:
        agent.buffer.append(group)
    agent = ring(start=False)
    agent.restore(tmp_path / "saved", state, CONFIG)
    assert agent.buffer.group_ids() == names[:2]


def test_whoever_waits_for_its_turn_to_train_can_be_told_to_stop(ring, tmp_path):
    agent, other = ring(), Turnstile(tmp_path / "trainers", places=1, number=0)
    agent.buffer.append(random_group(np.random.default_rng(0), (0.0, 1.0), turns=2, version=0))
    stop = threading.Event()
    with ThreadPoolExecutor() as threads:
        with other.hold():
            update = threads.submit(agent.update, stop.is_set)
            while not agent.buffer.stats()["buffer/drawn"]:
                assert not update.done()
            stop.set()
        assert update.result(30) is None
    other.close()
    assert standing(agent) == (0, 0, 0)


def test_an_evaluation_can_be_told_to_stop_and_leaves_no_episode_behind(ring, engine):
    agent = ring()
    agent.worker.stop()
    asked, cancelled = len(engine.asked), engine.cancellations
    while cancelled.acquire(blocking=False):
        pass

    def all_are_played():
        return len(engine.asked) - asked == CONFIG.evaluation.evaluation_episodes

    assert agent.evaluate(all_are_played) is None
    for _ in range(CONFIG.evaluation.evaluation_episodes):
        assert cancelled.acquire(timeout=30)


@pytest.fixture
def answering(engine):
    """The engine answers every turn at once, with log-probs that no model gave."""
    engine._policy = lambda prompt, sampling: [5, *sampling.stop_token_ids[:1]]
    engine.release()
    return engine


def test_an_evaluation_with_log_probs_that_are_not_those_of_the_adapter_stops_the_member(ring, answering):
    """B37 and B39: the canary."""
    with pytest.raises(GuardError, match=r"disagree on agent0\.0\.0: log-probs of \d+ tokens"):
        ring().evaluate(lambda: False)


@pytest.mark.parametrize("policy", [PolicyId("agent1", 0, 0), PolicyId("agent0", 0, 1), PolicyId("agent0", 1, 0)], ids=str)
def test_an_evaluation_with_another_policy_in_the_slot_stops_the_member(ring, answering, policy):
    agent = ring()
    answering.policies["agent0"] = policy
    with pytest.raises(GuardError, match=rf"agent0\.0\.0 was evaluated, but engines played with {policy}"):
        agent.evaluate(lambda: False)


def test_an_evaluation_plays_again_what_was_trained_on(ring, answering, monkeypatch):
    """B20: random tokens come from no environment."""
    agent = ring()
    monkeypatch.setattr(agent.trainer, "canary", lambda *given: {"canary/gap_max": 1e-6})
    assert agent.evaluate(lambda: False)["audit/agreed"] == 0  # nothing was trained on yet
    train(agent, 1)
    with pytest.raises(GuardError, match=r"an attempt at task .* is trained on that is not what its environment gives"):
        agent.evaluate(lambda: False)
    agent.apply(CONFIG.with_values({"audited_trajectories": 0}))
    agent.evaluate(lambda: False)


def test_what_a_donor_trained_on_is_not_a_clones_to_answer_for(ring, answering, monkeypatch, tmp_path):
    agent = ring()
    monkeypatch.setattr(agent.trainer, "canary", lambda *given: {})
    train(agent, 1)
    agent.restore(tmp_path / "saved", agent.snapshot(tmp_path / "saved"), CONFIG)
    agent.evaluate(lambda: False)


@pytest.mark.parametrize(
    ("part", "values"),
    [
        ("trainer", {"learning_rate": 3e-4}),
        ("trainer", {"adam_beta2": 0.5, "max_grad_norm": 0.25}),
        ("buffer", {"window": 9}),
        ("buffer", {"max_reuse": 3}),
        ("worker", {"temperature": 0.5}),
    ],
)
def test_every_setting_that_does_not_arrive_is_named(ring, monkeypatch, part, values):
    """B44: whichever part keeps to its own."""
    agent = ring()
    for name in ("apply", "window", "max_reuse", "config"):
        kind = type(getattr(agent, part))
        if name == "apply" and part == "trainer":
            monkeypatch.setattr(kind, name, lambda self, config: None)
        elif isinstance(own := getattr(kind, name, None), property):
            monkeypatch.setattr(kind, name, property(own.fget, lambda self, value: None))
    with pytest.raises(GuardError, match="|".join(values)) as raised:
        agent.apply(CONFIG.with_values(values))
    assert all(name in str(raised.value) for name in values)


def begun(engine):
    """The tasks of the groups that an agent has just begun, by their prompts; the attempts of a group share one."""
    count = CONFIG.rollout.groups_in_flight * CONFIG.rollout.group_size
    for _ in range(count):
        assert engine.arrivals.acquire(timeout=30)
    tasks = {tuple(prompt) for _, prompt, _, _ in engine.asked[-count:]}
    assert len(tasks) == CONFIG.rollout.groups_in_flight
    return tasks


def test_no_task_is_played_twice_by_members_a_clone_or_a_restart(ring, engine, tmp_path):
    donor = ring("agent0")
    of_donor = begun(engine)
    clone = ring("agent1")
    of_member = begun(engine)
    clone.restore(tmp_path / "saved", donor.snapshot(tmp_path / "saved"), CONFIG)
    of_clone = begun(engine)
    ring("agent0")
    of_restart = begun(engine)
    assert len(of_donor | of_member | of_clone | of_restart) == 4 * CONFIG.rollout.groups_in_flight


def test_members_are_scored_at_temperature_1_on_the_same_validation_tasks(ring, engine, monkeypatch):
    """Whatever temperature they train at."""
    splits, scored, episodes = [], [], CONFIG.evaluation.evaluation_episodes
    monkeypatch.setattr("pbt_agents.ring.environment_maker", lambda config, split: splits.append(split) or environment_maker(config, split))
    for name, temperature in (("agent0", 1.0), ("agent1", 0.3)):
        agent = ring(name)
        agent.worker.stop()
        agent.apply(CONFIG.with_values({"temperature": temperature}))
        splits.clear()
        before = len(engine.asked)
        agent.evaluate(lambda before=before: len(engine.asked) - before == episodes)
        assert splits == ["validation"]
        assert {agent for agent, *_ in engine.asked[before:]} == {name}
        scored.append(sorted((prompt, sampling.temperature) for _, prompt, sampling, _ in engine.asked[before:]))
    assert scored[0] == scored[1]
    assert {temperature for _, temperature in scored[0]} == {1.0}


def test_a_canary_is_heard_at_the_temperature_of_the_evaluation_and_not_at_that_of_training(ring, answering, monkeypatch):
    """B12."""
    agent = ring()
    agent.apply(CONFIG.with_values({"temperature": 0.5}))
    heard = []
    monkeypatch.setattr(agent.trainer, "canary", lambda played, temperature, own: heard.append((len(played), temperature)) or {})
    asked = len(answering.asked)
    agent.evaluate(lambda: False)
    assert heard == [(4, 1.0)]
    assert 1.0 in {sampling.temperature for _, _, sampling, _ in answering.asked[asked:]}
