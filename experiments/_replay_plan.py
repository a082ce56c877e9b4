"""What has to be trained to repeat the winner of a population, read from its run and checked before anything starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbt_agents.checks import require
from pbt_agents.config import AgentConfig
from pbt_agents.errors import ConfigError
from pbt_agents.evaluation import Scores
from pbt_agents.json_files import as_written, read_json
from pbt_agents.pipeline import number_of
from pbt_agents.run_folder import manifest_around
from pbt_agents.scheduling.lineage import Segment, read_schedule
from pbt_agents.scheduling.scheduler import SCHEDULE
from pbt_agents.training import RESULTS
from pbt_agents.tuning import EXPERIMENT, STEP


@dataclass(frozen=True)
class Plan:
    """A single agent's training."""

    config: AgentConfig
    """The population's, on engines of its own."""
    slot: int
    """Of the member that the winner's line began with: its first weights and its puzzles come from it."""
    segments: Sequence[Segment]
    versions: int
    """At which the winner ended."""
    best: Scores
    """Of the winner on test tasks."""
    base: Scores

    def values(self, version: int) -> Mapping[str, Any]:
        """To train with from this version to the next."""
        return [segment for segment in self.segments if segment.step <= version][-1].values


def read_plan(run: Path) -> Plan:
    """Raises ConfigError when the run has no schedule of a finished population, or not the settings that it was found with."""
    agent = _agent(run)
    folder = run / EXPERIMENT
    require((run / RESULTS).is_file(), f"'{run}' has not ended: it holds no {RESULTS}. Go on with it first: sudoku_pbt.py --resume {run}")
    require(
        (folder / SCHEDULE).is_file(), f"'{folder}' holds no {SCHEDULE}: no member of this run had a score. There is nothing to replay."
    )
    results, schedule = read_json(run / RESULTS), read_json(folder / SCHEDULE)
    with as_written(run / RESULTS), as_written(folder / SCHEDULE):
        return _plan(run, folder, agent, results, schedule)


def _plan(run: Path, folder: Path, agent: AgentConfig, results: Mapping[str, Any], schedule: Mapping[str, Any]) -> Plan:
    best = results["members"].get(results["best"])
    require(best is not None, f"the run in '{run}' has no best member: none had a score. There is nothing to replay.")
    require(
        schedule["winner"] == best["trial"],
        f"{SCHEDULE} is that of {schedule['winner']}, and the best of {RESULTS} is {best['trial']}: the run in '{run}' goes on, or was "
        f"interrupted when it did. End it first: sudoku_pbt.py --resume {run}",
    )
    require(
        schedule["step_unit"] == STEP, f"{SCHEDULE} counts in '{schedule['step_unit']}'. Only '{STEP}', optimizer steps, can be replayed."
    )
    segments = read_schedule(folder / SCHEDULE)
    return Plan(
        agent.with_values({"slots": 1, **segments[0].values}),
        number_of(segments[0].member) or 0,
        segments,
        int(best["metrics"][STEP]),
        Scores(**results["scores"]),
        Scores(**results["base"]),
    )


def _agent(run: Path) -> AgentConfig:
    found = manifest_around(run)
    if found is None:
        raise ConfigError(f"'{run}' holds no run.json. Name the directory of a run.")
    directory, manifest = found
    if not manifest.get("population"):
        raise ConfigError(f"run.json of '{directory}' is of an older version and tells only flags. Its schedule cannot be replayed.")
    with as_written(directory / "run.json"):
        return AgentConfig.from_dict(manifest["population"]["agent"])
