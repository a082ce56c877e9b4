"""A script ends with one line where the project cannot run, and that line can be read by the Pythons it is for."""

import ast
import configparser
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import sudoku_pbt
from _interpreter import refusal

EXAMPLE = "custom_search_space"
"""It shows Ray Tune's own API, and nothing beside it."""
SCRIPTS = sorted(file for file in Path(sudoku_pbt.__file__).parent.glob("[a-z]*.py") if file.stem != EXAMPLE)


@pytest.mark.parametrize(
    ("version", "platform", "installed", "told"),
    [
        ((3, 10), "linux", True, "needs Python 3.11 or 3.12, and this is 3.10. Run `make setup`"),
        ((3, 13), "linux", True, "needs Python 3.11 or 3.12, and this is 3.13"),
        ((2, 7), "linux", True, "this is 2.7"),
        ((3, 11), "darwin", True, "runs on Linux only, and this is darwin. On another system use a Linux container"),
        ((3, 11), "win32", True, "this is win32"),
        ((3, 11), "linux", False, "pbt_agents is not installed for /"),
    ],
)
def test_what_cannot_run_the_project_is_named_with_the_remedy(version, platform, installed, told):
    """B80."""
    said = refusal(version, platform, installed)
    assert told in said
    assert "\n" not in said


@pytest.mark.parametrize("version", [(3, 11), (3, 12)])
def test_a_python_that_it_is_installed_for_can(version):
    assert refusal(version, "linux", True) is None


def test_the_versions_are_those_of_the_package():
    setup = configparser.ConfigParser()
    setup.read(Path(sudoku_pbt.__file__).parents[1] / "setup.cfg")
    assert setup["options"]["python_requires"] == ">=3.11,<3.13"


def old_pythons():
    """Interpreters of this machine that are too old and start, also those that pyenv keeps."""
    for minor in (7, 8, 9, 10):
        kept = sorted(Path("~/.pyenv/versions").expanduser().glob(f"3.{minor}.*/bin/python"))
        for python in (shutil.which(f"python3.{minor}"), *kept):
            if python and subprocess.run([python, "-c", ""], capture_output=True, env=bare()).returncode == 0:
                yield minor, python
                break


def bare():
    return {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_script_says_so_before_anything_that_an_old_python_cannot_read(script, tmp_path):
    ast.parse(script.read_text(), feature_version=(3, 7))  # raises SyntaxError for what came later, whatever Pythons are here
    for minor, python in old_pythons():
        ended = subprocess.run([python, script, "--population", "1"], capture_output=True, text=True, env=bare(), cwd=tmp_path)
        assert ended.returncode == 2
        [line] = ended.stderr.splitlines()
        assert line.startswith(f"error: pbt_agents needs Python 3.11 or 3.12, and this is 3.{minor}. ")
