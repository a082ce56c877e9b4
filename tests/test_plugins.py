import pytest

from pbt_agents import plugins
from pbt_agents.environments import sudoku
from pbt_agents.errors import ConfigError


def test_a_name_is_a_file_and_what_follows_the_colon_its_variant():
    assert plugins.load("environment", "sudoku:hard") == (sudoku.ENVIRONMENT, "hard")
    assert plugins.load("environment", "arithmetic")[1] == ""


def test_a_users_own_object_is_found_by_module_and_attribute():
    assert plugins.load("environment", "collections.abc:Mapping")[0].__name__ == "Mapping"


def test_a_misspelt_file_is_refused_with_the_nearest_known_one_and_how_ones_own_is_written():
    with pytest.raises(ConfigError, match=r"sudokku.*'sudoku'.*package\.module:OBJECT"):
        plugins.load("environment", "sudokku:tiny")


@pytest.mark.parametrize("name", ["cispo:nonsense", "cispo:"])
def test_a_variant_is_refused_where_there_are_none(name):
    with pytest.raises(ConfigError, match=rf"'{name}' asks for a variant.*Write 'cispo'"):
        plugins.load("objective", name)


def test_a_file_is_found_and_a_constant_of_it_read_without_importing_it(tmp_path, monkeypatch):
    """The module would fail at its import."""
    folder = tmp_path / "losses_of_mine"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "plain.py").write_text("import no_such_module\nIGNORES: tuple[str, ...] = ('ratio_max',)\nSUM = 1 + len('a')\n")
    monkeypatch.syspath_prepend(tmp_path)
    name = "losses_of_mine.plain:OBJECTIVE"
    assert plugins.locate("objective", name) == ("losses_of_mine.plain", "OBJECTIVE", "")
    assert plugins.declared("objective", name, "IGNORES", ()) == ("ratio_max",)
    assert plugins.declared("objective", name, "NOTHING_OF_THE_KIND", 7) == 7
    with pytest.raises(ConfigError, match=r"SUM .*written out, not computed"):
        plugins.declared("objective", name, "SUM", 0)
    with pytest.raises(ConfigError, match="no_such_module"):
        plugins.load("objective", name)


def test_a_module_without_source_declares_nothing():
    assert plugins.declared("objective", "numpy._core._multiarray_umath:add", "IGNORES", ()) == ()


def test_a_module_that_cannot_be_imported_is_named():
    with pytest.raises(ConfigError, match=r"nowhere_to_be_found.maze:Maze.*PYTHONPATH"):
        plugins.load("environment", "nowhere_to_be_found.maze:Maze")
    with pytest.raises(ConfigError, match=r"collections\.maze:Maze.*there is no module.*PYTHONPATH"):
        plugins.locate("environment", "collections.maze:Maze")
    with pytest.raises(ConfigError, match="after a colon"):
        plugins.load("environment", "my_package.maze")


def test_files_with_an_underscore_are_no_plugins():
    assert not [name for name in plugins.names("environment") if name.startswith("_")]


def test_a_module_of_ones_own_need_not_be_in_a_package_but_a_file_here_comes_first(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "burrow.py").write_text("ENVIRONMENT = 7")
    (tmp_path / "sudoku.py").write_text("ENVIRONMENT = 8")
    assert plugins.load("environment", "burrow:ENVIRONMENT") == (7, "")
    assert plugins.load("environment", "sudoku:tiny") == (sudoku.ENVIRONMENT, "tiny")
    with pytest.raises(ConfigError, match="unknown environment 'burow'"):
        plugins.load("environment", "burow:ENVIRONMENT")
