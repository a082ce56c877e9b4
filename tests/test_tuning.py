"""How a spec becomes a Tune run. Whole runs are in test_main_job.py."""

from types import SimpleNamespace

import pytest

from pbt_agents.config import AgentConfig
from pbt_agents.errors import ConfigError
from pbt_agents.population import Budget, PopulationSpec
from pbt_agents.scheduling.lineage import Lineage
from pbt_agents.scheduling.scheduler import InPlacePBT
from pbt_agents.scheduling.selection import Standing
from pbt_agents.tuning import _COMPLETE, EXPERIMENT, _first_values, _has_begun, _parent, _resume_config, _used_up, population_scheduler

SPACE = {"learning_rate": [1e-4, 1e-3, 1e-2], "window": [1, 2, 4]}


def spec(size, **values):
    return PopulationSpec(AgentConfig().with_values({"slots": size}), SPACE, size, **values)


def test_members_begin_with_different_values_from_the_space():
    first = _first_values(spec(3))
    assert sorted(values["learning_rate"] for values in first) == [1e-4, 1e-3, 1e-2]


def test_a_single_member_begins_with_the_agents_own_values():
    agent = AgentConfig().with_values({"learning_rate": 5e-3, "window": 2, "slots": 1})
    assert _first_values(PopulationSpec(agent, SPACE, 1)) == [{"learning_rate": 5e-3, "window": 2}]


def test_first_values_that_are_given_are_taken():
    given = ({"learning_rate": 1e-4, "window": 4}, {"learning_rate": 1e-2, "window": 1})
    assert _first_values(spec(2, initial=given)) == list(given)


@pytest.mark.parametrize(
    ("budget", "seconds", "cpu_s", "over"),
    [
        (Budget(updates=10), 1e9, 1e9, False),  # Tune counts updates
        (Budget(minutes=2), 119, 1e9, False),
        (Budget(minutes=2), 121, 0, True),
        (Budget(cpu_seconds=30), 1e9, 29, False),
        (Budget(cpu_seconds=30), 0, 31, True),
        (Budget(minutes=2, cpu_seconds=30), 121, 29, True),
    ],
)
def test_a_budget_is_used_up_at_the_first_of_its_limits(budget, seconds, cpu_s, over):
    meter = SimpleNamespace(seconds=seconds, usage=lambda: SimpleNamespace(cpu_s=cpu_s))
    assert _used_up(budget, meter) == over


def test_a_run_whose_budget_is_used_up_trains_no_further_when_it_is_resumed(tmp_path):
    (tmp_path / EXPERIMENT).mkdir()
    assert _resume_config(tmp_path).finished.value == "resume"
    (tmp_path / EXPERIMENT / _COMPLETE).touch()
    config = _resume_config(tmp_path)
    assert (config.finished.value, config.unfinished.value, config.errored.value) == ("skip", "resume", "resume")


def test_members_whose_lineage_is_gone_are_not_begun_anew(tmp_path):
    assert not _has_begun(tmp_path)
    (tmp_path / "agent0").mkdir()
    (tmp_path / "agent0" / "result.json").touch()
    with pytest.raises(ConfigError, match=r"holds 1 members, of which lineage\.jsonl knows 0"):
        _has_begun(tmp_path)
    (tmp_path / "lineage.jsonl").touch()
    with pytest.raises(ConfigError, match=r"of which lineage\.jsonl knows 0"):
        _has_begun(tmp_path)
    Lineage(tmp_path / "lineage.jsonl").add_member("9f3a1_00000", {"learning_rate": 1e-3})
    assert _has_begun(tmp_path)
    (tmp_path / "lineage.jsonl").write_text("thesis\n")
    with pytest.raises(ConfigError, match=r"lineage\.jsonl', line 1, is not as it should be"):
        _has_begun(tmp_path)


def test_without_exploits_nobody_is_ever_replaced():
    scores = {"a": Standing(1.0), "b": Standing(0.0), "c": Standing(float("nan"))}
    alone, together = population_scheduler(spec(3, exploit=False)), population_scheduler(spec(3))
    assert isinstance(together, InPlacePBT)
    assert [alone._search.donor_for(member, scores, 1) for member in scores] == [None, None, None]
    assert together._search.donors(scores) == ["a"]


def test_a_member_is_a_clone_of_whom_its_last_result_comes_from():
    """The one that is being made has no result yet."""
    members = {"1_00000": {}, "1_00001": {}, "1_00002": {}}
    events = [
        SimpleNamespace(child="1_00000", parent="1_00001", score_after=0.5),
        SimpleNamespace(child="1_00000", parent="1_00002", score_after=None),
    ]
    scheduler = SimpleNamespace(lineage=SimpleNamespace(members=members, clones=dict(enumerate(events))))
    assert [_parent(scheduler, name) for name in ("agent0", "agent1")] == ["agent1", None]
