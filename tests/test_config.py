import pytest

from pbt_agents.config import AgentConfig, BufferConfig, EvaluationConfig, ObjectiveConfig, RolloutConfig, field_path
from pbt_agents.errors import ConfigError


def test_a_config_survives_a_round_trip_through_a_dict():
    config = AgentConfig().with_values({"learning_rate": 3e-4, "environment.options": {"removed": 5}, "seed": 7})
    assert AgentConfig.from_dict(config.to_dict()) == config


def test_a_field_is_set_by_its_name_or_by_its_path():
    assert AgentConfig().with_values({"window": 2}) == AgentConfig().with_values({"buffer.window": 2})
    assert field_path("ratio_max") == ("objective", "ratio_max")


def test_a_misspelt_name_is_refused_with_the_nearest_known_one():
    """B82."""
    with pytest.raises(ConfigError, match=r"learning_rte.*'learning_rate'"):
        AgentConfig().with_values({"learning_rte": 1e-3})
    with pytest.raises(ConfigError, match=r"windw.*'window'"):
        AgentConfig.from_dict({"buffer": {"windw": 3}})
    with pytest.raises(ConfigError, match=r"bufer.*'buffer'"):
        AgentConfig.from_dict({"bufer": {}})


def test_fields_that_belong_together_are_checked_together():
    config = AgentConfig().with_values({"max_action_tokens": 600, "max_episode_tokens": 1000})
    assert config.rollout.max_action_tokens == 600


def test_a_whole_number_stays_one():
    config = AgentConfig().with_values({"window": 3.0})
    assert config.buffer.window == 3
    assert isinstance(config.buffer.window, int)
    with pytest.raises(ConfigError, match=r"window is a whole number, got 2\.5"):
        AgentConfig().with_values({"window": 2.5})


def test_no_two_sections_share_a_field_name():
    names = [name for section in vars(AgentConfig()).values() if hasattr(section, "__dict__") for name in vars(section)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: RolloutConfig(group_size=1), "group_size"),
        (lambda: RolloutConfig(temperature=0.0), "temperature"),
        (lambda: RolloutConfig(max_episode_tokens=5), "max_episode_tokens"),
        (lambda: BufferConfig(window=-1), "window"),
        (lambda: BufferConfig(max_reuse=0), "max_reuse"),
        (lambda: ObjectiveConfig(ratio_max=1.0), "ratio_max"),
        (lambda: ObjectiveConfig(ratio_min=1.0), "ratio_min"),
        (lambda: EvaluationConfig(patience=0), "patience"),
        (lambda: AgentConfig().with_values({"learning_rate": float("nan")}), "learning_rate"),
        (lambda: AgentConfig().with_values({"lora_rank": 7}), "lora_rank"),
        (lambda: AgentConfig().with_values({"fleet": "own"}), "fleet"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(make, field):
    """B02 for the size of a group."""
    with pytest.raises(ConfigError, match=field):
        make()
