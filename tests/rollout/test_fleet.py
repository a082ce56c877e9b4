"""Which engines a run has, and how long they live. Ray itself is met in the slow tests of populations."""

import json
import os
import threading
import time

import pytest
import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError

from pbt_agents.config import AgentConfig
from pbt_agents.errors import ConfigError, EngineDiedError
from pbt_agents.rollout.fleet import (
    LEASE_S,
    EngineFleet,
    EngineInfo,
    FleetInfo,
    _FleetKeeper,
    _joined,
    engine_address,
    engine_plan,
    engine_spec,
    fleet_name,
)
from pbt_agents.rollout.slot_leases import Lease


def config(**values):
    return AgentConfig().with_values(values)


@pytest.fixture
def model(tmp_path):
    """A folder that says what a token takes in the cache: key and value, 2 layers, 4 heads of width 8, 4 bytes: 512 bytes."""
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}))
    return str(tmp_path)


def test_every_engine_of_a_shared_fleet_serves_every_agent():
    assert engine_plan(config(slots=3, engines=2)) == [("agent0", "agent1", "agent2")] * 2


def test_each_agent_has_engines_of_its_own_where_they_are_not_shared():
    plan = engine_plan(config(fleet="per_agent", slots=2, engines=2))
    assert plan == [("agent0",), ("agent0",), ("agent1",), ("agent1",)]


@pytest.mark.parametrize(
    ("values", "size"),
    [
        ({"max_sequences": 6}, 512 * 100 * 3),  # half of the sequences at their full length
        ({"max_sequences": 1}, 512 * 100),
        ({"max_sequences": 6, "kv_cache_bytes": 1 << 20}, 1 << 20),
    ],
)
def test_the_cache_has_room_for_half_of_the_sequences_or_what_was_asked_for(model, values, size):
    assert engine_spec(model, ("agent0",), config(max_episode_tokens=100, **values), 0).kv_cache_bytes == size


def test_an_engine_is_built_for_what_the_agents_play(model):
    spec = engine_spec(model, ("agent0", "agent1"), config(lora_rank=16, max_episode_tokens=100, max_sequences=6), 0)
    assert (spec.model_path, spec.agents, spec.lora_rank) == (model, ("agent0", "agent1"), 16)
    assert (spec.max_tokens, spec.max_sequences) == (100, 6)


@pytest.mark.parametrize(("seed", "number", "drawn"), [(0, 0, 0), (0, 3, 3), (7, 3, 7003), (5_000_000, 1, 5_000_000_001 - (1 << 32))])
def test_every_engine_draws_from_a_seed_of_its_own_that_fits_32_bits(model, seed, number, drawn):
    assert engine_spec(model, ("agent0",), config(seed=seed), number).seed == drawn


@pytest.mark.parametrize(("gpus", "share"), [(0.4, 0.4), (1.0, 1.0), (0.0, 1.0)])
def test_an_engine_takes_no_more_of_a_gpu_than_the_share_it_was_given(model, gpus, share):
    """B76: else a second one finds too little free on the same GPU."""
    assert engine_spec(model, ("agent0",), config(gpus_per_engine=gpus), 0).gpu_share == share


def info(*served):
    engines = tuple(EngineInfo(f"engine{number}", 1, "ipc://x", agents, {}) for number, agents in enumerate(served))
    return FleetInfo("/tmp/x", engines, ())


def test_an_agent_is_served_by_the_engines_that_have_a_slot_for_it():
    fleet = info(("agent0",), ("agent1",), ("agent0", "agent1"))
    assert [engine.name for engine in fleet.serving("agent1")] == ["engine1", "engine2"]


def test_an_agent_without_a_slot_is_refused_with_those_that_have_one():
    with pytest.raises(ConfigError, match=r"no slot for 'agent2', only \['agent0', 'agent1'\]\. Set fleet\.slots"):
        info(("agent1",), ("agent0",)).serving("agent2")


def test_trials_of_one_experiment_find_the_same_fleet_and_those_of_another_do_not():
    assert fleet_name("/runs/a") == fleet_name("/runs/a") != fleet_name("/runs/b")


class Started:
    """Stands for ray.remote: keeps what every engine is told at its start."""

    def __init__(self):
        self.told, self.start = [], self

    def __call__(self, **options):
        return lambda actor: self

    def options(self, **options):
        return self

    def remote(self, *arguments):
        if arguments:
            self.told.append(arguments)
        return self


def test_engines_of_fleets_that_start_at_once_never_listen_at_the_same_place(model, monkeypatch):
    """B74: 4 fleets of 2 engines, 20 times, and none at a port."""
    started = Started()
    monkeypatch.setattr(ray, "remote", started)
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    keepers = [_FleetKeeper(model, config(engines=2, slots=1)) for _ in range(20 * 4)]
    addresses = {engine_address(folder, name) for _, folder, name in started.told}
    for keeper in keepers:
        os.rmdir(keeper._folder)
    assert len(started.told) == len(addresses) == 160
    assert all(address.startswith("ipc:///") for address in addresses)


class Keeper:
    """Answers renewals as told, one after another. Stands for the handle, and `get` for ray.get."""

    def __init__(self, *answers):
        self.answers, self.asked, self.renew, self.take_slot = iter(answers), 0, self, self
        self.trials = set()

    def remote(self, trial, *wanted):
        self.asked += 1
        self.trials.add(trial)
        return next(self.answers)

    @staticmethod
    def get(answer, timeout=0):
        assert timeout < LEASE_S, "a lost call leaves time for another one"
        if isinstance(answer, Exception):
            raise answer
        return answer


class Impatient(threading.Event):
    """Its waits are over at once."""

    def wait(self, timeout=None):
        return self.is_set()


def holder(keeper, monkeypatch):
    """A fleet's handle as it is while its lease is renewed."""
    monkeypatch.setattr(ray, "get", keeper.get)
    fleet = EngineFleet.__new__(EngineFleet)
    fleet._keeper, fleet._closed, fleet._trial = keeper, Impatient(), None
    return fleet


def test_a_lease_is_renewed_after_a_slow_answer_until_the_keeper_is_gone(monkeypatch):
    keeper = Keeper(None, GetTimeoutError("slow"), None, ActorUnavailableError("a lost connection", None), None, ActorDiedError())
    holder(keeper, monkeypatch)._renew()
    assert keeper.asked == 6


def on_a_clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


def test_a_trial_waits_for_a_slot_whose_holder_may_be_dead_and_renews_it_from_then_on(monkeypatch):
    clock = on_a_clock(monkeypatch)
    keeper = Keeper(None, None, Lease(1, 3), None, ActorDiedError())
    fleet = holder(keeper, monkeypatch)
    assert fleet.take_slot("c0ffee") == Lease(1, 3)
    assert clock.now == 1.0
    fleet._renew()
    assert keeper.trials == {"c0ffee"}


def test_a_trial_for_which_no_slot_becomes_free_says_what_to_set(monkeypatch):
    on_a_clock(monkeypatch)
    with pytest.raises(ConfigError, match=r"no slot of the engines is free for trial c0ffee\. Set fleet\.slots"):
        holder(Keeper(*[None] * 1000), monkeypatch).take_slot("c0ffee")


def test_a_closed_holder_renews_no_more(monkeypatch):
    keeper = Keeper()
    fleet = holder(keeper, monkeypatch)
    fleet._closed.set()
    fleet._renew()
    assert keeper.asked == 0


class Ended(BaseException):
    """The keeper's process is over."""


class Clock:
    """Seconds pass only in sleeps. At those in `renewals`, `renew` is called."""

    def __init__(self, *renewals):
        self.now, self.renewals, self.renew = 0.0, renewals, None

    def sleep(self, seconds):
        self.now += seconds
        if self.now in self.renewals:
            self.renew()


def watched(monkeypatch, folder, clock, kill):
    """A keeper with two engines, and its watch until it ended: the second at which it did."""
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(ray, "kill", kill)

    def ended(status):
        raise Ended

    monkeypatch.setattr(os, "_exit", ended)
    keeper = _FleetKeeper.__new__(_FleetKeeper)
    keeper._folder, keeper._engines, keeper._renewed = str(folder), ["engine0", "engine1"], 0.0
    keeper._over, keeper._lock = False, threading.Lock()
    clock.renew = keeper.renew
    with pytest.raises(Ended):
        keeper._watch()
    return clock.now


def test_a_keeper_ends_its_engines_its_folder_and_itself_when_the_lease_is_over(monkeypatch, tmp_path):
    """B71: nothing is left behind by a driver that was killed."""
    folder, killed = tmp_path / "fleet", []
    folder.mkdir()
    assert watched(monkeypatch, folder, Clock(), killed.append) == LEASE_S
    assert killed == ["engine0", "engine1"]
    assert not folder.exists()


def test_a_renewal_gives_a_whole_lease_more(monkeypatch, tmp_path):
    assert watched(monkeypatch, tmp_path, Clock(3.0, 7.0), lambda engine: None) == 7.0 + LEASE_S


def test_a_keeper_that_cannot_reach_its_engines_ends_all_the_same(monkeypatch, tmp_path):
    def kill(engine):
        raise RuntimeError("Ray is gone")

    assert watched(monkeypatch, tmp_path, Clock(), kill) == LEASE_S


@pytest.mark.parametrize(("age_s", "joins"), [(LEASE_S - 0.1, True), (LEASE_S, False)])
def test_whoever_comes_before_the_lease_is_over_has_a_whole_one_and_whoever_comes_later_has_none(monkeypatch, age_s, joins):
    """A trial of a sweep may start when the one before has just ended: engines must not end under it."""
    clock = on_a_clock(monkeypatch)
    keeper = _FleetKeeper.__new__(_FleetKeeper)
    keeper._renewed, keeper._over, keeper._lock = 0.0, False, threading.Lock()
    clock.now = age_s
    keeper._is_over()
    assert keeper.join() == joins
    if joins:
        clock.now += LEASE_S - 0.1
        assert not keeper._is_over()


class Keepers:
    """Ray, with a keeper that is ending, one that has ended, and a new one."""

    def __init__(self, *answers):
        self.answers, self.made = list(answers), 0
        self.join = self

    def __call__(self, **options):
        return lambda kind: self

    def options(self, **options):
        return self

    def remote(self, *arguments):
        self.made += bool(arguments)
        return self

    def get(self, asked):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_keeper_that_is_ending_is_not_joined_but_replaced(monkeypatch):
    on_a_clock(monkeypatch)
    keepers = Keepers(False, ActorDiedError(), True)
    monkeypatch.setattr(ray, "remote", keepers)
    monkeypatch.setattr(ray, "get", keepers.get)
    assert _joined("fleet-x", "model", config()) is keepers
    assert keepers.made == 3


def test_a_keeper_that_never_comes_up_is_an_error_with_its_reason(monkeypatch):
    on_a_clock(monkeypatch)
    keepers = Keepers(*[ActorDiedError()] * 100)
    monkeypatch.setattr(ray, "remote", keepers)
    monkeypatch.setattr(ray, "get", keepers.get)
    with pytest.raises(EngineDiedError, match="the engines did not start"):
        _joined("fleet-x", "model", config())
