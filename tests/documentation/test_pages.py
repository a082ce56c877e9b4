"""What the documentation names is there: files, scripts and their flags."""

import importlib
import re
from pathlib import Path

import pytest
from pages import PAGES, ROOT, commands, links, paths

from pbt_agents.command_line import field_sentences

EXAMPLES_TO_BE_WRITTEN = {"environments/maze.py", "pbt_agents/objectives/mine.py", "populations/maze.py"}
"""What the reader would add."""


def page(path: Path):
    return pytest.param(path, id=str(path.relative_to(ROOT)))


every_page = pytest.mark.parametrize("path", [page(path) for path in PAGES])


@every_page
def test_a_relative_link_leads_to_a_file(path: Path):
    broken = [target for target in links(path.read_text()) if not (path.parent / target).exists()]
    assert not broken


@every_page
def test_a_file_that_is_named_is_there(path: Path):
    missing = {name for name in paths(path.read_text()) - EXAMPLES_TO_BE_WRITTEN if not (ROOT / name).exists()}
    assert not missing


@every_page
def test_a_script_that_is_called_is_there_and_has_the_flags(path: Path):
    for script, flags in commands(path.read_text()):
        assert script.startswith("-m ") or (ROOT / script).is_file(), script
        unknown = flags - flags_of(script) - {"--help"}
        assert not unknown, f"{script} has no {unknown}"


def test_the_table_of_flags_in_the_readme_holds_every_flag_of_the_main_example_with_its_default():
    from sudoku_pbt import Args

    shown = dict(re.findall(r"^\| `--([a-z-]+)`[^|]*\|([^|]*)\|", (ROOT / "README.md").read_text(), re.M))
    assert set(shown) == {name.replace("_", "-") for name in field_sentences(Args)}
    for name, default in shown.items():
        value = getattr(Args(), name.replace("-", "_"))
        expected = "" if value is None or value is False or value == () else f"`{value}`"
        assert default.strip() == expected, name


def test_the_tutorial_quotes_the_population_of_its_example():
    (quoted,) = re.findall(r"```\n(    search_space=.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), re.DOTALL)
    assert quoted in (ROOT / "docs" / "examples" / "treasure" / "population.py").read_text()


def flags_of(script: str) -> set[str]:
    """Of a script or command whose command line is made from its Args; others have none that the pages may name."""
    if script.startswith("-m pbt_agents "):
        module = f"pbt_agents.commands.{script.split()[-1]}"
    elif script.startswith("experiments/"):
        module = Path(script).stem
    else:
        return set()
    names = field_sentences(importlib.import_module(module).Args)
    return {f"--{name.replace('_', '-')}" for name in names} | {f"--no-{name.replace('_', '-')}" for name in names}
