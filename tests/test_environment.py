import pytest

from pbt_agents.config import EnvironmentConfig
from pbt_agents.environment import environment_maker
from pbt_agents.errors import ConfigError


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (EnvironmentConfig("sudokku"), "Did you mean 'sudoku'"),
        (EnvironmentConfig("sudoku:enormous"), "enormous"),
        (EnvironmentConfig("sudoku:tiny", {"colour": "red"}), "colour"),
        (EnvironmentConfig("no_such_package.maze:MAZE"), "no_such_package"),
        (EnvironmentConfig("decimal.py:Decimal"), "decimal.py"),
        (EnvironmentConfig("os.path:join", {"side": 3}), r"'os.path:join' with options {'side': 3} cannot be made: TypeError"),
    ],
)
def test_what_an_environment_cannot_be_is_refused_before_anything_is_played(config, told):
    with pytest.raises(ConfigError, match=told):
        environment_maker(config, "train")


def test_every_call_makes_another_one_of_the_same_tasks():
    make = environment_maker(EnvironmentConfig("sudoku:tiny"), "train")
    one, other = make(), make()
    assert one is not other
    assert one.reset(7) == other.reset(7)


def test_splits_have_different_tasks():
    tasks = {split: environment_maker(EnvironmentConfig("sudoku:tiny"), split)().reset(7) for split in ("train", "validation", "test")}
    assert len(set(tasks.values())) == 3
