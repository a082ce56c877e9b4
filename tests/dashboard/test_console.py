import io
from types import SimpleNamespace

from pbt_agents.dashboard.console import ConsoleLines, line

RESULT = {"updates": 20, "fitness": 0.4125, "fitness_se": 0.03, "learning_rate": 1.5e-3, "ratio_max": 5.0, "window": 8}


def trial(name, error_file=None, folder="/runs/a/population/agent2"):
    return SimpleNamespace(name=name, error_file=error_file, storage=SimpleNamespace(trial_fs_path=folder))


def lines(parents=None):
    stream = io.StringIO()
    return stream, ConsoleLines(lambda trial: trial.name, (parents or {}).get, stream)


def test_a_line_says_how_a_member_stands_and_what_it_trained_with():
    result = {**RESULT, "trainer/lag_steps_mean": 2.34}
    assert line("agent1", result, None) == "agent1  update   20  score  0.412 ±0.030  rate 1.5e-03  cap  5.0  window  8  lag  2.3"


def test_a_member_whose_objective_has_no_cap_has_a_line():
    uncapped = {name: value for name, value in RESULT.items() if name != "ratio_max"}
    assert "rate 1.5e-03  cap    -  window  8" in line("agent1", uncapped, None)


def test_a_clone_names_its_parent():
    stream, console = lines({"agent1": "agent3"})
    console.on_trial_result(1, [], trial("agent1"), RESULT)
    console.on_trial_result(1, [], trial("agent2"), RESULT)
    first, second = stream.getvalue().splitlines()
    assert first.endswith("from agent3")
    assert "from" not in second


def test_a_member_without_a_fitness_yet_has_a_line():
    stream, console = lines()
    console.on_trial_result(1, [], trial("agent1"), {**RESULT, "fitness": float("nan")} | {"updates": 0})
    assert "score    nan" in stream.getvalue()


def test_a_member_that_takes_too_few_steps_says_why_and_when_it_ends():
    stream, console = lines()
    console.on_trial_result(1, [], trial("agent1"), {**RESULT, "remark": "40 groups alike"})
    console.on_trial_result(1, [], trial("agent1"), {**RESULT, "remark": "40 groups alike", "done": True})
    _, first, _, second = stream.getvalue().splitlines()
    assert first.endswith("  agent1: 40 groups alike")
    assert second.endswith("  agent1 ends: 40 groups alike")


def test_a_score_that_is_only_repeated_at_the_end_has_no_line():
    stream, console = lines()
    console.on_trial_result(1, [], trial("agent1"), {**RESULT, "done": True, "cut_short": True})
    assert stream.getvalue() == ""


def test_a_failure_is_told_by_its_last_line_and_the_file_that_stays(tmp_path):
    file = tmp_path / "error.txt"
    file.write_text("Failure # 1\nTraceback\n  File x\nKeyError: 'scored'\n\n")
    stream, console = lines()
    console.on_trial_recover(1, [], trial("agent2", file))
    console.on_trial_error(1, [], trial("agent2", file))
    recovered, failed = stream.getvalue().splitlines()
    assert recovered.endswith(
        "agent2 failed and goes on from its last checkpoint: KeyError: 'scored' (/runs/a/population/agent2/error.txt)"
    )
    assert failed.endswith("agent2 failed for good: KeyError: 'scored' (/runs/a/population/agent2/error.txt)")


def test_a_long_reason_is_cut_to_a_line(tmp_path):
    file = tmp_path / "error.txt"
    file.write_text("word " * 1000)
    stream, console = lines()
    console.on_trial_error(1, [], trial("agent2", file))
    assert len(stream.getvalue()) < 350
    assert len(stream.getvalue().splitlines()) == 1


def test_a_failure_without_a_readable_file_is_told_all_the_same(tmp_path):
    stream, console = lines()
    console.on_trial_error(1, [], trial("agent2", tmp_path / "error.txt"))
    assert "agent2 failed for good: " in stream.getvalue()
