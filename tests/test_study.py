"""Runs in an Optuna study, and first values from it."""

import json
import math
from statistics import median

import optuna
import pytest
from ray import tune

from pbt_agents.commands.export import Args, main
from pbt_agents.errors import ConfigError
from pbt_agents.export.stretches import stretches
from pbt_agents.search_space import initial_values
from pbt_agents.study import ENOUGH, Study

SPACE = {"learning_rate": tune.loguniform(1e-4, 1e-2), "window": [1, 4]}
MANIFEST_SPACE = {
    "learning_rate": {"kind": "LogRange", "low": 1e-4, "high": 1e-2},
    "window": {"kind": "Ladder", "values": [1, 4]},
}


def row(member, version, fitness, timestamp):
    step = {"version": version, "updates": version, "lineage": 0, "timestamp": timestamp}
    return json.dumps({"trial_id": f"x_0000{member}", "fitness": fitness, **step})


def write_run(folder, rates=(1e-3, 5e-3), fitness=(0.5, 0.1), name="sudoku"):
    """agent1 becomes a clone of agent0's step 20 at its second result, whose second has begun."""
    rows = [
        [row(0, 10, 0.4, 100), row(0, 20, fitness[0], 110)],
        [row(1, 10, 0.2, 101), row(1, 20, fitness[1], 112), row(1, 30, 0.6, 125)],
    ]
    for number, lines in enumerate(rows):
        (folder / "population" / f"agent{number}").mkdir(parents=True)
        (folder / "population" / f"agent{number}" / "result.json").write_text("\n".join(lines) + "\n")
    members = {f"x_0000{number}": {"learning_rate": rate, "window": 4} for number, rate in enumerate(rates)}
    values = {"learning_rate": 2e-3, "window": 1}
    clone = {"child": "x_00001", "time_s": 112.7, "child_step": 20, "parent_step": 20, "parent_score": 0.5, "values": values}
    (folder / "population" / "lineage.json").write_text(json.dumps({"members": members, "clones": [clone]}))
    population = {"search_space": MANIFEST_SPACE, "agent": {"environment": {"id": "sudoku:tiny"}}}
    manifest = {"settings": {"recipe": name}, "population": population, "started": 1.5}
    (folder / "run.json").write_text(json.dumps(manifest))
    return folder


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "a")


@pytest.fixture
def storage(tmp_path):
    return f"sqlite:///{tmp_path}/study.db"


def trials(storage, name="sudoku"):
    return optuna.load_study(study_name=name, storage=storage).trials


def test_a_member_has_a_stretch_before_each_clone_and_one_after_the_last(run):
    found = [(one.member, one.start, [each["version"] for each in one.evaluations], one.values["window"]) for one in stretches(run)]
    assert found == [("agent0", 0, [10, 20], 4), ("agent1", 0, [10, 20], 4), ("agent1", 20, [30], 1)]


def test_a_stretch_is_a_trial_with_its_values_and_what_it_began_with(run, storage):
    assert Study(storage, "sudoku").add(run) == 3
    first, _, clone = trials(storage)
    assert (first.params, first.value, first.intermediate_values) == ({"learning_rate": 1e-3, "window": 4}, 0.5, {10: 0.4, 20: 0.5})
    assert (clone.params, clone.value) == ({"learning_rate": 2e-3, "window": 1}, 0.6)
    assert {name: clone.user_attrs[name] for name in ("member", "start", "end", "score_at_start")} == {
        "member": "agent1",
        "start": 20,
        "end": 30,
        "score_at_start": 0.5,
    }
    assert clone.user_attrs["gain"] == pytest.approx(0.1)
    assert "gain" not in first.user_attrs


def test_a_run_is_added_once_and_another_of_the_same_name_too(run, storage, tmp_path):
    Study(storage, "sudoku").add(run)
    assert Study(storage, "sudoku").add(run) == 0
    other = write_run(tmp_path / "elsewhere" / "a")
    manifest = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps({**manifest, "started": 2.5}))
    assert Study(storage, "sudoku").add(other) == 3


def test_a_stretch_that_diverged_counts_as_given_up(tmp_path, storage):
    """Optuna's samplers take that for bad; what failed they leave out."""
    Study(storage, "sudoku").add(write_run(tmp_path / "b", fitness=(0.5, math.nan)))
    assert [trial.state.name for trial in trials(storage)] == ["COMPLETE", "PRUNED", "COMPLETE"]


def test_without_enough_former_runs_first_values_are_spread_evenly(run, storage):
    study = Study(storage, "sudoku")
    study.add(run)
    assert study.first_values(SPACE, 4, seed=3) == initial_values(SPACE, 4, seed=3)


@pytest.fixture
def experienced(tmp_path, storage):
    """Former members did well at low rates, and the lower the better."""
    study = Study(storage, "sudoku")
    for number in range(ENOUGH):
        rate = 1e-4 * 100 ** (number / ENOUGH)
        study.add(write_run(tmp_path / f"run{number}", rates=(rate, 9e-3), fitness=(0.6 - 0.05 * number, 0.0)))
    return study


def test_first_values_follow_what_former_members_came_to(experienced):
    values = [one for seed in range(5) for one in experienced.first_values(SPACE, 4, seed)]
    assert median(one["learning_rate"] for one in values) < 5e-4
    assert all(1e-4 <= one["learning_rate"] <= 1e-2 and one["window"] in (1, 4) for one in values)
    assert len({one["learning_rate"] for one in values[:4]}) == 4


def test_asking_is_repeatable_and_leaves_nothing_in_the_study(experienced, storage):
    before = len(trials(storage))
    assert experienced.first_values(SPACE, 4, seed=1) == experienced.first_values(SPACE, 4, seed=1)
    assert len(trials(storage)) == before


def test_members_of_other_ranges_are_not_learned_from(experienced):
    wider = {**SPACE, "learning_rate": tune.loguniform(1e-5, 1e-2)}
    assert experienced.first_values(wider, 4, seed=1) == initial_values(wider, 4, seed=1)


@pytest.mark.parametrize("name", ["nonsense", "", "sqlite:////dev/null/study.db", "redis://nowhere"])
def test_a_storage_that_cannot_be_opened_is_refused_by_name(name):
    with pytest.raises(ConfigError, match=f"^study '{name}' cannot be opened: .*sqlite:///runs/study.db"):
        Study(name, "sudoku")


def test_the_folder_of_a_study_is_made(tmp_path):
    Study(f"sqlite:///{tmp_path}/runs/study.db", "sudoku")
    assert (tmp_path / "runs" / "study.db").exists()


def test_a_run_that_has_not_ended_and_one_without_a_recipe_are_refused(run, storage):
    (run / "population" / "lineage.json").unlink()
    with pytest.raises(ConfigError, match=r"no population/lineage\.json"):
        Study(storage, "sudoku").add(run)
    (run / "run.json").unlink()
    with pytest.raises(ConfigError, match=r"holds no run\.json"):
        Study(storage, "sudoku").add(run)


def test_an_old_run_is_added_by_a_command(run, storage, capsys):
    assert main(Args(run, tensorboard=False, study=storage)) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{storage}, study 'sudoku on sudoku:tiny': 3 trials added"
    assert len(trials(storage, "sudoku on sudoku:tiny")) == 3


def test_a_member_that_trained_nothing_is_no_trial(run, storage):
    log = run / "population" / "agent0" / "result.json"
    log.write_text(row(0, 0, 0.0, 100) + "\n")
    assert Study(storage, "sudoku").add(run) == 2
