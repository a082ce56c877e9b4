"""The example of Ray Tune's own API, as the README shows it, run as it stands but for its size."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = (ROOT / "experiments" / "custom_search_space.py").read_text()
SMALLER = {"num_samples=3": "num_samples=2", '["updates"] >= 30': '["updates"] >= 10'}
REPORT = """
from pathlib import Path
assert (Path(best.checkpoint.path) / "trainer" / "adapter_model.safetensors").exists()
for result in tuner.get_results():
    print("MEMBER", result.error, result.metrics["updates"], result.metrics["fitness"], result.metrics["window"])
"""


def test_the_readme_shows_the_example():
    shown = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert EXAMPLE.split('"""\n\n', 1)[1] in shown
    assert len(EXAMPLE.splitlines()) <= 25


@pytest.mark.slow
def test_the_example_trains_on_a_fleet_that_its_first_trial_starts(tmp_path):
    example = EXAMPLE
    for text, smaller in SMALLER.items():
        assert example.count(text) == 1
        example = example.replace(text, smaller)
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "docs" / "examples")}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", example + REPORT]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    members = re.findall(r"^MEMBER (\S+) (\d+) ([\d.]+) (\d+)$", done.stdout, re.MULTILINE)
    assert [(error, updates) for error, updates, _, _ in members] == [("None", "10")] * 2, done.stdout[-3000:] + done.stderr[-3000:]
    assert all(0 < float(score) < 1 and int(window) in (1, 2, 4) for _, _, score, window in members), members
