"""Each guarded thing is broken on purpose, and the tests that guard it fail. The table says what is broken: breakages.toml."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SLIP = re.compile(r"(NameError|UnboundLocalError|SyntaxError|ImportError|ModuleNotFoundError|AttributeError|TypeError)\b")
"""How a test fails when the table's text is no sound code, rather than code that does something else."""


@dataclass(frozen=True)
class Breakage:
    breaks: str
    file: str
    text: str
    instead: str
    tests: list[str]

    def __post_init__(self):
        found = (REPOSITORY / self.file).read_text().count(self.text)
        assert found == 1, f"the text to replace is {found} times in {self.file}: {self.text}"
        assert self.instead != self.text
        assert self.tests


TABLE = tomllib.loads(Path(__file__).with_name("breakages.toml").read_text())
every_breakage = pytest.mark.parametrize("fields", TABLE.values(), ids=TABLE.keys())


@pytest.fixture(scope="module")
def run_in(tmp_path_factory):
    """Runs tests in a folder; what they came to, by node id without parameters."""
    # Not in the repository: there its pbt_agents would be found before that of the copy.
    command = [sys.executable, str(Path(__file__).with_name("preloaded_pytest.py"))]
    runner = subprocess.Popen(command, cwd=tmp_path_factory.mktemp("runner"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(folder, tests):
        runner.stdin.write(json.dumps({"folder": str(folder), "tests": tests}) + "\n")
        runner.stdin.flush()
        assert runner.stdout.readline() == "done\n"
        output = (folder / "output.txt").read_text()
        assert (folder / "outcome.json").exists(), output
        outcome = json.loads((folder / "outcome.json").read_text())
        assert Path(outcome["imported"]).parent == folder / "pbt_agents", f"the copy is not what was tested: {outcome['imported']}"
        return outcome["code"], outcome["seen"], output

    yield run
    runner.stdin.close()
    runner.wait(60)
    runner.stdout.close()


@pytest.fixture
def copy():
    # Not tmp_path, which is so long that no socket has room below it.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "copy"
        # Links stay links: pbt_agents/environments is one.
        shutil.copytree(REPOSITORY, folder, symlinks=True, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "runs"))
        yield folder


@every_breakage
def test_what_a_breakage_replaces_is_there_once(fields):
    Breakage(**fields)


@pytest.mark.slow
def test_all_of_the_named_tests_pass_where_nothing_is_broken(copy, run_in):
    named = dict.fromkeys(test for fields in TABLE.values() for test in fields["tests"])
    code, _, output = run_in(copy, list(named))
    assert code == pytest.ExitCode.OK, output


@pytest.mark.slow
@every_breakage
def test_a_breakage_is_seen(fields, copy, run_in):
    """Each of the named tests fails, with one of its parameters at least, and by what it asserts."""
    breakage = Breakage(**fields)
    broken = copy / breakage.file
    broken.write_text(broken.read_text().replace(breakage.text, breakage.instead))
    code, seen, output = run_in(copy, breakage.tests)
    assert code == pytest.ExitCode.TESTS_FAILED, f"{breakage.breaks} Nobody saw it.\n{output}"
    failed = [outcome for outcome in seen if not outcome["passed"]]
    assert {outcome["when"] for outcome in failed} == {"call"}, output
    assert not [outcome for outcome in failed if SLIP.match(outcome["why"])], output
    blind = [test for test in breakage.tests if not any(_is(test, outcome["test"]) for outcome in failed)]
    assert not blind, f"{breakage.breaks} {blind} did not see it.\n{output}"


def _is(named, test):
    """Whether this is the named test, with or without parameters."""
    return test == named or test.startswith(f"{named}[")
