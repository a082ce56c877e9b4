"""A trial's own decisions, around a ring that does as it is told. The whole trial runs in test_main_job.py."""

import json
import math
from types import SimpleNamespace

import pytest

from pbt_agents.config import AgentConfig
from pbt_agents.errors import ConfigError, NoExperienceError, NothingToLearnError
from pbt_agents.pipeline import AgentPipeline, drift, mean_metrics, number_of, read_config, trainers_at_once

CONFIG = AgentConfig().with_values({"updates_per_evaluation": 3, "patience": 2})


class ToldRing:
    """`steps`: 1 for an update that stepped, 0 for one that did not, None for one that was told to stop, an error to raise."""

    def __init__(self, steps, evaluations=({"fitness": 0.5, "fitness_se": 0.1},)):
        self.steps, self.evaluations = list(steps), list(evaluations)
        self.config, self.updates, self.lineage, self.trainer = CONFIG, 0, 4, SimpleNamespace(version=7)
        self.restored = self.applied = None
        self.prepared = 0
        self.playing = False

    def start(self):
        assert not self.playing
        self.playing = True

    def update(self, should_stop):
        assert self.playing
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        if step is None:
            return None
        self.updates += step
        return {"trainer/stepped": float(step), "trainer/loss": float(self.updates), "by_lag": {}}

    def evaluate(self, should_stop):
        return self.evaluations.pop(0)

    def prepare(self, should_stop):
        self.prepared += 1

    def in_use(self):
        return {"learning_rate": 2e-3, "ratio_max": 5.0, "window": 8}

    def settings_in_use(self):
        return {**self.in_use(), "max_grad_norm": 1.0}

    def stats(self):
        return {"buffer/groups": 3}

    def snapshot(self, folder):
        return {"agent": "agent0", "updates": self.updates}

    def restore(self, folder, state, config):
        self.restored = state, config

    def apply(self, config):
        self.applied = config


@pytest.fixture
def trial(tmp_path):
    """Makes a trial, set up, around such a ring."""

    def made(*arguments, config=None):
        pipeline = object.__new__(AgentPipeline)
        pipeline._ring, pipeline.config = ToldRing(*arguments), config or {"agent": CONFIG.to_dict(), "learning_rate": 1e-3}
        pipeline._updates_log = (tmp_path / "updates.jsonl").open("a", buffering=1)
        pipeline._stop_file, pipeline._result, pipeline._without_step = tmp_path / "stop", {"fitness": math.nan}, 0
        pipeline._trial_info = SimpleNamespace(trial_id="9f3a1_00000", trial_name="agent0")
        return pipeline

    return made


def test_a_step_is_so_many_updates_a_fitness_and_the_values_that_trained(trial, tmp_path):
    result = trial([1, 1, 1]).step()
    assert result["fitness"] == 0.5
    assert result["updates"] == 3
    assert result["trainer/loss"] == 2.0  # of 1, 2 and 3
    assert (result["learning_rate"], result["window"], result["version"], result["lineage"]) == (2e-3, 8, 7, 4)
    assert result["buffer/groups"] == 3
    assert "done" not in result
    rows = [json.loads(line) for line in (tmp_path / "updates.jsonl").read_text().splitlines()]
    assert [row["updates"] for row in rows] == [1, 2, 3]
    assert [row["learning_rate"] for row in rows] == [2e-3] * 3


def test_updates_that_did_not_step_are_replaced_up_to_as_many_again(trial):
    assert trial([0, 1, 0, 1, 1]).step()["updates"] == 3
    assert trial([0, 0, 0, 0, 1, 1]).step()["updates"] == 2


def test_a_result_comes_when_a_clone_made_of_it_finds_the_groups_of_its_first_update(trial):
    pipeline = trial([1, 1, 1])
    pipeline.step()
    assert pipeline._ring.prepared == 1


def test_an_agent_that_took_no_step_has_diverged_and_its_result_waits_for_no_groups(trial):
    """B47."""
    pipeline = trial([0] * 6)
    result = pipeline.step()
    assert math.isnan(result["fitness"])
    assert "done" not in result
    assert pipeline._ring.prepared == 0


def test_an_agent_that_can_play_no_more_has_diverged_and_lives_on(trial, tmp_path):
    """B47."""
    pipeline = trial([1, NoExperienceError("no answer"), 1, 1, 1], [{"fitness": 0.2}, {"fitness": 0.4}])
    result = pipeline.step()
    assert math.isnan(result["fitness"])
    assert (result["updates"], result["remark"]) == (1, "no answer")
    assert len((tmp_path / "updates.jsonl").read_text().splitlines()) == 1
    assert pipeline.step()["fitness"] == 0.4


def test_an_agent_that_never_trained_and_cannot_play_fails_with_the_reason(trial):
    """Its weights are the base's: its environment or engine is at fault, and no other member's policy would mend that."""
    with pytest.raises(NoExperienceError, match="no sandbox"):
        trial([NoExperienceError("no sandbox")]).step()


@pytest.mark.parametrize("fitness", [0.0, 1.0], ids=["too hard", "solved"])
def test_an_agent_whose_attempts_all_score_alike_reports_what_they_score(trial, fitness):
    """B01."""
    result = trial([NothingToLearnError("40 groups alike")], [{"fitness": fitness}]).step()
    assert (result["fitness"], result["updates"], result["remark"]) == (fitness, 0, "40 groups alike")
    assert "done" not in result


def test_an_agent_without_a_step_ends_when_patience_does(trial):
    """Two results: else a run whose budget is in updates would never end. A step between begins the count anew."""
    alike = NothingToLearnError("40 groups alike")
    pipeline = trial([alike, 1, 1, 1, alike, 0, 0, 0, 0, 0, 0], [{"fitness": 1.0}] * 4)
    results = [pipeline.step() for _ in range(4)]
    assert [result.get("done", False) for result in results] == [False, False, False, True]
    assert "cut_short" not in results[-1]


@pytest.mark.parametrize(
    ("steps", "evaluations"), [([1, None], []), ([1, 1, 1], [None])], ids=["told while it trains", "told while it is evaluated"]
)
def test_a_step_that_is_cut_short_is_the_last_with_the_last_fitness_and_all_updates(trial, steps, evaluations):
    pipeline = trial([1, 1, 1, *steps], [{"fitness": 0.25}, *evaluations])
    pipeline.step()
    result = pipeline.step()
    assert (result["done"], result["cut_short"]) == (True, True)
    assert result["fitness"] == 0.25
    assert result["updates"] == 3 + steps.count(1)


def test_a_restored_trial_that_is_cut_short_at_once_has_the_fitness_it_was_saved_with(trial, tmp_path):
    saved = trial([1, 1, 1])
    saved.step()
    saved.save_checkpoint(str(tmp_path))
    restored = trial([None])
    restored.load_checkpoint(str(tmp_path))
    result = restored.step()
    assert (result["fitness"], result["fitness_se"], result["done"]) == (0.5, 0.1, True)


def test_a_trial_can_be_saved_before_it_has_a_fitness(trial, tmp_path):
    trial([]).save_checkpoint(str(tmp_path))
    trial([]).load_checkpoint(str(tmp_path))


def test_a_restored_trial_takes_its_own_values_and_not_those_of_who_saved(trial, tmp_path):
    """B44."""
    trial([]).save_checkpoint(str(tmp_path))
    clone = trial([], config={"agent": CONFIG.to_dict(), "learning_rate": 5e-3, "window": 2})
    clone.load_checkpoint(str(tmp_path))
    state, config = clone._ring.restored
    assert state["agent"] == "agent0"
    assert (config.trainer.learning_rate, config.buffer.window) == (5e-3, 2)


def test_new_values_are_applied_to_what_lives(trial):
    pipeline = trial([])
    assert pipeline.reset_config({"agent": CONFIG.to_dict(), "ratio_max": 3.0}) is True
    assert pipeline._ring.applied.objective.ratio_max == 3.0


def test_the_values_in_use_are_read_from_what_trains_and_are_those_that_are_searched(trial):
    """B44: 1e-3 was asked for, 2e-3 trains."""
    pipeline = trial([], config={"agent": CONFIG.to_dict(), "learning_rate": 1e-3, "trainer.max_grad_norm": 9.0, "buffer.window": 1})
    assert pipeline.values_in_use() == {"learning_rate": 2e-3, "trainer.max_grad_norm": 1.0, "buffer.window": 8}


def test_a_trials_config_is_an_agents_with_the_searched_values_over_it():
    config = read_config({"agent": CONFIG.with_values({"seed": 3}).to_dict(), "learning_rate": 7e-3, "window": 16})
    assert config == CONFIG.with_values({"seed": 3, "learning_rate": 7e-3, "window": 16})
    assert read_config({}) == AgentConfig()


@pytest.mark.parametrize("config", [{"learning_rte": 1e-3}, {"agent": {"trainr": {}}}])
def test_a_misspelt_setting_is_refused(config):
    """B82."""
    with pytest.raises(ConfigError, match="Did you mean"):
        read_config(config)


def test_tune_numbers_trials_and_searchers_do_not():
    assert [number_of(name) for name in ("9f3a1_00000", "a_b_00012", "c0ffee12")] == [0, 12, None]


@pytest.mark.parametrize(
    ("values", "trainers"), [({}, 7), ({"engines": 2}, 6), ({"fleet": "per_agent", "engines": 2, "slots": 3}, 2), ({"engines": 9}, 1)]
)
def test_trainers_compute_on_the_cores_that_engines_leave_and_one_always_may(values, trainers, monkeypatch):
    monkeypatch.setattr("pbt_agents.pipeline.cores", lambda: 8)
    assert trainers_at_once(AgentConfig().with_values(values)) == trainers


def test_means_leave_out_what_an_update_does_not_have():
    rows = [{"a": 1.0, "b": math.nan, "text": "x"}, {"a": 3.0, "b": 4.0, "c": 5.0}, {"a": math.inf, "d": math.nan}]
    assert mean_metrics(rows) == {"a": 2.0, "b": 4.0, "c": 5.0}


def test_drift_is_the_mean_over_the_tokens_of_a_lag_in_all_updates():
    """10 tokens at 0.1 and 30 at 0.3 make 0.25."""

    def lags(**tokens_and_nats):
        return {
            "by_lag": {name.strip("_"): {"tokens": tokens, "log_ratio_abs_mean": nats} for name, (tokens, nats) in tokens_and_nats.items()}
        }

    rows = [lags(_0=(5, 1e-6), _1=(10, 0.1), _3=(1, 0.5)), lags(_1=(30, 0.3), _4=(3, 0.9)), {"by_lag": {}}]
    rows.append({"by_lag": {"8": {"tokens": 1, "log_ratio_abs_mean": 2.0}, "16": {"tokens": 1, "log_ratio_abs_mean": 4.0}}})
    told = drift(rows)
    assert list(told) == ["drift/lag_0", "drift/lag_1", "drift/lag_3_4", "drift/lag_5_8", "drift/lag_9_up"]
    assert list(told.values()) == pytest.approx([1e-6, 0.25, 0.8, 2.0, 4.0])
