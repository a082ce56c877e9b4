"""Only state that can be read is resumed from, and there is a whole copy of it."""

import itertools
import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from pbt_agents.errors import ConfigError
from pbt_agents.scheduling.state import Snapshots, check_experiment

NAMES = ["experiment_state-{}.json", "callback-states-{}.pkl", "basic-variant-state-{}.json"]


class Experiment:
    """What the snapshots need of Tune's controller. Its state is a count of the snapshots taken."""

    def __init__(self, folder, session="2026-01-01_10-00-00", local=True):
        self.folder, self.session, self.count, self.calls = folder, session, 0, []
        filesystem = SimpleNamespace(type_name="local" if local else "s3")
        syncer = SimpleNamespace(wait=lambda: self.calls.append("wait"))
        self._storage = SimpleNamespace(storage_filesystem=filesystem, experiment_driver_staging_path=str(folder), syncer=syncer)
        self._checkpoint_manager = SimpleNamespace(_should_force_sync_up=False)

    def checkpoint(self, force, wait):
        assert force
        assert wait
        self.calls.append("checkpoint")
        self.count += 1
        for name in NAMES:
            content = json.dumps(self.count).encode() if name.startswith("experiment") else pickle.dumps(self.count)
            (self.folder / name.format(self.session)).write_bytes(content)

    def take(self, times=1):
        for _ in range(times):
            snapshots = Snapshots()
            snapshots.due = True
            snapshots.take_if_due(self, self.folder)


def counts(folder):
    experiment, *others = [max(folder.glob(name.format("*"))).read_bytes() for name in NAMES]
    return {json.loads(experiment), *map(pickle.loads, others)}


@pytest.mark.parametrize("name", NAMES)
def test_truncated_state_is_replaced_by_its_last_whole_copy(tmp_path, name):
    """B72. Tune would start a new experiment."""
    experiment = Experiment(tmp_path)
    experiment.take(times=3)
    damaged = tmp_path / name.format(experiment.session)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    check_experiment(tmp_path)
    assert counts(tmp_path) == {3}


def test_a_damaged_copy_is_passed_over(tmp_path):
    """B72."""
    experiment = Experiment(tmp_path)
    experiment.take(times=3)
    for folder in (tmp_path, tmp_path / "snapshots" / "000002"):
        (folder / NAMES[1].format(experiment.session)).write_bytes(b"")
    check_experiment(tmp_path)
    assert counts(tmp_path) == {2}


def test_a_later_sessions_damaged_state_does_not_hide_the_copy(tmp_path):
    """B72."""
    Experiment(tmp_path).take(times=2)
    (tmp_path / NAMES[0].format("2026-01-01_11-00-00")).write_bytes(b'{"trial')
    check_experiment(tmp_path)
    assert counts(tmp_path) == {2}


def test_whole_state_is_left_as_it_is(tmp_path):
    experiment = Experiment(tmp_path)
    experiment.take(times=2)
    experiment.checkpoint(force=True, wait=True)
    check_experiment(tmp_path)
    assert counts(tmp_path) == {3}


def test_two_copies_are_kept(tmp_path):
    Experiment(tmp_path).take(times=5)
    assert sorted(path.name for path in (tmp_path / "snapshots").iterdir()) == ["000003", "000004"]


def test_damage_without_a_copy_is_refused_by_its_name(tmp_path):
    experiment = Experiment(tmp_path)
    experiment.checkpoint(force=True, wait=True)
    (tmp_path / NAMES[1].format(experiment.session)).write_bytes(b"")
    with pytest.raises(ConfigError, match=r"callback-states-.*\.pkl is damaged.*no whole copy"):
        check_experiment(tmp_path)


def test_a_folder_without_state_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no experiment_state"):
        check_experiment(tmp_path)


def test_a_snapshot_waits_for_the_copy_of_the_former_one(tmp_path):
    experiment = Experiment(tmp_path)
    experiment.take()
    assert experiment.calls == ["wait", "checkpoint"]


def test_snapshots_are_taken_when_due_and_else_every_eight_seconds(tmp_path, monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr("pbt_agents.scheduling.state.time.monotonic", lambda: now.s)
    experiment, snapshots = Experiment(tmp_path), Snapshots()
    taken_at = []
    for now.s in range(100, 130):
        snapshots.due, before = now.s in (100, 113), experiment.count
        snapshots.take_if_due(experiment, tmp_path)
        if experiment.count > before:
            taken_at.append(now.s)
    assert taken_at == [100, 109, 113, 122]


def test_snapshots_take_a_small_share_of_the_drivers_time(tmp_path, monkeypatch):
    """One that costs 0.5 s is not repeated within 10 s, however many clones there are."""
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr("pbt_agents.scheduling.state.time.monotonic", lambda: now.s)
    experiment, snapshots = Experiment(tmp_path), Snapshots()
    whole = experiment.checkpoint
    experiment.checkpoint = lambda force, wait: (setattr(now, "s", now.s + 0.5), whole(force, wait))
    taken_at = []
    for _ in range(120):
        snapshots.due, before = True, experiment.count
        snapshots.take_if_due(experiment, tmp_path)
        if experiment.count > before:
            taken_at.append(now.s)
        now.s += 0.25
    assert [round(b - a, 1) for a, b in itertools.pairwise(taken_at)] == [10.5, 10.5]


def test_remote_storage_is_asked_for_a_snapshot_without_waiting(tmp_path):
    experiment = Experiment(tmp_path, local=False)
    experiment.take()
    assert experiment._checkpoint_manager._should_force_sync_up
    assert experiment.calls == []
    assert not Path(tmp_path, "snapshots").exists()
