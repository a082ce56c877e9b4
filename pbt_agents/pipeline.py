"""AgentPipeline: one agent's whole ring as one Ray Tune trial.

Owns what Tune asks of a trial: set-up, a step of updates and an evaluation, checkpoints, and new values in place.
"""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pbt_agents.beacon import Beacon, beacon_file
from pbt_agents.config import AgentConfig, field_path
from pbt_agents.errors import NoExperienceError, NothingToLearnError
from pbt_agents.models import resolve_model
from pbt_agents.resources import cores
from pbt_agents.ring import Place, Ring
from pbt_agents.rollout.fleet import EngineFleet, agent_names, fleet_name
from pbt_agents.scheduling.in_place import CUT_SHORT, InPlaceTrainable
from pbt_agents.stop_sign import STOP_FILE

_LINEAGES = 1_000_000
"""Of one holder of a slot, at most: those of the next begin here, so that no engine takes one policy for another."""
_LAGS = ((9, "lag_9_up"), (5, "lag_5_8"), (3, "lag_3_4"), (2, "lag_2"), (1, "lag_1"), (0, "lag_0"))
"""Lags in policy versions that drift is reported for, each with the lowest of them."""


class AgentPipeline(InPlaceTrainable):
    """A trial. Its config holds `agent`, an AgentConfig as a dict, and the searched values beside it.

    The engines outlive it: the first trial of a run creates the fleet, and the others find it by name.
    """

    def setup(self, config: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(1)
        settings = read_config(config)
        model_path = resolve_model(settings.model.path)
        self._fleet = EngineFleet(fleet_name(self._storage.experiment_fs_path), model_path, settings)
        lease = self._fleet.take_slot(self.trial_id, number_of(self.trial_id))
        slot, agent = lease.slot, agent_names(lease.slot + 1)[lease.slot]
        self._fleet.info.serving(agent)
        local = self._storage.storage_filesystem.type_name == "local"
        folder = Path(self._storage.trial_fs_path if local else self.logdir) / "ring"
        folder.mkdir(parents=True, exist_ok=True)
        first_lineage = lease.turn * _LINEAGES
        place = Place(agent, slot, model_path, folder, Path(self._fleet.info.folder), trainers_at_once(settings), first_lineage)
        self._ring = Ring(place, settings, self._fleet.info.layout, lambda: self._fleet.info.connect(agent))
        self._updates_log = (folder / "updates.jsonl").open("a", buffering=1)
        self._stop_file = place.run_folder / STOP_FILE
        self._beacon = Beacon(beacon_file(place.run_folder, agent), self._ring.standing)
        self._result: dict[str, Any] = {"fitness": math.nan}
        self._without_step = 0

    def step(self) -> dict[str, Any]:
        """A fixed number of optimizer steps, then fitness. Cut short, with the last fitness, when the run is asked to stop.

        An agent whose steps were all refused, or that cannot play any more, has diverged: it reports NaN, and the population replaces
        it. One whose attempts all score alike reports what they score. Either way, after `patience` results without a step it ends.
        """
        if not self._ring.playing:
            self._ring.start()
        trained = self._train()
        evaluation = trained and self._ring.evaluate(self._stop_file.exists)
        if trained is None or evaluation is None:
            return {**self._result, **self._standing(), "done": True, CUT_SHORT: True}
        rows, reason = trained
        stepped = any(row["trainer/stepped"] for row in rows)
        if stepped:
            self._ring.prepare(self._stop_file.exists)
        self._result = {**mean_metrics(rows), **drift(rows), **evaluation, **self._ring.stats(), **self._standing()}
        if isinstance(reason, NoExperienceError) or (rows and not stepped):
            self._result["fitness"] = math.nan
        self._without_step = 0 if stepped else self._without_step + 1
        ended = {"done": True} if self._without_step >= self._ring.config.evaluation.patience else {}
        return {**self._result, **ended, **({"remark": str(reason)} if reason else {})}

    def _train(self) -> tuple[list[dict[str, Any]], Exception | None] | None:
        """The updates of a step, and why they are too few. None when asked to stop.

        Batches that allowed no optimizer step are replaced, up to as many again.
        """
        wanted = self._ring.config.evaluation.updates_per_evaluation
        rows: list[dict[str, Any]] = []
        try:
            while sum(row["trainer/stepped"] for row in rows) < wanted and len(rows) < 2 * wanted:
                row = self._ring.update(self._stop_file.exists)
                if row is None:
                    return None
                rows.append(row)
                self._updates_log.write(json.dumps({**self._standing(), **row}) + "\n")
        except (NoExperienceError, NothingToLearnError) as error:
            if isinstance(error, NoExperienceError) and not self._ring.updates:
                raise  # it never trained, so it is not its policy that another one's would mend
            return rows, error
        return rows, None

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        state = self._ring.snapshot(Path(checkpoint_dir))
        (Path(checkpoint_dir) / "ring.json").write_text(json.dumps({**state, "scored": self._scored()}))

    def load_checkpoint(self, checkpoint: str) -> None:
        """State first, then the values of this trial's own config, which a clone's mutation has just changed."""
        state = json.loads((Path(checkpoint) / "ring.json").read_text())
        self._result, self._without_step = state["scored"], 0
        self._ring.restore(Path(checkpoint), state, read_config(self.config))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._ring.apply(read_config(new_config))
        return True

    def values_in_use(self) -> dict[str, Any]:
        """The searched values, read back from what acts by them."""
        used = self._ring.settings_in_use()
        return {name: used[field_path(name)[1]] for name in searched_values(self.config)}

    def cleanup(self) -> None:
        self._beacon.close()
        self._ring.close()
        self._updates_log.close()
        self._fleet.close()

    def _scored(self) -> dict[str, float]:
        """The last fitness: one step may be cut short after a restore, before it has a fitness of its own."""
        return {name: self._result[name] for name in ("fitness", "fitness_se") if name in self._result}

    def _standing(self) -> dict[str, Any]:
        ring = self._ring
        return {**ring.in_use(), "updates": ring.updates, "version": ring.trainer.version, "lineage": ring.lineage}


def read_config(config: Mapping[str, Any]) -> AgentConfig:
    """A trial's config as an AgentConfig: `agent`, with the searched values set over it. Raises ConfigError for unknown names."""
    return AgentConfig.from_dict(config.get("agent", {})).with_values(searched_values(config))


def searched_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """What stands beside the agent in a trial's config."""
    return {name: value for name, value in config.items() if name != "agent"}


def number_of(trial_id: str) -> int | None:
    """Tune numbers the trials of an experiment: `9f3a1_00002` is the third. A resumed or cloned trial keeps its number.

    Searchers name trials otherwise, and then there is none.
    """
    _, _, number = trial_id.rpartition("_")
    return int(number) if number.isdecimal() else None


def trainers_at_once(config: AgentConfig) -> int:
    """How many trainers may compute at the same moment: the cores that the engines leave."""
    engines = config.fleet.engines * (config.fleet.slots if config.fleet.fleet == "per_agent" else 1)
    return max(1, cores() - engines)


def mean_metrics(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Over the updates of a step; NaN where an update has none is left out."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, int | float))
    values = {name: [row[name] for row in rows if name in row and math.isfinite(row[name])] for name in names}
    return {name: sum(known) / len(known) for name, known in values.items() if known}


def drift(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """How far the policy had moved from what it was trained on, by lag: mean |log ratio| over the tokens of a step, nat."""
    tokens: Counter[str] = Counter()
    nats: Counter[str] = Counter()
    for lag, stats in (item for row in rows for item in row["by_lag"].items()):
        name = next(name for least, name in _LAGS if int(lag) >= least)
        tokens[name] += stats["tokens"]
        nats[name] += stats["tokens"] * stats["log_ratio_abs_mean"]
    return {f"drift/{name}": nats[name] / tokens[name] for _, name in reversed(_LAGS) if name in tokens}
