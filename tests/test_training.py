"""The order of a whole run, around a population and engines that do as they are told."""

import asyncio
import json
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from pbt_agents import training
from pbt_agents.config import AgentConfig
from pbt_agents.errors import ConfigError, EngineDiedError, EngineError, GuardError, PbtAgentsError
from pbt_agents.evaluation import Scores
from pbt_agents.population import PopulationSpec
from pbt_agents.resources import Usage
from pbt_agents.scheduling.lineage import CloneEvent, Lineage, write_schedule
from pbt_agents.tuning import Member, PopulationRun

SPEC = PopulationSpec(AgentConfig().with_values({"slots": 2, "learning_rate": 2e-3}), {"learning_rate": [1e-3, 1e-2]}, 2)
REFUSALS = {
    "refused": EngineError("it is not what was announced"),
    "not finite": GuardError("it is not finite"),
    "engine died": EngineDiedError("no answer"),
}


class ToldEvaluator:
    """An adapter's file holds its score, or the name of the error that it meets."""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def played(self):
        return 5

    def sampled(self, folder, split, episodes):
        assert split == "validation"
        told = (folder / "adapter_model.safetensors").read_text()
        if told in REFUSALS:
            raise REFUSALS[told]
        return float(told)

    def adapter(self, folder, split, episodes):
        assert split == "test"
        return Scores(episodes, self.sampled(folder, "validation", episodes), 0.0, 0.0, 0.0, 0)

    def base(self, split, episodes):
        assert split == "test"
        return Scores(episodes, 0.1, 0.0, 0.0, 0.0, 0)


@pytest.fixture
def fleets(monkeypatch):
    """Every fleet that was started, and whether it was ended."""
    started = []

    def fleet(spec, out):
        made = SimpleNamespace(
            info=SimpleNamespace(engines=[SimpleNamespace(self_test={"base": 1e-6})]),
            health=lambda: [{"pid": 7.0, "tokens_generated": 40.0}],
            ended=False,
            spec=spec,
        )
        made.end = lambda: setattr(made, "ended", True)
        started.append(made)
        return made

    monkeypatch.setattr(training, "experiment_fleet", fleet)
    monkeypatch.setattr(training, "Evaluator", ToldEvaluator)
    monkeypatch.setattr(training, "cores", lambda: 2)
    return started


@pytest.fixture
def population(monkeypatch):
    """Population runs that come to these members; whether each was a resumed one. The first member's last fitness was the highest."""
    resumed = []

    def comes_to(*members, interrupted=False, clones=()):
        def run(spec, out, fleet, resume, reporter, price_per_hour=None, only_estimate=False):
            resumed.append("estimate" if only_estimate else resume)
            lineage = lineage_of(out / "population", members, clones)
            write_schedule(lineage, out / "population" / "schedule.json", trial_of(members[0].name), 0.9, "version")
            return PopulationRun(members, lineage, Usage(10.0, 20.0, 3 << 30), interrupted)

        monkeypatch.setattr(training, "run_population", run)
        monkeypatch.setattr(training, "is_resumable", lambda out: True)
        return resumed

    return comes_to


def trial_of(name):
    return f"9f3a1_{int(name[-1]):05d}"


def lineage_of(folder, members, clones):
    """Each member begins at the rate that its number says; the clones are (parent, child, step, rate)."""
    lineage = Lineage(folder / "lineage.jsonl")
    for member in members:
        lineage.add_member(trial_of(member.name), {"learning_rate": float(member.name[-1])})
    for number, (parent, child, step, rate) in enumerate(clones):
        before, after = {"learning_rate": float(child[-1])}, {"learning_rate": rate}
        event = CloneEvent(number, 0.0, trial_of(parent), trial_of(child), "", step, step, before, before, after, 0.1, 0.2)
        lineage.add_clone(event)
    return lineage


def member(folder, name, score=None, error=None):
    """One that saved an adapter with this score, or nothing."""
    if score is not None:
        (folder / name / "trainer").mkdir(parents=True)
        for file in ("adapter_model.safetensors", "adapter_config.json", "optimizer.safetensors"):
            (folder / name / "trainer" / file).write_text(str(score))
    return Member(name, trial_of(name), {"fitness": float("nan")}, folder / name if score is not None else None, error)


def test_the_best_by_fresh_tasks_is_what_a_run_leaves(tmp_path, fleets, population):
    population(member(tmp_path, "agent0", 0.3), member(tmp_path, "agent1", 0.7), member(tmp_path, "agent2"))
    outcome = training.train(SPEC, tmp_path, episodes=8)
    assert (outcome.best.name, outcome.scores.sampled, outcome.base.sampled) == ("agent1", 0.7, 0.1)
    assert sorted(file.name for file in (tmp_path / "best").iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    assert (tmp_path / "best" / "adapter_model.safetensors").read_text() == "0.7"
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["best"], results["scores"]["sampled"], results["cpu_s"]) == ("agent1", 0.7, 20.0)
    assert [results["members"][name]["validation"] for name in ("agent0", "agent1", "agent2")] == [0.3, 0.7, None]
    assert [[engine["pid"] for engine in results["engines"][when]] for when in ("start", "end")] == [[7.0], [7.0]]
    assert outcome.engine_pids == ([7], [7])
    assert (tmp_path / "metrics.parquet").exists()
    assert fleets[0].ended


def test_the_schedule_that_a_run_leaves_is_that_of_the_adapter_it_leaves(tmp_path, fleets, population):
    """B54: by the last fitness it would be agent0's."""
    members = [member(tmp_path, f"agent{number}", score) for number, score in enumerate((0.3, 0.7, 0.5))]
    population(*members, clones=[("agent2", "agent1", 10, 8.0)])
    training.train(SPEC, tmp_path, episodes=8)
    results = json.loads((tmp_path / "results.json").read_text())
    schedule = json.loads((tmp_path / "population" / "schedule.json").read_text())
    assert schedule["winner"] == results["members"][results["best"]]["trial"] == "9f3a1_00001"
    assert (schedule["score"], schedule["step_unit"]) == (0.7, "version")
    assert [(segment["step"], segment["values"]["learning_rate"]) for segment in schedule["segments"]] == [(0, 2.0), (10, 8.0)]


def test_each_member_in_the_results_has_the_name_that_the_lineage_gives_it(tmp_path, fleets, population):
    members = [member(tmp_path, f"agent{number}", 0.3) for number in (2, 0, 1)]
    population(*members)
    outcome = training.train(SPEC, tmp_path, episodes=8)
    results = json.loads((tmp_path / "results.json").read_text())
    trials = {name: content["trial"] for name, content in results["members"].items()}
    assert trials == {"agent0": "9f3a1_00000", "agent1": "9f3a1_00001", "agent2": "9f3a1_00002"}
    assert set(trials.values()) == set(outcome.run.lineage.members)


@pytest.mark.parametrize("score", ["nan", "refused", "not finite"])
def test_a_member_without_a_score_is_never_the_best_and_the_others_are_scored(tmp_path, fleets, population, score):
    """B47: it comes first, where max() would keep a NaN."""
    population(member(tmp_path, "agent0", score), member(tmp_path, "agent1", 0.2), member(tmp_path, "agent2", 0.6))
    outcome = training.train(SPEC, tmp_path, episodes=8)
    assert outcome.best.name == "agent2"
    results = json.loads((tmp_path / "results.json").read_text())
    assert [results["members"][name]["validation"] for name in ("agent0", "agent1", "agent2")] == ["nan", 0.2, 0.6]


def test_why_a_member_has_no_score_is_said(tmp_path, fleets, population, capsys):
    population(member(tmp_path, "agent0", "not finite"), member(tmp_path, "agent1", 0.2))
    training.train(SPEC, tmp_path, episodes=8)
    assert "agent0 has no score: it is not finite\n" in capsys.readouterr().out


def test_where_no_member_has_a_score_there_is_no_best_and_the_base_is_scored(tmp_path, fleets, population):
    """B47."""
    population(member(tmp_path, "agent0", "nan"), member(tmp_path, "agent1", "refused"), member(tmp_path, "agent2"))
    outcome = training.train(SPEC, tmp_path, episodes=8)
    assert (outcome.best, outcome.scores, outcome.base.sampled) == (None, None, 0.1)
    assert json.loads((tmp_path / "results.json").read_text())["best"] is None
    assert not (tmp_path / "best").exists()


def test_a_dead_engine_is_not_taken_for_a_member_without_a_score(tmp_path, fleets, population):
    population(member(tmp_path, "agent0", "engine died"), member(tmp_path, "agent1", 0.2))
    with pytest.raises(EngineDiedError):
        training.train(SPEC, tmp_path, episodes=8)
    assert fleets[0].ended


def test_an_interruption_while_the_test_tasks_are_played_leaves_the_adapter_and_its_schedule(tmp_path, fleets, population, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(ToldEvaluator, "adapter", interrupt)
    population(member(tmp_path, "agent0", 0.3), member(tmp_path, "agent1", 0.7))
    with pytest.raises(KeyboardInterrupt):
        training.train(SPEC, tmp_path, episodes=8)
    assert (tmp_path / "best" / "adapter_model.safetensors").read_text() == "0.7"
    assert json.loads((tmp_path / "population" / "schedule.json").read_text())["winner"] == "9f3a1_00001"
    assert fleets[0].ended


def test_a_former_best_is_replaced_when_a_run_is_scored_again(tmp_path, fleets, population):
    population(member(tmp_path, "agent0", 0.3))
    training.train(SPEC, tmp_path, episodes=8)
    population(member(tmp_path, "agent1", 0.2))
    training.train(SPEC, tmp_path, resume=True, episodes=8)
    assert (tmp_path / "best" / "adapter_model.safetensors").read_text() == "0.2"


def test_what_cannot_be_gone_on_with_is_refused_before_the_engines_start(tmp_path, fleets):
    (tmp_path / "population" / "agent0").mkdir(parents=True)
    (tmp_path / "population" / "agent0" / "result.json").touch()
    with pytest.raises(ConfigError, match=r"of which lineage\.jsonl knows 0"):
        training.train(SPEC, tmp_path, resume=True, episodes=8)
    assert fleets == []


def test_an_interrupted_run_is_not_scored_and_its_engines_end(tmp_path, fleets, population):
    population(member(tmp_path, "agent0", 0.3), interrupted=True)
    assert training.train(SPEC, tmp_path, episodes=8) is None
    assert not (tmp_path / "results.json").exists()
    assert fleets[0].ended


def test_a_member_that_failed_beside_others_is_scored_by_what_it_saved(tmp_path, fleets, population):
    population(member(tmp_path, "agent0", 0.3), member(tmp_path, "agent1", 0.7, error="/error.txt"))
    assert training.train(SPEC, tmp_path, episodes=8).best.name == "agent1"


def test_where_every_member_failed_nothing_is_scored_and_the_engines_end(tmp_path, fleets, population):
    population(member(tmp_path, "agent0", 0.3, error="/error.txt"), member(tmp_path, "agent1", error="/error.txt"))
    with pytest.raises(PbtAgentsError, match="every member failed"):
        training.train(SPEC, tmp_path, episodes=8)
    assert fleets[0].ended


def test_a_population_that_does_not_fit_is_refused_before_engines_start(tmp_path, fleets):
    with pytest.raises(ConfigError, match="do not fit"):
        training.train(SPEC.of_size(300), tmp_path)
    assert fleets == []


def test_a_comparison_gives_each_arm_the_cpu_seconds_of_the_population(tmp_path, fleets, population):
    resumed = population(member(tmp_path, "agent0", 0.3))
    outcome = training.train(SPEC, tmp_path, episodes=8)
    arms = training.compare(SPEC, outcome, tmp_path, episodes=8)
    independent, default = (fleet.spec for fleet in fleets[1:])
    assert list(arms) == ["independent", "default"]
    assert {arm.budget.cpu_seconds for arm in (independent, default)} == {20.0}
    assert {arm.budget.updates for arm in (independent, default)} == {None}
    assert (independent.size, independent.exploit, independent.initial) == (2, False, None)
    assert (default.size, default.exploit, default.initial) == (1, False, ({"learning_rate": 2e-3},))
    assert (tmp_path / "default" / "results.json").exists()
    assert resumed == [False, False, False]


def test_the_rivals_of_a_population_are_made_without_training_it_whatever_values_its_members_begin_with(fleets):
    """Those that copy nobody wait for nobody, either."""
    spec = replace(SPEC, initial=({"learning_rate": 1e-3}, {"learning_rate": 5e-3}), synchronous=True)
    independent, default = training.comparison(spec).values()
    assert independent == replace(spec, exploit=False, synchronous=False)
    assert (default.size, default.agent.fleet.slots, default.exploit, default.initial) == (1, 1, False, ({"learning_rate": 2e-3},))
    assert fleets == []


def test_an_interrupted_comparison_begins_no_other_arm_and_is_gone_on_with(tmp_path, fleets, population):
    population(member(tmp_path, "agent0", 0.3))
    outcome = training.train(SPEC, tmp_path, episodes=8)
    population(member(tmp_path, "agent1", 0.3), interrupted=True)
    assert training.compare(SPEC, outcome, tmp_path, episodes=8) == {"independent": None}
    resumed = population(member(tmp_path, "agent2", 0.3))
    assert None not in training.compare(SPEC, outcome, tmp_path, resume=True, episodes=8).values()
    assert resumed == [False, False, True, True]


def test_the_stages_of_a_run_are_told_and_what_the_engines_took_to_start_is_kept_for_the_next(tmp_path, fleets, population):
    population(member(tmp_path, "agent0", 0.3), member(tmp_path, "agent1", 0.7))
    told = []
    first, second = tmp_path / "first", tmp_path / "second"
    for out in (first, second):
        out.mkdir()
        training.train(SPEC, out, episodes=8, reporter=SimpleNamespace(tell=told.append))
    stages = [(event.kind, event.stage) for event in told if event.kind in ("stage_started", "stage_ended")]
    assert stages == 2 * [(kind, stage) for stage in ("engines", "scoring") for kind in ("stage_started", "stage_ended")]
    starts = [event.usual_s for event in told if event.kind == "stage_started" and event.stage == "engines"]
    assert starts[0] is None
    assert 0 <= starts[1] < 60


def test_a_dry_run_ends_its_engines_and_scores_nothing(tmp_path, fleets, population):
    told = SimpleNamespace(tell=lambda event: None)
    started = population(member(tmp_path, "agent0", 0.3))
    assert training.estimate(SPEC, tmp_path, told)
    assert started == ["estimate"]
    assert fleets[0].ended
    assert not (tmp_path / "results.json").exists()
    population(member(tmp_path, "agent1", 0.3), interrupted=True)
    assert not training.estimate(SPEC, tmp_path, told)
    population(member(tmp_path, "agent0", error="/error.txt"))
    with pytest.raises(PbtAgentsError, match="nothing could be measured"):
        training.estimate(SPEC, tmp_path, told)


def test_the_report_has_the_totals_and_how_every_arm_stands(tmp_path, fleets, population, monkeypatch):
    population(member(tmp_path, "agent0", 0.3), member(tmp_path, "agent1", 0.7))
    outcome = training.train(SPEC, tmp_path, episodes=8)
    outcome.engines[1][0]["tokens_generated"] = 1040.0
    report = training.report(SPEC, outcome, {"independent": None}, tmp_path, price_per_hour=36.0)
    assert (report.clones, report.seconds, report.cpu_s, report.tokens, report.peak_memory_bytes) == (0, 10.0, 20.0, 1000.0, 3 << 30)
    assert (report.gpu_hours, report.money) == (0.0, pytest.approx(0.1))
    assert report.disk_bytes > 0
    assert (report.arms["population"].best, report.arms["population"].scores.sampled) == ("agent1", 0.7)
    assert report.arms["population"].validation == {"agent0": 0.3, "agent1": 0.7}
    assert report.arms["independent"] is None


def test_an_objective_that_does_not_keep_to_its_cap_is_found_before_engines_start(tmp_path, fleets, monkeypatch):
    """B44."""

    def refuse(config):
        raise GuardError("weighs a stale token 9")

    monkeypatch.setattr(training, "checked_objective", refuse)
    with pytest.raises(GuardError, match="stale token"):
        training.train(SPEC, tmp_path)
    assert fleets == []


def test_a_run_may_be_started_inside_a_running_loop_and_twice_in_a_row(tmp_path, fleets, population):
    """B87: as in a notebook."""
    population(member(tmp_path, "agent0", 0.3))
    before = set(threading.enumerate())

    async def cell(out):
        out.mkdir()
        return training.train(SPEC, out, episodes=8)

    outcomes = [asyncio.run(cell(tmp_path / name)) for name in ("first", "second")]
    assert [outcome.best.name for outcome in outcomes] == ["agent0", "agent0"]
    assert [fleet.ended for fleet in fleets] == [True, True]
    assert set(threading.enumerate()) == before
