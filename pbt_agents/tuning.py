"""A population under Ray Tune, from a PopulationSpec to its trained members: plain Ray Tune, readable in a minute.

Owns how a spec becomes a Tune run, its budget and its end. A user of Tune's own API needs only `population_scheduler` and
search_space.param_space around AgentPipeline.
"""

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import ResumeConfig
from ray.tune.logger import JsonLoggerCallback
from ray.tune.search.basic_variant import BasicVariantGenerator

from pbt_agents.capacity import cpus_per_member, gpus_held
from pbt_agents.checks import require
from pbt_agents.dashboard.events import Plan, StageEnded, StageStarted
from pbt_agents.dashboard.plain_lines import PlainLines
from pbt_agents.dashboard.population_watch import STAGE, PopulationWatch
from pbt_agents.dashboard.quiet import quiet_tune
from pbt_agents.dashboard.reporter import Reporter
from pbt_agents.dashboard.wandb_runs import WandbRuns
from pbt_agents.models import resolve_model
from pbt_agents.pipeline import AgentPipeline, number_of
from pbt_agents.population import Budget, PopulationSpec
from pbt_agents.resources import ResourceMeter, Usage, cores
from pbt_agents.rollout.fleet import EngineFleet, agent_names, fleet_name
from pbt_agents.scheduling.lineage import Lineage
from pbt_agents.scheduling.restored import Restored
from pbt_agents.scheduling.scheduler import JOURNAL, InPlacePBT
from pbt_agents.scheduling.selection import Truncation
from pbt_agents.scheduling.state import SchedulerState, check_experiment
from pbt_agents.search_space import initial_values, param_space
from pbt_agents.stop_sign import StopSign

EXPERIMENT, USAGE = "population", "usage.json"
"""In the run's directory: Tune's folder, and what was used so far."""
STEP = "version"
"""What intervals and schedules count: optimizer steps along the line of descent."""
_COMPLETE = "complete"
"""In Tune's folder, once the budget is used up."""


@dataclass(frozen=True)
class Member:
    """One member at the end of a run."""

    name: str
    trial: str
    """Tune's id, by which lineage and schedule know it."""
    metrics: Mapping[str, Any]
    """Of its last result."""
    checkpoint: Path | None
    """Its last one; the adapter in PEFT's format is in `trainer/`."""
    error: str | None


@dataclass(frozen=True)
class PopulationRun:
    """What a run leaves. Its fleet still serves."""

    members: Sequence[Member]
    lineage: Lineage
    usage: Usage
    """Of the members together, and of the engines meanwhile; engine start and later evaluation are not in it."""
    interrupted: bool
    """By a signal; it can be resumed."""


def population_scheduler(spec: PopulationSpec) -> InPlacePBT:
    """The scheduler of a population, for any `tune.Tuner`."""
    return InPlacePBT(
        spec.search_space,
        metric="fitness",
        mode="max",
        time_attr=STEP,
        perturbation_interval=spec.perturbation_updates,
        error_metric="fitness_se",
        selection=spec.selection if spec.exploit else Truncation(0.0),
        explore=spec.explore,
        stability=spec.stability,
        synchronous=spec.synchronous,
        seed=spec.agent.seed,
    )


def run_population(
    spec: PopulationSpec,
    out: Path,
    fleet: EngineFleet,
    resume: bool = False,
    reporter: Reporter | None = None,
    price_per_hour: float | None = None,
    only_estimate: bool = False,
) -> PopulationRun:
    """Train a population to the end of its budget, or until a signal. Ray must be running, `fleet` be the one of `out`.

    `resume` goes on with what was saved, if anything was. `only_estimate` ends as soon as it could be told what the whole would come
    to. Raises ConfigError when the members do not fit, or what was saved cannot be read; KeyboardInterrupt when a signal came and not
    every member could save in time (the checkpoints before still stand).
    """
    resume = resume and is_resumable(out)
    scheduler, reporter, folder = population_scheduler(spec), reporter or PlainLines(), Path(fleet.info.folder)
    reporter.tell(Plan(spec.size, **asdict(spec.budget)))
    reporter.tell(StageStarted(STAGE, f"training {spec.size} member{'s' * (spec.size > 1)}"))
    gpus = gpus_held(spec.agent)
    with closing(ResourceMeter(out / USAGE)) as meter:
        watch = PopulationWatch(reporter, spec, member_of, lambda: scheduler.lineage, meter.usage, folder, out, gpus, price_per_hour)
        with (
            StopSign(folder, lambda: _used_up(spec.budget, meter) or (watch.estimated if only_estimate else watch.reached)) as sign,
            warnings.catch_warnings(),
        ):
            quiet_tune()
            analysis = _tune(spec, out, scheduler, watch, resume)
    usage, clones = meter.usage(), len(scheduler.lineage.clones)
    ended = "was interrupted" if sign.signal is not None else "has ended"
    reporter.tell(StageEnded(STAGE, f"training {ended}, {clones} clone{'s' * (clones != 1)}", usage.seconds))
    if sign.signal is None:
        (out / EXPERIMENT / _COMPLETE).touch()
    return PopulationRun([_member(trial) for trial in analysis.trials], scheduler.lineage, usage, sign.signal is not None)


def is_resumable(out: Path) -> bool:
    """Whether a former process left members in this run's directory: it may have ended before its first.

    Raises ConfigError when what it left cannot be read, or their lineage is gone.
    """
    experiment = out / EXPERIMENT
    begun = _has_begun(experiment)
    if begun:
        check_experiment(experiment)
    return begun


def _has_begun(experiment: Path) -> bool:
    journal, members = experiment / JOURNAL, len(list(experiment.glob("*/result.json")))
    known = Lineage(journal).members if journal.is_file() else {}
    require(
        len(known) >= members,
        f"'{experiment}' holds {members} members, of which {JOURNAL} knows {len(known)}, and without it nothing is known of their descent. "
        "Bring the file back, or start a new run in another directory.",
    )
    return bool(known)


def _tune(spec: PopulationSpec, out: Path, scheduler: InPlacePBT, watch: PopulationWatch, resume: bool) -> Any:
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # StopSign lets the members save first
    return tune.run(
        AgentPipeline,
        name=EXPERIMENT,
        storage_path=str(out.resolve()),
        config=param_space(spec.agent, spec.search_space),
        search_alg=BasicVariantGenerator(_first_values(spec)),
        num_samples=spec.size,
        resources_per_trial={"cpu": cpus_per_member(spec, cores())},
        scheduler=scheduler,
        stop=None if spec.budget.updates is None else {"updates": spec.budget.updates},
        checkpoint_config=tune.CheckpointConfig(num_to_keep=2, checkpoint_frequency=1, checkpoint_at_end=True),
        callbacks=[
            SchedulerState(scheduler),
            JsonLoggerCallback(),
            watch,
            WandbRuns("pbt_agents", out, agent_names(spec.size), member_name, partial(_parent, scheduler)),
            *([Restored()] if resume else []),
        ],
        trial_name_creator=member_name,
        trial_dirname_creator=member_name,
        resume_config=_resume_config(out) if resume else None,
        max_failures=2,
        raise_on_failed_trial=False,
        verbose=0,
    )


def _resume_config(out: Path) -> ResumeConfig:
    """Members go on that a signal ended, too; but not when the budget is used up, and only what comes after is missing."""
    resume, skip = ResumeConfig.ResumeType.RESUME, ResumeConfig.ResumeType.SKIP
    complete = (out / EXPERIMENT / _COMPLETE).exists()
    return ResumeConfig(finished=skip if complete else resume, unfinished=resume, errored=resume)


def experiment_fleet(spec: PopulationSpec, out: Path) -> EngineFleet:
    """The engines of the run in this directory, started now."""
    return EngineFleet(fleet_name(str(out.resolve() / EXPERIMENT)), resolve_model(spec.agent.model.path), spec.agent)


def member_name(trial: Any) -> str:
    return member_of(trial.trial_id)


def member_of(trial_id: str) -> str:
    number = number_of(trial_id)
    assert number is not None, f"trial {trial_id} is no member of a population"
    return agent_names(number + 1)[number]


def _first_values(spec: PopulationSpec) -> list[dict[str, Any]]:
    if spec.initial is not None:
        return [dict(values) for values in spec.initial]
    if spec.size == 1:  # there is nobody to search with
        return [{name: spec.agent.value(name) for name in spec.search_space}]
    return initial_values(spec.search_space, spec.size, spec.agent.seed)


def _used_up(budget: Budget, meter: ResourceMeter) -> bool:
    if budget.minutes is not None and meter.seconds > 60 * budget.minutes:
        return True
    return budget.cpu_seconds is not None and meter.usage().cpu_s > budget.cpu_seconds


def _parent(scheduler: InPlacePBT, member: str) -> str | None:
    """Whose clone a member is, by its last result."""
    names = {trial_id: member_of(trial_id) for trial_id in scheduler.lineage.members}
    parents = [
        event.parent for event in scheduler.lineage.clones.values() if names[event.child] == member and event.score_after is not None
    ]
    return names[parents[-1]] if parents else None


def _member(trial: Any) -> Member:
    checkpoint = Path(trial.checkpoint.path) if trial.checkpoint else None
    return Member(member_name(trial), trial.trial_id, dict(trial.last_result), checkpoint, trial.error_file)
