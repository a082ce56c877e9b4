"""pytest in a copy of the repository, time after time, each in a fork of a process that has imported the heavy libraries.

Importing torch and Ray takes most of the time of a small test. Nothing of pbt_agents is imported before the fork.

    echo '{"folder": "/tmp/copy", "tests": ["tests/test_types.py"]}' | python tests/mutants/preloaded_pytest.py

Answers each line when it is done, and leaves `outcome.json` and `output.txt` in the folder.
"""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path

HEAVY = ("numpy", "pyarrow", "torch", "transformers.models.llama.modeling_llama", "peft", "ray.tune", "hypothesis", "pytest")


class Outcomes:
    """A plugin of pytest: what each test came to, a failed set-up included."""

    def __init__(self):
        self.seen = []

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message if crash else str(report.longrepr or "")
            self.seen.append({"test": report.nodeid, "when": report.when, "passed": report.passed, "why": why})


def run(folder, tests):
    import pytest

    os.chdir(folder)
    sys.path[0] = os.environ["PYTHONPATH"] = folder
    sys.dont_write_bytecode = True
    output = os.open("output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    outcomes = Outcomes()
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # whatever else is installed: to load them takes longer than most tests
    options = ["-q", "-p", "pytest_timeout", "-p", "no:cacheprovider", "-c", "pyproject.toml", "--rootdir", folder, "--basetemp", "tmp"]
    code = pytest.main([*options, *tests], plugins=[outcomes])
    imported = getattr(sys.modules.get("pbt_agents"), "__file__", None)
    Path("outcome.json").write_text(json.dumps({"code": int(code), "imported": imported, "seen": outcomes.seen}))


def main():
    for name in HEAVY:
        importlib.import_module(name)
    hypothesis = sys.modules["hypothesis"]
    # On a busy machine a test must not fail for being slow: that would count as a fault that was seen.
    hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.load_profile("patient")
    assert "pbt_agents" not in sys.modules, "it would be the same in every fork"
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                run(**json.loads(line))
            except BaseException:
                traceback.print_exc()
            finally:  # in the fork nothing of what the parent would do at its end
                sys.stdout.flush()
                os._exit(0)
        os.waitpid(child, 0)
        print("done", flush=True)


if __name__ == "__main__":
    main()
