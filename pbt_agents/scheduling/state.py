"""What must not be forgotten when the driver dies: the scheduler's state, and Tune's own at the moments that matter.

Tune never saves a scheduler, but it saves callbacks, and restores them before it adds the trials again. It writes its
state every ten seconds and in place: a crash in between loses clones, a crash while it writes leaves what cannot be read.
Clones are also in the lineage's journal.
"""

import json
import logging
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ray.tune import Callback

from pbt_agents.errors import ConfigError
from pbt_agents.scheduling.controller import take_snapshot

logger = logging.getLogger(__name__)

_FILES: dict[str, Callable[[bytes], Any]] = {
    "experiment_state-*.json": json.loads,
    "callback-states-*.pkl": pickle.loads,
    "basic-variant-state-*.json": pickle.loads,
}
"""Tune's state in an experiment's folder, one of each for a session; the newest counts."""
_COPIES, _KEPT_COPIES = "snapshots", 2
_PERIOD_S = 8.0
"""Shorter than Tune's own, so that every snapshot is one with a copy."""
_SHARE = 0.05
"""Of the driver's time, at most."""


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


class Snapshots:
    """Takes a snapshot of the experiment soon after `due` is set, and keeps whole copies of the last ones."""

    def __init__(self) -> None:
        self.due = False
        self._latest_s = self._cost_s = 0.0

    def take_if_due(self, wrapped: Any, folder: Path) -> None:
        waited_s = time.monotonic() - self._latest_s
        if waited_s < self._cost_s / _SHARE or not (self.due or waited_s > _PERIOD_S):
            return
        self.due, started_s = False, time.monotonic()
        written = take_snapshot(wrapped)
        if written is not None:
            _keep_copy(written, folder / _COPIES)
        self._latest_s = time.monotonic()
        self._cost_s = self._latest_s - started_s


def check_experiment(folder: Path) -> None:
    """See to it that a run can be restored: from state that it cannot read, Tune would silently start a new one.

    Damaged state is replaced by the last whole copy of it. Raises ConfigError when there is none.
    """
    damage = _damage(folder)
    if damage is None:
        return
    for copy in sorted((folder / _COPIES).glob("[0-9]*"), reverse=True):
        if _damage(copy) is None:
            logger.warning("%s Going on from the copy %s.", damage, copy)
            _bring_back(copy, folder)
            return
    raise ConfigError(f"{damage} There is no whole copy of it, so nothing can be resumed. Start a new run in another directory.")


def _damage(folder: Path) -> str | None:
    for pattern, read in _FILES.items():
        files = sorted(folder.glob(pattern))
        if not files:
            return f"{folder} holds no {pattern}."
        try:
            read(files[-1].read_bytes())
        except (ValueError, EOFError, OSError, ImportError, AttributeError, pickle.UnpicklingError) as error:
            return f"{files[-1]} is damaged ({error})."
    return None


def _keep_copy(written: Path, copies: Path) -> None:
    former = sorted(copies.glob("[0-9]*"))
    number = int(former[-1].name) + 1 if former else 0
    aside = copies / f".{number:06d}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for pattern in _FILES:
        for file in sorted(written.glob(pattern))[-1:]:
            shutil.copyfile(file, aside / file.name)
    aside.replace(copies / f"{number:06d}")
    for copy in former[: len(former) + 1 - _KEPT_COPIES]:
        shutil.rmtree(copy, ignore_errors=True)


def _bring_back(copy: Path, folder: Path) -> None:
    for file in copy.iterdir():
        aside = folder / f".{file.name}"
        shutil.copyfile(file, aside)
        aside.replace(folder / file.name)
    for pattern in _FILES:
        for file in folder.glob(pattern):
            if not (copy / file.name).exists():
                file.unlink()
