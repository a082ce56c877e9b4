"""What a scheduler must not forget when its driver dies, kept by Tune beside the experiment's own state.

Tune restores callbacks before it adds the trials again; it never saves a scheduler. Clones are in the lineage's journal.
"""

import json
import pickle
from pathlib import Path
from typing import Any, Protocol

from ray.tune import Callback

from pbt_agents.errors import ConfigError


class KeepsState(Protocol):
    """A scheduler that SchedulerState can serve."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def write_results(self) -> None:
        """Write what the run leaves behind: lineage and schedule."""
        ...


class SchedulerState(Callback):
    """Belongs in `RunConfig(callbacks=[SchedulerState(scheduler)])`; without it a restored run perturbs from new clocks."""

    def __init__(self, scheduler: KeepsState) -> None:
        self.scheduler = scheduler

    def get_state(self) -> dict[str, Any]:
        return self.scheduler.state_dict()

    def set_state(self, state: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(state)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        self.scheduler.write_results()


def check_experiment(folder: Path) -> None:
    """Refuse to restore from state that cannot be read: Tune would silently start a new experiment in its place."""
    for pattern, read in (("experiment_state-*.json", json.loads), ("callback-states-*.pkl", pickle.loads)):
        files = sorted(folder.glob(pattern))
        if not files:
            raise ConfigError(f"nothing to resume in {folder}: it holds no {pattern}. Start a new run instead.")
        try:
            read(files[-1].read_bytes())
        except (ValueError, EOFError, pickle.UnpicklingError) as error:
            raise ConfigError(f"{files[-1]} is damaged ({error}). Remove it to resume from what was before.") from error
