import math
import subprocess
import sys

import numpy as np
import pytest

from pbt_agents.config import AgentConfig, BufferConfig, EnvironmentConfig, EvaluationConfig, ObjectiveConfig, RolloutConfig, field_path
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


def test_a_field_that_was_written_as_an_integer_takes_fractions():
    config = AgentConfig(rollout=RolloutConfig(temperature=1))
    assert config.with_values({"temperature": 0.5}).rollout.temperature == 0.5


def test_no_two_sections_share_a_field_name():
    names = [name for section in vars(AgentConfig()).values() if hasattr(section, "__dict__") for name in vars(section)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("group_size", "abc", "is a whole number, got 'abc'"),
        ("group_size", True, "is a whole number, got True"),
        ("group_size", [8], r"is a whole number, got \[8\]"),
        ("group_size", math.inf, "is a whole number, got inf"),
        ("group_size", None, "is a whole number, got None"),
        ("learning_rate", "abc", "is a number, got 'abc'"),
        ("trainer.learning_rate", None, "is a number, got None"),
        ("learning_rate", True, "is a number, got True"),
        ("learning_rate", [1e-3], r"is a number, got \[0.001\]"),
        ("learning_rate", np.array([1e-3, 1e-2]), "is a number, got array"),
        ("seed", "abc", "is a whole number, got 'abc'"),
        ("advantage", 3, "is a word such as 'group_standardized', got 3"),
        ("advantage", ["group_centered"], r"is a word such as .*, got \['group_centered'\]"),
        ("options", 3, r"holds values by name, got 3\. Write it as \{'name': value\}"),
    ],
)
def test_a_value_of_another_type_is_refused_with_name_value_and_remedy(name, value, complaint):
    with pytest.raises(ConfigError, match=f"^{name} {complaint}"):
        AgentConfig().with_values({name: value})


def test_a_dict_of_settings_is_checked_as_single_ones_are():
    with pytest.raises(ConfigError, match=r"^trainer\.learning_rate is a number, got 'abc'"):
        AgentConfig.from_dict({"trainer": {"learning_rate": "abc"}})
    with pytest.raises(ConfigError, match=r"^seed is a whole number, got 0\.5"):
        AgentConfig.from_dict({"seed": 0.5})
    with pytest.raises(ConfigError, match=r"^'buffer' is a section and holds settings by name, got 3"):
        AgentConfig.from_dict({"buffer": 3})


def test_an_objective_that_there_is_not_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"'cisppo'.*Did you mean 'cispo'"):
        AgentConfig().with_values({"objective": "cisppo"})
    with pytest.raises(ConfigError, match="'cispo:nonsense' asks for a variant"):
        ObjectiveConfig("cispo:nonsense")


def test_an_objective_ignores_what_its_file_says(tmp_path, monkeypatch):
    assert ObjectiveConfig("cispo").ignored == ObjectiveConfig("grpo").ignored == ()
    assert ObjectiveConfig("reinforce").ignored == ("ratio_max", "ratio_min")
    (tmp_path / "losses_for_config").mkdir()
    (tmp_path / "losses_for_config" / "misspelt.py").write_text("IGNORES = ('ratio_mx',)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"'ratio_mx'.*Did you mean 'ratio_max'"):
        _ = ObjectiveConfig("losses_for_config.misspelt:OBJECTIVE").ignored


def test_to_configure_an_objective_takes_no_torch():
    code = (
        "import sys; from pbt_agents.config import ObjectiveConfig; ObjectiveConfig('reinforce').ignored; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_numbers_of_numpy_become_pythons():
    config = AgentConfig().with_values({"window": np.int64(3), "learning_rate": np.float32(0.5), "temperature": 2})
    found = config.buffer.window, config.trainer.learning_rate, config.rollout.temperature
    assert found == (3, 0.5, 2.0)
    assert [type(value) for value in found] == [int, float, float]


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
        (lambda: EnvironmentConfig(options={1: 2}), "options"),
        (lambda: AgentConfig().with_values({"fleet": "own"}), "fleet"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(make, field):
    """B02 for the size of a group."""
    with pytest.raises(ConfigError, match=field):
        make()


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("temperature", [0.1, 2.0], [0.0, math.inf, math.nan]),
        ("group_timeout_s", [0.1, math.inf], [0.0, -1.0, math.nan]),
        ("environment_threads", [0, 8], [-1]),
        ("max_grad_norm", [1e-3, 1e9], [0.0, math.inf, math.nan]),
        ("adam_beta1", [0.0, 0.999], [-0.1, 1.0, math.nan]),
        ("adam_beta2", [0.0, 0.999], [-0.1, 1.0, math.nan]),
        ("weight_decay", [0.0, 0.1], [-0.1, math.inf, math.nan]),
        ("kv_cache_bytes", [0, 1 << 30], [-1]),
        ("gpus_per_engine", [0.0, 0.5, 1.0], [-0.5, 1.5, math.inf, math.nan]),
    ],
)
def test_a_number_is_taken_inside_its_range_alone(name, inside, outside):
    for value in inside:
        assert AgentConfig().with_values({name: value}).value(name) == value
    for value in outside:
        with pytest.raises(ConfigError, match=f"^{name} .*got {value}"):
            AgentConfig().with_values({name: value})
