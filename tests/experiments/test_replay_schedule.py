"""A winner's schedule, trained again by a single agent: read from its run, followed step by step, and the real thing on an engine."""

import io
import json
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from _replay_plan import read_plan
from replay_schedule import Args, main, steps, train

from pbt_agents.config import AgentConfig
from pbt_agents.engine import SlotTensor
from pbt_agents.errors import ConfigError, NothingToLearnError
from pbt_agents.evaluation import Scores
from pbt_agents.json_files import read_json, write_json
from pbt_agents.models import resolve_model
from pbt_agents.ring import Place, Ring
from pbt_agents.run_folder import new_run
from pbt_agents.scheduling.lineage import CloneEvent, Lineage, write_schedule
from pbt_agents.testing.fake_engine import FakeEngine
from pbt_agents.testing.job import Job
from pbt_agents.testing.random_groups import random_group
from pbt_agents.trainer.lora import adapter_tensors, build_policy

SMALL = {
    "groups_per_batch": 1,
    "group_size": 2,
    "micro_batch_tokens": 256,
    "updates_per_evaluation": 2,
    "evaluation_episodes": 4,
    "slots": 3,
}
FIRST = {"learning_rate": 1e-3, "ratio_max": 3.0, "window": 4}
LATER = [(2, {"learning_rate": 2e-3, "ratio_max": 2.5, "window": 1}), (3, {"learning_rate": 5e-4, "ratio_max": 4.0, "window": 0})]
LATER = [*LATER, (5, {"learning_rate": 1e-4, "ratio_max": 6.0, "window": 8})]
VERSIONS = 7
SCORES = asdict(Scores(8, 0.5, 0.1, 0.4, 0.1, 0))
SCRIPT = Path(__file__).parents[2] / "experiments" / "replay_schedule.py"


@pytest.fixture
def run(tmp_path):
    """Of three members and three clones: the line of the winner, member 0, goes back over 2 and 1 to 2, which began."""
    with new_run(tmp_path / "run", {}, {"agent": AgentConfig().with_values({**SMALL, "seed": 5}).to_dict()}) as folder:
        lineage = Lineage(folder / "population" / "lineage.jsonl")
        for number in range(3):
            lineage.add_member(trial(number), FIRST if number == 2 else {**FIRST, "learning_rate": 9e-3})
        before = FIRST
        for number, (parent, child, (step, values)) in enumerate(zip((2, 1, 2), (1, 2, 0), LATER, strict=True)):
            event = CloneEvent(number, 0.0, trial(parent), trial(child), "", step, step, before, before, values, 0.1, 0.2)
            lineage.add_clone(event)
        write_schedule(lineage, folder / "population" / "schedule.json", trial(0), 0.5, "version")
        members = {f"agent{number}": {"trial": trial(number), "metrics": {"version": VERSIONS}} for number in range(3)}
        write_json(folder / "results.json", {"best": "agent0", "members": members, "scores": SCORES, "base": SCORES})
    return tmp_path / "run"


def trial(number):
    return f"9f3a1_{number:05d}"


def wanted(version):
    """Values that the step to this version trained with."""
    return [values for step, values in [(0, FIRST), *LATER] if step < version][-1]


class Endless(FakeEngine):
    async def close(self):
        pass


@pytest.fixture
def ring(run, tmp_path):
    """On an engine that lets every episode wait, with a group of its own for each step."""
    plan = read_plan(run)
    model = build_policy(resolve_model("tiny"), plan.config.model, seed=0)
    parts = [(name.removeprefix("base_model.model.").partition(".lora_"), tensor) for name, tensor in adapter_tensors(model).items()]
    layout = tuple(SlotTensor(module, 0, matrix[0].lower(), tuple(tensor.shape)) for (module, _, matrix), tensor in parts)
    engine = Endless(("agent0",), layout)
    engine.hold()

    async def connect():
        return [engine]

    (tmp_path / "ring").mkdir()
    made = Ring(Place("agent0", plan.slot, resolve_model("tiny"), tmp_path / "ring", tmp_path, 1), plan.config, layout, connect)
    made.start()
    update, rng = made.update, np.random.default_rng(0)

    def fed(should_stop):
        made.buffer.append(random_group(rng, made.fed_scores, turns=2, version=made.trainer.version))
        return update(should_stop)

    made.update, made.fed_scores = fed, (0.0, 1.0)
    made.evaluate = lambda should_stop: {"fitness": 0.5, "fitness_se": 0.1}
    made.prepare = lambda should_stop: None
    yield made
    made.close()


def test_a_plan_is_the_whole_line_of_the_winner_and_begins_where_it_began(run):
    """B54."""
    plan = read_plan(run)
    assert [(segment.step, segment.values) for segment in plan.segments] == [(0, FIRST), *LATER]
    assert (plan.slot, plan.versions, plan.best) == (2, VERSIONS, Scores(**SCORES))
    assert plan.config == AgentConfig().with_values({**SMALL, **FIRST, "seed": 5, "slots": 1})


def test_a_replay_trains_each_step_with_the_values_that_the_winner_had_at_it(ring, run):
    """B54, B44: as the optimizer, the objective and the buffer tell."""
    rows = list(steps(ring, read_plan(run)))
    assert [row["version"] for row in rows] == list(range(1, VERSIONS + 1))
    for row in rows:
        values = wanted(row["version"])
        assert {name: row[name] for name in values} == values
        assert (row["trainer/learning_rate"], row["trainer/ratio_max"]) == (values["learning_rate"], values["ratio_max"])


def test_an_evaluation_comes_as_often_as_in_the_population_and_at_the_end(ring, run):
    results, log, told = io.StringIO(), io.StringIO(), []
    train(ring, read_plan(run), results, log, told.append)
    rows = [json.loads(line) for line in results.getvalue().splitlines()]
    assert [row["version"] for row in rows] == [2, 4, 6, 7]
    assert [row["window"] for row in rows] == [wanted(version)["window"] for version in (2, 4, 6, 7)]
    assert len(log.getvalue().splitlines()) == VERSIONS
    assert [line.split("  fitness")[0] for line in told] == [f"version {version:4d} of 7" for version in (2, 4, 6, 7)]


def test_where_steps_are_refused_without_end_training_ends_and_says_so(ring, run):
    ring.fed_scores = (0.0, float("nan"))
    log, told = io.StringIO(), []
    train(ring, read_plan(run), io.StringIO(), log, told.append)
    assert len(log.getvalue().splitlines()) == 4
    assert told == ["training ends at version 0 of 7: 4 steps in a row were refused."]


@pytest.mark.parametrize(("times", "last"), [(7, VERSIONS), (8, 0)])
def test_a_replay_plays_on_while_there_is_nothing_to_learn_as_long_as_a_member_would(ring, run, times, last):
    update, left = ring.update, [NothingToLearnError("all alike")] * times

    def update_later(should_stop):
        if left:
            raise left.pop()
        return update(should_stop)

    ring.update = update_later
    train(ring, read_plan(run), io.StringIO(), io.StringIO(), [].append)
    assert ring.trainer.version == last


def unfinished(run):
    (run / "results.json").unlink()


def without_schedule(run):
    (run / "population" / "schedule.json").unlink()


def gone_on(run):
    file = run / "population" / "schedule.json"
    write_json(file, {**read_json(file), "winner": trial(1)})


def without_best(run):
    write_json(run / "results.json", {**read_json(run / "results.json"), "best": None})


def of_an_older_version(run):
    write_json(run / "run.json", {"settings": {}})


def no_run(run):
    (run / "run.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (unfinished, "has not ended: it holds no results.json"),
        (without_schedule, "holds no schedule.json"),
        (gone_on, "schedule.json is that of 9f3a1_00001"),
        (without_best, "has no best member"),
        (of_an_older_version, "is of an older version"),
        (no_run, "holds no run.json"),
    ],
)
def test_what_cannot_be_replayed_is_refused_and_nothing_is_made(run, tmp_path, spoil, told, capsys):
    spoil(run)
    with pytest.raises(ConfigError, match=told):
        read_plan(run)
    assert main(Args(run, tmp_path / "out")) == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_replay_on_a_real_engine_leaves_the_values_of_each_step_an_adapter_and_its_score(run, tmp_path):
    """B54, B71."""
    out = tmp_path / "out"
    manifest = read_json(run / "run.json")
    manifest["population"]["agent"] = (
        AgentConfig().with_values({"groups_per_batch": 2, "group_size": 4, "evaluation_episodes": 8}).to_dict()
    )
    write_json(run / "run.json", manifest)
    with Job([sys.executable, SCRIPT, run, "--out", out], tmp_path / "log") as job:
        assert job.wait(280) == 0, job.output
        job.wait_for_nobody(10)
    rows = [json.loads(line) for line in (out / "population" / "agent0" / "ring" / "updates.jsonl").read_text().splitlines()]
    stepped = [row for row in rows if row["trainer/stepped"]]
    assert [row["version"] for row in stepped] == list(range(1, VERSIONS + 1))
    for row in stepped:
        assert {name: row[name] for name in FIRST} == wanted(row["version"])
        assert row["trainer/lag_steps_max"] <= row["window"]
    scores = read_json(out / "results.json")
    assert (scores["population_best"], scores["replay"]["episodes"]) == (SCORES, 8)
    assert {file.name for file in out.iterdir()} >= {"best", "metrics.parquet", "updates.parquet", "run.json"}
    assert "  replay           sampled " in job.output
    assert not (out / "ray").is_symlink()
