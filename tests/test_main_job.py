"""The main example on real engines, Ray and W&B: one eventful run of three members in five sessions, and a calm one of a single agent.

Each session is a fixture that goes on where the one before was ended, and keeps what it left for the tests to look at.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from evaluate_transformers import Args, load_policy
from evaluate_transformers import play as play_greedily
from transformers import AutoTokenizer

from pbt_agents.config import AgentConfig, EnvironmentConfig
from pbt_agents.environment import environment_maker
from pbt_agents.models import resolve_model
from pbt_agents.scheduling.lineage import Lineage
from pbt_agents.testing.session import RunningSession, journal_of, rows_of
from pbt_agents.testing.wandb_files import offline_runs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = Path(__file__).with_name("small_job.py")
REPOSITORY = SCRIPT.parents[1]
MEMBERS = ["agent0", "agent1", "agent2"]
UPDATES, EPISODES, SEED = 40, 16, 1
TEST_STREAM = 12
"""Of the tasks that finished adapters are scored on."""
SAID = re.compile(
    r"torch .*, vllm.*|starting Ray|starting the engines.*|budget: .*|training \d members?|scoring the members on fresh tasks|interrupted.*"
    r"| *\d+ s  (Ray is up|1 engine\(s\) ready; .*|training (has ended|was interrupted), .*|all are scored|extrapolated: .*)"
    r"| *\d+ s  (ray|engines|training|scoring): .* left.*| *\d+ s  agent\d \(.*\) is now a clone of agent\d \(.*\): .*"
    r"| *\d+ s  agent\d  update .*| *\d+ s  agent\d failed and goes on .*| *\d+ s  agent\d: .*"
)


def session(out, *flags, size=3):
    # The package too: else a checkout beside the one that is installed would test the other's.
    environment = {"PYTHONPATH": os.pathsep.join([f"{REPOSITORY / 'experiments'}", f"{REPOSITORY}"]), "WANDB_MODE": "offline"}
    return RunningSession([sys.executable, SCRIPT, *flags], out, size, environment)


def used(row):
    return {"learning_rate": row["trainer/learning_rate"], "ratio_max": row["trainer/ratio_max"], "window": row["window"]}


def strict(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("main") / "run"


@pytest.fixture(scope="module")
def stopped_early(out):
    """Ctrl-C while the engine starts."""
    with session(out, "--population", 3, "--updates", UPDATES, "--test-episodes", EPISODES, "--seed", SEED, "--out", out) as play:
        play.job.wait_for(play.engines, "engine")
        return play.end(play.job.interrupt, 130)


@pytest.fixture(scope="module")
def interrupted(out, stopped_early):
    """Resumed, then Ctrl-C while every member trains and one is a clone."""
    with session(out, "--resume", out) as play:
        play.wait_for_updates(5)
        play.job.wait_for(lambda: "  from agent" in play.job.output, "clone")
        return play.end(play.job.interrupt, 130)


@pytest.fixture(scope="module")
def recovered(out, interrupted):
    """Resumed; the process of a clone is killed, and when it is back, SIGTERM ends the run."""
    with session(out, "--resume", out) as play:
        play.wait_for_updates(3)
        facts = play.facts
        facts.clone = play.member(list(Lineage(journal_of(out)).clones.values())[-1].child)
        facts.engines = play.engines()
        [victim] = [process for process in play.job.processes() if process.cwd().endswith(facts.clone)]
        victim.kill()
        facts.killed_at = len(rows_of(out, facts.clone))
        lineage = rows_of(out, facts.clone)[-1]["lineage"]
        play.job.wait_for(lambda: rows_of(out, facts.clone)[-1]["lineage"] > lineage, f"{facts.clone} again")
        facts.engines_after = play.engines()
        return play.end(lambda: play.job.send(signal.SIGTERM), 130)


@pytest.fixture(scope="module")
def killed(out, recovered):
    """Resumed, then SIGKILL of the driver. A stranger's process is called as one of ours."""
    with (
        session(out, "--resume", out) as play,
        subprocess.Popen(["ray::_EngineActor", "600"], executable="/bin/sleep") as stranger,
    ):
        play.wait_for_updates(3)
        play.facts.folder = (out / "ray").resolve()
        ended = play.end(lambda: play.job.send(signal.SIGKILL), -signal.SIGKILL)
        play.facts.stranger_lives = stranger.poll() is None
        stranger.kill()
        return ended


@pytest.fixture(scope="module")
def finished(out, killed):
    """Resumed, and left alone until its end."""
    with session(out, "--resume", out) as play:
        return play.end(lambda: None, 0, within_s=600)


def test_ctrl_c_while_the_engine_starts_ends_everything_in_ten_seconds(stopped_early):
    """B71."""
    assert stopped_early.seconds < 10
    assert stopped_early.output.splitlines()[-1].startswith("interrupted. From what each member saved last it goes on with: ")


@pytest.mark.parametrize("ended", ["interrupted", "recovered"])
def test_an_interruption_ends_everything_in_ten_seconds_and_what_was_trained_is_saved(ended, out, request):
    """B71: with Ctrl-C, and with SIGTERM. A member may have become a clone after its last update."""
    ended = request.getfixturevalue(ended)
    assert ended.seconds < 10
    assert ended.output.splitlines()[-1].startswith("interrupted and saved. Go on with: ")
    for name in MEMBERS:
        last, saved = ended.rows[name][-1], ended.saved[name][-1]
        clones = [clone for clone in Lineage(journal_of(out)).clones.values() if clone.child.endswith(name.removeprefix("agent"))]
        became = [clone.parent_step for clone in clones if clone.time_s > last["started"]]
        assert saved["version"] in (last["version"], *became)
        assert saved["agent"] == name
        assert saved["updates"] == last["updates"]


@pytest.mark.parametrize(("before", "after"), [("interrupted", "recovered"), ("recovered", "killed")])
def test_a_resumed_run_goes_on_with_the_updates_and_values_that_each_member_had(before, after, request):
    """B52."""
    before, after = request.getfixturevalue(before), request.getfixturevalue(after)
    for name in MEMBERS:
        last, first = before.rows[name][-1], after.new_rows(name)[0]
        assert first["updates"] == last["updates"] + 1
        assert first["version"] == before.saved[name][-1]["version"] + 1
        assert first["lineage"] > last["lineage"]
        assert used(first) == before.decided[name][-1]


def test_a_member_whose_process_is_killed_is_back_from_its_checkpoint_with_its_mutated_values(recovered):
    """B44, B52."""
    name, at = recovered.facts.clone, recovered.facts.killed_at
    assert f"{name} failed and goes on from its last checkpoint" in recovered.output
    lost, back = recovered.rows[name][at - 1], recovered.rows[name][at]
    assert back["lineage"] > lost["lineage"]
    assert back["updates"] > 1
    assert used(back) in recovered.decided[name][1:]
    assert recovered.facts.engines == recovered.facts.engines_after != []


def test_sigkill_of_the_driver_leaves_no_process_and_no_temporary_file_and_no_stranger_is_touched(killed):
    """B71."""
    assert not killed.facts.folder.exists()
    assert killed.facts.stranger_lives


def test_after_sigkill_a_run_goes_on_from_the_last_checkpoints(killed, finished):
    """B52, B72."""
    for name in MEMBERS:
        first = finished.new_rows(name)[0]
        assert first["version"] - 1 in [saved["version"] for saved in killed.saved[name]]
        assert first["updates"] > max(row["updates"] for row in killed.rows[name]) - 6
        assert used(first) in killed.decided[name]
        assert finished.rows[name][-1]["updates"] >= UPDATES or f"{name} ends: " in finished.output


def test_every_update_of_every_member_used_the_values_that_it_had_been_given(finished):
    """B44, B48."""
    for name in MEMBERS:
        values = [used(row) for row in finished.rows[name]]
        assert values[0] == finished.decided[name][0]
        assert all(value in finished.decided[name] + undone(finished.out, name) for value in values)


def undone(out, name):
    """Values of clones that trained, and that the death of the driver took back."""
    events = [json.loads(line) for line in journal_of(out).read_text().splitlines()]
    numbers = {event["number"] for event in events if event["kind"] == "undone"}
    clones = [event for event in events if event["kind"] == "clone" and event["number"] in numbers]
    return [event["values"] for event in clones if MEMBERS[int(event["child"].rpartition("_")[2])] == name]


def test_no_update_trained_on_anything_older_than_its_window(finished):
    """B27: also where a clone took over the groups of a donor with a wider one."""
    rows = [row for name in MEMBERS for row in finished.rows[name] if row["trainer/trained_tokens"]]
    assert all(row["trainer/lag_steps_max"] <= row["window"] for row in rows)
    assert any(row["trainer/lag_steps_max"] > 0 for row in rows)


def test_clones_took_over_better_members_with_values_that_changed_and_trained_with_them(finished):
    """B47, B48."""
    clones = list(Lineage(journal_of(finished.out)).clones.values())
    assert len(clones) >= 3
    for event in clones:
        assert not event.score_before >= event.parent_score
        assert event.values != event.parent_values
        if event.score_after is not None:
            assert event.values in [used(row) for row in finished.rows[MEMBERS[int(event.child[-1])]]]


def test_the_engine_of_the_start_served_to_the_end(finished):
    results = strict((finished.out / "results.json").read_text())
    pids = [[engine["pid"] for engine in results["engines"][when]] for when in ("start", "end")]
    assert pids[0] == pids[1]
    assert len(pids[0]) == 1


def test_what_a_run_leaves_is_whole_and_strict_json(finished):
    folder = finished.out / "population"
    for file in (finished.out / "results.json", finished.out / "run.json", finished.out / "usage.json"):
        strict(file.read_text())
    for name in MEMBERS:
        for line in (folder / name / "ring" / "updates.jsonl").read_text().splitlines():
            strict(line)
    lineage, schedule = (strict((folder / name).read_text()) for name in ("lineage.json", "schedule.json"))
    assert len(lineage["members"]) == 3
    assert [event["number"] for event in lineage["clones"]] == list(Lineage(journal_of(finished.out)).clones)
    winner = MEMBERS[int(schedule["winner"][-1])]
    assert schedule["segments"][-1]["values"] == finished.decided[winner][-1]


def test_usage_is_that_of_all_sessions(finished):
    usage = strict((finished.out / "usage.json").read_text())
    assert usage["seconds"] > finished.seconds
    assert 0 < usage["peak_pss_bytes"] < 8 << 30
    assert usage["cpu_s"] > 30


def test_each_member_has_one_wandb_run_in_one_group_whose_updates_only_rise(killed, finished):
    """B64, B66. Only what the killed driver had not handed over may be missing."""
    runs = offline_runs(finished.out)
    assert len({group for group, _ in runs.values()}) == 1
    assert sorted(run[-6:] for run in runs) == MEMBERS
    for run, (_, rows) in runs.items():
        logged = [row["updates"] for row in rows]
        results = map(json.loads, (finished.out / "population" / run[-6:] / "result.json").read_text().splitlines())
        evaluated = {result["updates"] for result in results if "cut_short" not in result}
        handed_over = evaluated - {row["updates"] for row in killed.new_rows(run[-6:])}
        assert logged == sorted(logged)
        assert handed_over <= set(logged)


def test_the_best_adapter_scores_the_same_with_transformers_and_peft(finished):
    """B39, B40: greedy, on the same fresh tasks, without anything of the ring."""
    folder, results = resolve_model("tiny"), strict((finished.out / "results.json").read_text())
    tasks = np.random.default_rng([SEED, TEST_STREAM]).integers(1 << 62, size=EPISODES).tolist()
    make = environment_maker(EnvironmentConfig("sudoku:tiny"), "test")
    model, tokenizer = load_policy(folder, finished.out / "best"), AutoTokenizer.from_pretrained(folder)
    scores = play_greedily(model, tokenizer, [(make(), task) for task in tasks], Args(), greedy=True)
    assert scores.mean() == pytest.approx(results["scores"]["greedy"], abs=1e-6)
    assert results["scores"]["episodes"] == EPISODES


def test_nothing_is_printed_but_lines_of_ones_own(stopped_early, interrupted, finished):
    for ended in (stopped_early, interrupted):
        assert [line for line in ended.output.splitlines() if not SAID.fullmatch(line)] == []
    progress, _, report = finished.output.partition("\n\n")
    assert [line for line in progress.splitlines() if not SAID.fullmatch(line)] == []
    assert len(report.splitlines()) == 6


def test_sigkill_while_the_engine_starts_leaves_nobody(tmp_path):
    """B71."""
    with session(tmp_path / "run", "--population", 1, "--out", tmp_path / "run", size=1) as play:
        play.job.wait_for(play.engines, "engine")
        assert play.end(lambda: play.job.send(signal.SIGKILL), -signal.SIGKILL).seconds < 10


def test_one_agent_trains_synchronously_until_its_minutes_are_used_up(tmp_path):
    out = tmp_path / "run"
    flags = ["--population", 1, "--window", 0, "--minutes", 0.5, "--updates", 5000, "--test-episodes", EPISODES]
    with session(out, *flags, "--out", out, size=1) as play:
        ended = play.end(lambda: None, 0, within_s=600)
    rows, results = ended.rows["agent0"], strict((out / "results.json").read_text())
    assert 0 < len(rows) < 5000
    assert {row["trainer/lag_steps_max"] for row in rows} == {0}
    assert {row["window"] for row in rows} == {0}
    assert {row["trainer/learning_rate"] for row in rows} == {AgentConfig().trainer.learning_rate}
    assert results["best"] == "agent0"
    assert results["clones"] == 0
    assert 0.5 * 60 <= results["seconds"] < 0.5 * 60 + 60
    assert [line for line in ended.output.partition("\n\n")[0].splitlines() if not SAID.fullmatch(line)] == []
