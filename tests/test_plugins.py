import pytest

from pbt_agents import plugins
from pbt_agents.environments import sudoku
from pbt_agents.errors import ConfigError


def test_a_name_is_a_file_and_what_follows_the_colon_its_variant():
    assert plugins.load("environment", "sudoku:hard") == (sudoku.ENVIRONMENT, "hard")
    assert plugins.load("environment", "arithmetic")[1] == ""


def test_a_users_own_object_is_found_by_module_and_attribute():
    assert plugins.load("environment", "collections.abc:Mapping")[0].__name__ == "Mapping"


def test_a_misspelt_file_is_refused_with_the_nearest_known_one():
    with pytest.raises(ConfigError, match=r"sudokku.*'sudoku'"):
        plugins.load("environment", "sudokku:tiny")


def test_a_module_that_cannot_be_imported_is_named():
    with pytest.raises(ConfigError, match=r"nowhere_to_be_found.maze:Maze.*PYTHONPATH"):
        plugins.load("environment", "nowhere_to_be_found.maze:Maze")
    with pytest.raises(ConfigError, match="after a colon"):
        plugins.load("environment", "my_package.maze")


def test_files_with_an_underscore_are_no_plugins():
    assert not [name for name in plugins.names("environment") if name.startswith("_")]
