"""Each guarded thing is broken on purpose, and the tests that guard it fail. The table says what is broken: breakages.toml."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from pbt_agents.resources import cores

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


class Runner:
    """Runs tests in a folder, one call after the other."""

    def __init__(self, place):
        # Not in the repository: there its pbt_agents would be found before that of the copy.
        command = [sys.executable, str(Path(__file__).with_name("preloaded_pytest.py"))]
        self._process = subprocess.Popen(command, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, folder, tests):
        """Exit code, what each test came to, and what was printed."""
        self._process.stdin.write(json.dumps({"folder": str(folder), "tests": tests}) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"
        output = (folder / "output.txt").read_text()
        assert (folder / "outcome.json").exists(), output
        outcome = json.loads((folder / "outcome.json").read_text())
        assert Path(outcome["imported"]).parent == folder / "pbt_agents", f"the copy is not what was tested: {outcome['imported']}"
        return outcome["code"], outcome["seen"], output

    def close(self):
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@contextmanager
def copied():
    """A copy of the repository."""
    # Not tmp_path, which is so long that no socket has room below it.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve() / "copy"
        # Links stay links: pbt_agents/environments is one.
        shutil.copytree(REPOSITORY, folder, symlinks=True, ignore=shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "runs"))
        yield folder


@pytest.fixture(scope="module")
def tried(request, tmp_path_factory):
    """What the tests of each chosen breakage came to, by its name. One is tried on each core, while the first is looked at."""
    chosen = [item.callspec.id for item in request.session.items if item.originalname == test_a_breakage_is_seen.__name__]
    runners = SimpleQueue()
    with ExitStack() as closed, ThreadPoolExecutor(cores()) as threads:
        for _ in range(cores()):
            runners.put(closed.enter_context(closing(Runner(tmp_path_factory.mktemp("runner")))))

        def broken(breakage):
            runner = runners.get()
            try:
                with copied() as folder:
                    file = folder / breakage.file
                    file.write_text(file.read_text().replace(breakage.text, breakage.instead))
                    return runner.run(folder, breakage.tests)
            finally:
                runners.put(runner)

        yield {name: threads.submit(lambda fields: broken(Breakage(**fields)), TABLE[name]) for name in chosen}
        threads.shutdown(cancel_futures=True)


@every_breakage
def test_what_a_breakage_replaces_is_there_once(fields):
    Breakage(**fields)


@pytest.mark.slow
def test_all_of_the_named_tests_pass_where_nothing_is_broken(tmp_path):
    named = dict.fromkeys(test for fields in TABLE.values() for test in fields["tests"])
    with closing(Runner(tmp_path)) as runner, copied() as folder:
        code, _, output = runner.run(folder, list(named))
    assert code == pytest.ExitCode.OK, output


@pytest.mark.slow
@every_breakage
def test_a_breakage_is_seen(fields, tried, request):
    """Each of the named tests fails, with one of its parameters at least, and by what it asserts."""
    breakage = Breakage(**fields)
    code, seen, output = tried[request.node.callspec.id].result()
    assert code == pytest.ExitCode.TESTS_FAILED, f"{breakage.breaks} Nobody saw it.\n{output}"
    failed = [outcome for outcome in seen if not outcome["passed"]]
    assert {outcome["when"] for outcome in failed} == {"call"}, output
    assert not [outcome for outcome in failed if SLIP.match(outcome["why"])], output
    blind = [test for test in breakage.tests if not any(_is(test, outcome["test"]) for outcome in failed)]
    assert not blind, f"{breakage.breaks} {blind} did not see it.\n{output}"


def _is(named, test):
    """Whether this is the named test, with or without parameters."""
    return test == named or test.startswith(f"{named}[")
