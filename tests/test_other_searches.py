"""Ray's own schedulers and searchers on the same Trainable: five trials, two at a time, on engines with two slots."""

import json
import os
import subprocess
import sys

import pytest

SEARCH = """
from pathlib import Path
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch
from pbt_agents.config import AgentConfig
from pbt_agents.pipeline import AgentPipeline
from pbt_agents.search_space import param_space

small = {"environment.id": "sudoku:tiny", "slots": 2, "updates_per_evaluation": 1, "evaluation_episodes": 8}
agent = AgentConfig().with_values(small)
space = {"learning_rate": tune.loguniform(1e-4, 1e-2), "window": [1, 4]}
grid = tune.Tuner(
    tune.with_resources(AgentPipeline, {"cpu": 0.3}),
    param_space=param_space(agent, space),
    tune_config=tune.TuneConfig(
        metric="fitness",
        mode="max",
        num_samples=5,
        max_concurrent_trials=2,
        search_alg=OptunaSearch(seed=0),
        scheduler=ASHAScheduler(time_attr="updates", max_t=4, grace_period=1, reduction_factor=2),
    ),
    run_config=tune.RunConfig(storage_path=str(Path.cwd() / "ray_results")),
).fit()
for result in grid:
    print("TRIAL", result.error, result.metrics["updates"], result.metrics["lineage"], result.metrics["fitness"], flush=True)
"""


@pytest.mark.slow
def test_successive_halving_with_optunas_samples_trains_agents_that_share_engines(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TUNE_")}
    environment |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", SEARCH], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=500)
    trials = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("TRIAL")]
    assert [trial[0] for trial in trials] == ["None"] * 5, done.stdout[-3000:] + done.stderr[-3000:]
    updates = [int(trial[1]) for trial in trials]
    assert max(updates) == 4
    assert min(updates) < 4
    assert len({int(trial[2]) // 1_000_000 for trial in trials}) >= 2, "a slot that another trial had is used again, above its lineages"
    assert all(0 <= float(trial[3]) <= 1 for trial in trials)
    logs = list((tmp_path / "ray_results").glob("*/*/result.json"))
    assert len(logs) == 5
    assert all(json.loads(line)["pid"] for log in logs for line in log.read_text().splitlines())
