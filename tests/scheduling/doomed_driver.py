"""A driver that kills itself with SIGKILL once a whole copy of the experiment's state holds a clone: `doomed_driver.py ADDRESS FOLDER`."""

import json
import os
import signal
import sys
from pathlib import Path

import ray
from ray import tune

from pbt_agents.scheduling.scheduler import InPlacePBT
from pbt_agents.scheduling.state import SchedulerState
from pbt_agents.testing.landscape import Gate, Landscape

RATES = [0.05, 0.2, 1.0, 8.0]
SPACE = {"rate": tune.loguniform(0.01, 100.0), "width": [1, 2, 4, 8]}


class Doom(tune.Callback):
    def on_step_end(self, iteration, trials, **info):
        if trials and any(rate not in RATES for rate in saved_rates(Path(trials[0].storage.experiment_fs_path))):
            os.kill(os.getpid(), signal.SIGKILL)


def saved_rates(folder):
    """Of all members, in the newest copy of the experiment's state."""
    states = sorted(folder.glob("snapshots/[0-9]*/experiment_state-*.json"))
    trials = json.loads(states[-1].read_text())["trial_data"] if states else []
    return [json.loads(trial)["config"]["rate"] for trial, _ in trials]


if __name__ == "__main__":
    address, folder = sys.argv[1:]
    ray.init(address=address, namespace="doomed", log_to_driver=False)
    gate = ray.remote(Gate).options(name="gate", num_cpus=0).remote(len(RATES))
    scheduler = InPlacePBT(SPACE, seed=3)
    tuner = tune.Tuner(
        Landscape,
        param_space={"rate": tune.grid_search(RATES), "width": 2, "gate": "gate"},
        tune_config=tune.TuneConfig(metric="fitness", mode="max", scheduler=scheduler),
        run_config=tune.RunConfig(
            name="doomed",
            storage_path=folder,
            stop=lambda member, result: Path(folder, "enough").exists(),
            callbacks=[SchedulerState(scheduler), Doom()],
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=3, num_to_keep=2),
            verbose=0,
        ),
    )
    tuner.fit()
