"""What a watch tells of results, clones, failures and progress; no Ray runs here."""

import json
import math
from types import SimpleNamespace

import pytest

from pbt_agents.config import AgentConfig
from pbt_agents.dashboard import population_watch
from pbt_agents.dashboard.events import Cloned, Estimate, MemberFailure, MemberRemark, MemberResult, Note, Progress
from pbt_agents.dashboard.population_watch import PopulationWatch
from pbt_agents.population import Budget, PopulationSpec
from pbt_agents.resources import Usage
from pbt_agents.scheduling.lineage import CloneEvent, Lineage

SPEC = PopulationSpec(AgentConfig().with_values({"slots": 3}), {"learning_rate": [1e-3, 1e-2]}, 3, Budget(updates=95))
RESULT = {
    "updates": 10,
    "fitness": 0.4125,
    "fitness_se": 0.03,
    "learning_rate": 1.5e-3,
    "ratio_max": 5.0,
    "window": 8,
    "trainer/lag_steps_mean": 2.34,
    "rollout/action_tokens": 3000.0,
    "time_this_iter_s": 20.0,
}


class Population:
    """A watch over three members on a clock of its own; `events` is what was told."""

    def __init__(self, folder, monkeypatch, budget=SPEC.budget, price=None):
        self.now, self.usage, self.events, self.folder = 1000.0, Usage(seconds=30.0, cpu_s=50.0), [], folder
        monkeypatch.setattr(population_watch.time, "monotonic", lambda: self.now)
        self.lineage = Lineage(folder / "lineage.jsonl")
        for number in range(3):
            self.lineage.add_member(self.trial(number).trial_id, {"learning_rate": 1e-3})
        spec = PopulationSpec(SPEC.agent, SPEC.search_space, 3, budget)
        names = {self.trial(number).trial_id: f"agent{number}" for number in range(3)}
        self.watch = PopulationWatch(
            self, spec, names.__getitem__, lambda: self.lineage, lambda: self.usage, folder, folder, price_per_hour=price
        )

    def tell(self, event):
        self.events.append(event)

    def trial(self, number, error_file=None):
        folder = str(self.folder / f"agent{number}")
        return SimpleNamespace(trial_id=f"9f3a1_0000{number}", error_file=error_file, storage=SimpleNamespace(trial_fs_path=folder))

    def start(self):
        for number in range(3):
            self.watch.on_trial_start(0, [], self.trial(number))

    def result(self, number, **values):
        self.watch.on_trial_result(1, [], self.trial(number), {**RESULT, **values})
        return next((event for event in reversed(self.events) if isinstance(event, MemberResult)), None)

    def look(self):
        self.now += 2.0
        self.watch.on_step_end(1, [])
        return self.told(Progress)[-1]

    def beacon(self, number, **said):
        standing = {"updates": 0, "doing": "train", "doing_s": 1.0, "episodes": 0, "begun": 0, "oldest_s": 0.0, **said}
        (self.folder / f"agent{number}.beacon").write_text(json.dumps(standing))

    def clone(self, number, child, parent, latency_s=None):
        ids = {"parent": self.trial(parent).trial_id, "child": self.trial(child).trial_id}
        values = {"values_before": {"learning_rate": 1e-3}, "parent_values": {"learning_rate": 4e-3}, "values": {"learning_rate": 2e-3}}
        scores = {"score_before": 0.1, "parent_score": 0.5, "latency_s": latency_s}
        event = CloneEvent(number=number, time_s=0.0, checkpoint="", parent_step=10, child_step=10, **ids, **values, **scores)
        self.lineage.add_clone(event)

    def told(self, kind):
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def population(tmp_path, monkeypatch):
    made = Population(tmp_path, monkeypatch)
    made.start()
    return made


def test_a_result_is_told_with_the_values_that_ran_and_not_those_that_were_asked_for(population):
    event = population.result(1, config={"learning_rate": 9.0, "window": 77})
    assert event == MemberResult("agent1", 0, 10, 0.4125, 0.03, 1.5e-3, 5.0, 8, 2.34, 150.0, None)


def test_a_fitness_that_was_to_be_reached_ends_the_run_at_the_first_result_that_has_it(tmp_path, monkeypatch):
    population = Population(tmp_path, monkeypatch, Budget(updates=100, fitness=0.5))
    population.start()
    population.result(0, fitness=0.49)
    assert not population.watch.reached
    population.result(1, fitness=0.5)
    population.now += 40.0
    population.result(0, updates=20, fitness=0.6)
    assert population.watch.reached
    assert [note.text() for note in population.told(Note)] == ["agent1 has a score of 0.500, and 0.5 was to be reached: training ends"]


def test_a_fitness_that_was_reached_before_a_run_was_resumed_ends_it(tmp_path, monkeypatch):
    population = Population(tmp_path, monkeypatch, Budget(updates=100, fitness=0.5))
    (tmp_path / "agent1").mkdir()
    (tmp_path / "agent1" / "result.json").write_text(json.dumps({**RESULT, "fitness": 0.55}) + "\n")
    population.start()
    assert population.watch.reached


def test_tokens_a_second_are_those_since_the_last_result(population):
    population.result(1)
    population.now += 40.0
    assert population.result(1, updates=20, **{"rollout/action_tokens": 5000.0}).tokens_per_s == 50.0


def test_tokens_of_a_process_that_starts_again_are_not_compared_with_those_of_the_former(population):
    population.result(1)
    population.watch.on_trial_start(0, [], population.trial(1))
    population.now += 10.0
    assert population.result(1, updates=20, **{"rollout/action_tokens": 500.0}).tokens_per_s == 50.0


def test_an_objective_without_a_cap_has_none(population):
    without = {name: value for name, value in RESULT.items() if name != "ratio_max"}
    population.watch.on_trial_result(1, [], population.trial(0), without)
    assert population.events[-1].ratio_max is None


def test_a_score_that_is_only_repeated_at_the_end_is_not_told(population):
    population.watch.on_trial_result(1, [], population.trial(0), {**RESULT, "done": True, "cut_short": True})
    assert population.events == []


def test_a_member_that_takes_too_few_steps_says_why_and_whether_it_ends(population):
    population.result(1, remark="40 groups alike")
    population.now += 20.0
    population.result(1, remark="40 groups alike", done=True)
    assert population.told(MemberRemark) == [MemberRemark("agent1", "40 groups alike", ends) for ends in (False, True)]


def test_that_the_environment_does_not_repeat_itself_is_told_once(population):
    for number, found in ((0, 0.0), (1, 1.0), (2, 3.0), (1, 2.0)):
        population.result(number, **{"audit/not_reproducible": found})
        population.now += 20.0
    (note,) = population.told(Note)
    assert "the environment does not repeat itself" in note.text()
    kinds = [type(event) for event in population.events if isinstance(event, Note | MemberResult)]
    assert kinds == [MemberResult, MemberResult, Note, MemberResult, MemberResult]


def test_the_pace_of_the_first_result_is_that_of_its_updates_and_not_that_of_the_start(population):
    """Of a step of 90 s the first 60 s go by before anything is trained on; the 9 updates after the first take 2 s each."""
    population.beacon(0, updates=0)
    for _ in range(30):
        population.look()
    for updates in range(1, 10):
        population.beacon(0, updates=updates)
        population.look()
    population.now += 2.0
    population.result(0, updates=10, time_this_iter_s=90.0)
    assert population.look().eta_s == pytest.approx(90 * 2.0, abs=3.0)


def test_a_clone_is_told_once_when_it_is_applied_and_not_when_it_is_decided(population):
    population.clone(0, child=1, parent=2)
    population.look()
    assert population.told(Cloned) == []
    population.lineage.applied(0, 0.08)
    population.look()
    population.look()
    assert population.told(Cloned) == [Cloned("agent1", "agent2", 0.1, 0.5, {"learning_rate": 1e-3}, {"learning_rate": 2e-3}, 0.08)]


def test_clones_of_a_former_session_are_not_told_again(tmp_path, monkeypatch):
    resumed = Population(tmp_path, monkeypatch)
    resumed.clone(0, child=1, parent=2, latency_s=0.1)
    resumed.start()
    resumed.look()
    assert resumed.told(Cloned) == []


def test_the_generation_counts_the_clones_in_the_line_and_the_result_that_led_to_a_clone_is_of_the_old_line(population):
    population.clone(0, child=2, parent=0, latency_s=0.1)
    population.clone(1, child=1, parent=2)
    before = population.result(1)
    population.lineage.applied(1, 0.1)
    population.now += 20.0
    after = population.result(1, updates=20)
    assert (before.generation, before.parent) == (0, None)
    assert (after.generation, after.parent) == (2, "agent2")


def test_a_failure_is_told_by_its_last_line_and_the_file_that_stays(population, tmp_path):
    file = tmp_path / "error.txt"
    file.write_text("Failure # 1\nTraceback\n  File x\nKeyError: 'scored'\n\n")
    population.watch.on_trial_recover(1, [], population.trial(2, file))
    population.watch.on_trial_error(1, [], population.trial(2, file))
    reason = f"KeyError: 'scored' ({tmp_path}/agent2/error.txt)"
    assert population.events == [MemberFailure("agent2", reason, final) for final in (False, True)]


def test_a_long_reason_is_cut_short_and_one_that_cannot_be_read_is_told_all_the_same(population, tmp_path):
    (tmp_path / "long.txt").write_text("word " * 1000)
    population.watch.on_trial_error(1, [], population.trial(1, tmp_path / "long.txt"))
    population.watch.on_trial_error(1, [], population.trial(2, tmp_path / "gone.txt"))
    long, gone = population.events
    assert len(long.reason) < 300 + len(str(tmp_path))
    assert "No such file" in gone.reason


def test_progress_counts_what_the_members_say_themselves_and_respects_that_an_evaluation_ends_them(population):
    """95 updates end with the evaluation after the 100th."""
    population.beacon(0, updates=7)
    population.beacon(1, updates=9)
    progress = population.look()
    assert (progress.done, progress.total, progress.cpu_s, progress.eta_s) == (16, 300, 50.0, None)
    assert progress.updates == {"agent0": 7, "agent1": 9}


def test_the_end_lies_between_that_of_the_slowest_alone_and_that_of_all_together(population):
    """Updates of 2 s and of 4 s each, evaluation included: 90 are left of each, and 2 s have gone by: 358 s, or 178.5 / 0.75 s."""
    population.result(0, time_this_iter_s=20.0)
    population.result(1, time_this_iter_s=40.0)
    assert population.look().eta_s == pytest.approx(math.sqrt(358.0 * 238.0))


def test_a_member_that_failed_for_good_is_not_waited_for(population, tmp_path):
    population.result(0, time_this_iter_s=20.0)
    population.result(1, time_this_iter_s=40.0)
    population.watch.on_trial_error(1, [], population.trial(1, tmp_path / "gone.txt"))
    assert population.look().eta_s == pytest.approx(math.sqrt(178.0 * 89 / 0.75))


def test_the_end_of_a_resumed_run_is_known_before_its_first_result(tmp_path, monkeypatch):
    """B84: 50 updates are left, of 3 s as in the session before."""
    resumed = Population(tmp_path, monkeypatch)
    for number in range(3):
        (tmp_path / f"agent{number}").mkdir()
        rows = [{"updates": updates, "time_this_iter_s": 30.0} for updates in (10, 20, 30, 40, 50)]
        (tmp_path / f"agent{number}" / "result.json").write_text("\n".join([*map(json.dumps, rows), '{"updates": 6']))
    resumed.start()
    progress = resumed.look()
    assert progress.eta_s == pytest.approx(150.0)
    assert progress.done == 150


def test_cpu_seconds_that_run_out_first_end_the_run_first(tmp_path, monkeypatch):
    """Two CPU seconds a second, and 96 of them are left."""
    population = Population(tmp_path, monkeypatch, Budget(updates=100, cpu_seconds=150))
    population.start()
    population.result(0)
    population.look()
    population.usage = Usage(seconds=32.0, cpu_s=54.0)
    assert population.look().eta_s == pytest.approx(48.0)


def test_what_is_awaited_is_told_while_no_result_comes(population):
    """B84."""
    population.beacon(0, doing="wait_for_groups", doing_s=38.0, episodes=3, begun=64, oldest_s=40.0)
    population.beacon(1)
    assert population.look().waiting == "agent0 is waiting for 3 of 64 rollouts, oldest 40 s"


def test_once_every_member_has_a_result_it_is_told_what_the_whole_comes_to(tmp_path, monkeypatch):
    """B85. 180 s are left after 32 s, at 2 CPU seconds and three times 150 tokens a second; what is left is not a GPU's."""
    population = Population(tmp_path, monkeypatch, price=36.0)
    population.start()
    for number in range(3):
        population.beacon(number)
    population.look()
    population.usage = Usage(seconds=32.0, cpu_s=54.0)
    population.result(0)
    population.result(1)
    population.look()
    assert population.told(Estimate) == []
    assert not population.watch.estimated
    population.result(2)
    population.look()
    population.look()
    assert population.watch.estimated
    [told] = population.told(Estimate)
    left = population.told(Progress)[-2].eta_s
    assert left == pytest.approx(178.0, abs=2)
    assert told.seconds == pytest.approx(32 + left)
    assert told.cpu_hours == pytest.approx((54 + 2 * left) / 3600)
    assert told.tokens == pytest.approx(450 * told.seconds)
    assert (told.gpu_hours, told.money) == (0.0, pytest.approx(36.0 * told.seconds / 3600))


def test_the_cpu_seconds_of_the_start_say_nothing_of_those_that_follow(tmp_path, monkeypatch):
    """Ten a second while the last member starts, two a second from then on; 96 are left."""
    population = Population(tmp_path, monkeypatch, Budget(cpu_seconds=250))
    population.start()
    population.beacon(0)
    population.look()
    population.usage = Usage(seconds=40.0, cpu_s=150.0)
    population.beacon(1)
    population.look()
    population.usage = Usage(seconds=42.0, cpu_s=154.0)
    assert population.look().eta_s == pytest.approx(48.0)
