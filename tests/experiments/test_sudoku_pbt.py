"""The script's flags and exit codes. What it refuses is in tests/test_wrong_use.py, what it trains in tests/test_main_job.py."""

import json
import math
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import sudoku_pbt
from sudoku_pbt import Args, main, population

from pbt_agents import training
from pbt_agents.config import EnvironmentConfig
from pbt_agents.errors import ConfigError, GuardError
from pbt_agents.evaluation import Scores
from pbt_agents.population import Budget
from pbt_agents.run_folder import new_run
from pbt_agents.tuning import _first_values


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Signals as they are, a directory of its own, and no Ray."""
    monkeypatch.setattr(sudoku_pbt.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sudoku_pbt, "ray_session", lambda out, address: nullcontext())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trained(monkeypatch):
    """Training that comes to an outcome, raises, or is interrupted; the calls that were made."""
    calls = []

    def comes_to(result, compared=None):
        def train(*arguments):
            calls.append(arguments)
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setattr(training, "train", train)
        monkeypatch.setattr(training, "compare", lambda *arguments: compared)
        return calls

    return comes_to


@pytest.fixture
def estimated(monkeypatch):
    """A dry run that leaves files, and comes to an end by itself or by a signal."""

    def comes_to(finished):
        def estimate(spec, out, reporter, price):
            (out / "population").mkdir()
            (out / "population" / "file").touch()
            return finished

        monkeypatch.setattr(training, "estimate", estimate)

    return comes_to


def outcome(error=None, updates=10):
    usage = SimpleNamespace(seconds=10.0, cpu_s=20.0, peak_pss_bytes=3 << 30)
    member = SimpleNamespace(name="agent0", error=error, metrics={"updates": updates})
    run = SimpleNamespace(lineage=SimpleNamespace(clones={}), usage=usage, members=[member])
    engines = [{"tokens_generated": 0.0}]
    scored = {"best": member, "scores": "0.5", "validation": {"agent0": 0.5, "agent1": 0.25}, "base": Scores(256, 0.3, 0.02, 0.25, 0.02, 0)}
    return SimpleNamespace(run=run, engine_pids=([1], [1]), engines=(engines, engines), **scored)


def test_a_refusal_needs_neither_torch_nor_vllm(here):
    """A wrong flag is answered in seconds."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(sudoku_pbt.__file__).parent)!r})
import sudoku_pbt
assert sudoku_pbt.main(sudoku_pbt.Args(window=-1)) == 2
assert not {{"torch", "vllm", "transformers", "wandb"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (outcome(), 0),
        (outcome(error="/some/error.txt"), 1),
        (None, 130),
        (KeyboardInterrupt(), 130),
        (GuardError("differs"), 1),
        (ConfigError("does not fit"), 2),
    ],
    ids=["trained", "a member failed", "interrupted", "broken off", "guarded", "refused late"],
)
def test_how_a_run_ends_is_told_by_its_exit_code(result, code, trained, capsys):
    trained(result)
    assert main(Args(out="run")) == code
    said = capsys.readouterr()
    assert ("--resume run" in said.out + said.err) == (code == 130)


def test_every_arm_of_a_comparison_is_reported_with_all_its_members(trained, capsys):
    trained(outcome(), {"independent": outcome(), "default": outcome()})
    assert main(Args(out="run", compare=True)) == 0
    lines = capsys.readouterr().out.splitlines()
    for arm in ("population", "independent", "default"):
        assert [line.split(maxsplit=1)[1] for line in lines if line.strip().startswith(arm)] == ["0.5  (agent0 of 0.50 0.25)"]


def test_an_interrupted_comparison_is_an_interruption(trained, capsys):
    trained(outcome(), {"independent": None})
    assert main(Args(out="run", compare=True)) == 130
    assert "interrupted" in capsys.readouterr().out


def test_a_resumed_run_has_the_settings_it_was_started_with(here, trained):
    calls = trained(outcome())
    args = Args(population=3, updates=17, window=0, seed=5, set=("max_reuse=3", "group_size=4"), test_episodes=8)
    with new_run(here / "run", asdict(args), population(args).to_dict()):
        pass
    assert main(Args(resume="run")) == 0
    [(spec, out, resume, episodes, *_)] = calls
    assert spec == population(args)
    assert (out, resume, episodes) == (Path("run"), True, 8)


@pytest.mark.parametrize("compared", [False, True])
def test_a_run_that_has_ended_is_not_scored_once_more(here, trained, capsys, compared):
    calls = trained(outcome())
    with new_run(here / "run", asdict(Args(compare=compared)), population(Args()).to_dict()):
        pass
    for arm in (".", "independent", "default")[: 3 if compared else 1]:
        (here / "run" / arm).mkdir(exist_ok=True)
        (here / "run" / arm / "results.json").touch()
    assert main(Args(resume="run")) == 2
    assert "'run' has ended, and results.json in it has the report" in capsys.readouterr().err
    assert calls == []


def test_a_comparison_that_lacks_an_arm_is_gone_on_with(here, trained):
    trained(outcome(), compared={})
    with new_run(here / "run", asdict(Args(compare=True)), population(Args()).to_dict()):
        pass
    (here / "run" / "results.json").touch()
    assert main(Args(resume="run")) == 0


def test_a_run_in_which_nobody_trained_fails_and_says_so(here, trained, capsys):
    trained(outcome(updates=0))
    assert main(Args(out="run")) == 1
    assert "no agent has made an update" in capsys.readouterr().out


def test_a_resumed_run_is_shown_as_this_session_asks(here, trained, capsys):
    trained(outcome())
    assert main(Args(out="run", quiet=True)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6
    assert main(Args(resume="run")) == 0
    assert capsys.readouterr().out.startswith("torch ")


def test_a_run_as_json_is_events_alone_to_its_end(trained, capfd):
    """Its end by an error, too."""
    trained(outcome())
    assert main(Args(out="run", json=True)) == 0
    trained(GuardError("differs"))
    assert main(Args(out="other", json=True)) == 1
    started = ["note", "stage_started", "stage_ended"]
    told = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [event["event"] for event in told] == [*started, "report", *started, "error"]
    assert told[-1]["error"] == "differs"


@pytest.mark.parametrize(("finished", "code", "said"), [(True, 0, "without --estimate trains"), (False, 130, "there was an estimate")])
def test_a_dry_run_trains_nothing_and_leaves_nothing(finished, code, said, here, trained, estimated, capsys):
    calls = trained(outcome())
    estimated(finished)
    assert main(Args(out="run", estimate=True)) == code
    told = capsys.readouterr()
    assert said in told.out + told.err
    assert "--resume" not in told.out + told.err
    assert calls == []
    assert list(here.iterdir()) == []


def test_a_new_run_keeps_its_settings_before_it_trains(here, trained):
    calls = trained(KeyboardInterrupt())
    assert main(Args(out="run", population=2, set=("max_reuse=3",))) == 130
    assert json.loads((here / "run" / "run.json").read_text())["settings"]["population"] == 2
    [(_, _, resume, *_)] = calls
    assert resume is False


def test_flags_become_the_population():
    spec = population(Args(population=8, updates=30, minutes=2.5, cpu_seconds=90, seed=7, set=("max_reuse=3", "objective=grpo")))
    assert (spec.size, spec.agent.fleet.slots, spec.agent.seed) == (8, 8, 7)
    assert (spec.budget.updates, spec.budget.minutes, spec.budget.cpu_seconds) == (30, 2.5, 90)
    assert (spec.agent.buffer.max_reuse, spec.agent.objective.objective) == (3, "grpo")
    assert "window" in spec.search_space


@pytest.mark.parametrize(
    ("flags", "name", "value", "searched"),
    [
        ({"window": 0}, "window", 0, ["learning_rate", "ratio_max"]),
        ({"set": ("learning_rate=3e-4",)}, "learning_rate", 3e-4, ["ratio_max", "window"]),
        ({"set": ("trainer.learning_rate=3e-4", "ratio_max=2")}, "learning_rate", 3e-4, ["window"]),
        ({"set": ("ratio_max=inf",)}, "ratio_max", math.inf, ["learning_rate", "window"]),
        ({"set": ("ratio_max=float('inf')",)}, "ratio_max", math.inf, ["learning_rate", "window"]),
    ],
)
def test_what_is_set_is_not_searched_but_the_same_for_every_member(flags, name, value, searched):
    spec = population(Args(**flags))
    assert spec.agent.value(name) == value
    assert list(spec.search_space) == searched


def test_a_recipe_of_ones_own_is_trained_as_it_stands_but_for_the_flags():
    from treasure.population import POPULATION as TREASURE

    spec = population(Args(recipe="treasure.population:POPULATION"))
    assert spec == TREASURE
    assert (spec.size, spec.budget.updates, dict(spec.agent.environment.options)) == (2, 20, {"turns": 4})
    changed = population(
        Args(recipe="treasure.population:POPULATION", population=3, updates=4, minutes=1, environment="arithmetic", seed=5)
    )
    assert (changed.size, changed.budget, changed.agent.seed) == (3, Budget(4, 1), 5)
    assert (changed.agent.environment, changed.agent.evaluation.updates_per_evaluation) == (EnvironmentConfig("arithmetic"), 4)
    assert changed.search_space == TREASURE.search_space


@pytest.mark.parametrize("name", ["options", "environment.options"])
def test_options_that_are_set_are_those_of_the_environment_that_is_named(name):
    spec = population(Args(environment="sudoku:hard", set=(f"{name}={{'format_penalty': 0.1}}",)))
    assert spec.agent.environment == EnvironmentConfig("sudoku:hard", {"format_penalty": 0.1})


def test_first_values_of_a_recipe_lose_what_is_set_for_all(monkeypatch):
    from pbt_agents.populations.sudoku import POPULATION

    first = tuple({"learning_rate": rate, "ratio_max": 2.0, "window": 4} for rate in (1e-3, 2e-3))
    recipe = replace(POPULATION.of_size(2), initial=first)
    monkeypatch.setattr(sudoku_pbt, "written_recipe", lambda name: recipe)
    assert population(Args(window=0)).initial == tuple({"learning_rate": rate, "ratio_max": 2.0} for rate in (1e-3, 2e-3))
    assert population(Args()).initial == first


def test_an_interruption_before_there_is_a_run_names_nothing_to_go_on_with(monkeypatch, capsys):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(sudoku_pbt, "population", interrupted)
    assert main(Args(out="run")) == 130
    assert capsys.readouterr().err == "error: interrupted before anything was begun\n"


def test_what_is_no_recipe_is_refused():
    with pytest.raises(ConfigError, match=r"recipe 'os\.path:sep' is of the type str, and no PopulationSpec"):
        population(Args(recipe="os.path:sep"))
    with pytest.raises(ConfigError, match=r"unknown population 'sudokku'\. Did you mean 'sudoku'"):
        population(Args(recipe="sudokku"))


def test_with_an_objective_without_a_cap_the_cap_is_not_searched():
    spec = population(Args(set=("objective=reinforce",)))
    assert list(spec.search_space) == ["learning_rate", "window"]


def test_slots_that_are_set_are_the_fleets():
    assert population(Args(population=4, set=("slots=8",))).agent.fleet.slots == 8
    assert population(Args(population=2)).agent.fleet.slots == 2


@pytest.mark.parametrize("resumed", [False, True])
def test_a_cluster_is_joined_where_an_address_is_given(here, trained, monkeypatch, resumed):
    """A run may go on in another cluster than the one that it lost."""
    joined = []
    monkeypatch.setattr(sudoku_pbt, "check_address", lambda address: None)
    monkeypatch.setattr(sudoku_pbt, "ray_session", lambda out, address: joined.append(address) or nullcontext())
    trained(outcome())
    assert main(Args(out="run", address="auto")) == 0
    if resumed:
        assert main(Args(resume="run", address="ray.example:6379")) == 0
        assert main(Args(resume="run")) == 0
    assert joined == (["auto", "ray.example:6379", "auto"] if resumed else ["auto"])


@pytest.mark.parametrize(("args", "interval"), [({}, 10), ({"updates": 3}, 3), ({"set": ("updates_per_evaluation=20",)}, 20)])
def test_a_run_shorter_than_an_interval_is_evaluated_at_its_end(args, interval):
    assert population(Args(**args)).agent.evaluation.updates_per_evaluation == interval


def test_a_single_agent_may_be_given_every_value():
    spec = population(Args(population=1, window=2, set=("learning_rate=3e-4", "ratio_max=4.0")))
    assert [spec.agent.value(name) for name in ("learning_rate", "ratio_max", "window")] == [3e-4, 4.0, 2]
    assert spec.agent.value("learning_rate") == _first_values(spec)[0]["learning_rate"]


@pytest.mark.parametrize(
    ("python", "typed"),
    [("/home/me/.venv/bin/python", ".venv/bin/python"), ("/usr/bin/python3", "/usr/bin/python3")],
    ids=["here", "there"],
)
def test_the_command_that_goes_on_can_be_typed_whatever_the_path(monkeypatch, tmp_path, python, typed):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.executable", python.replace("/home/me", str(tmp_path)))
    monkeypatch.setattr("sys.argv", ["experiments/sudoku_pbt.py"])
    assert sudoku_pbt.resume_command(Path("größe und leer")) == f"{typed} experiments/sudoku_pbt.py --resume 'größe und leer'"
