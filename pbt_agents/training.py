"""One whole run: engines, population, and what it was worth on fresh tasks.

Owns the order of things and the files that a run leaves. How a population trains is tuning.py's.
"""

import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pbt_agents.capacity import cpus_per_member, gpus_held
from pbt_agents.dashboard.cost import money
from pbt_agents.dashboard.events import Arm, Note, Report
from pbt_agents.dashboard.plain_lines import PlainLines
from pbt_agents.dashboard.reporter import Reporter
from pbt_agents.dashboard.stages import Stage, usual_start_s, write_start
from pbt_agents.errors import EngineDiedError, EngineError, GuardError, PbtAgentsError
from pbt_agents.evaluation import Evaluator, Scores
from pbt_agents.export.parquet import write_parquet
from pbt_agents.json_files import write_json
from pbt_agents.models import resolve_model
from pbt_agents.population import Budget, PopulationSpec
from pbt_agents.resources import cores, disk_bytes
from pbt_agents.rollout.fleet import EngineFleet
from pbt_agents.scheduling.lineage import write_schedule
from pbt_agents.scheduling.scheduler import SCHEDULE
from pbt_agents.trainer.trainer import checked_objective
from pbt_agents.tuning import EXPERIMENT, STEP, Member, PopulationRun, experiment_fleet, is_resumable, run_population

BEST, RESULTS = "best", "results.json"
_ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")
_FIRST_START = " (half a minute is usual for a small model)"

Engines = tuple[list[dict[str, float]], list[dict[str, float]]]
"""Process id and counters of each, before the first update and after the last."""


@dataclass(frozen=True)
class Outcome:
    """What one population came to."""

    best: Member | None
    """By validation after the run; None when no member saved an adapter that has a score."""
    validation: Mapping[str, float]
    """Sampled score after the run of every member that saved an adapter, all on the same validation tasks. NaN where there is none."""
    scores: Scores | None
    """Of the best on the test split."""
    base: Scores
    """Of the base model on the same tasks."""
    run: PopulationRun
    engines: Engines

    @property
    def engine_pids(self) -> tuple[list[int], list[int]]:
        before, after = ([int(engine["pid"]) for engine in engines] for engines in self.engines)
        return before, after


def train(
    spec: PopulationSpec,
    out: Path,
    resume: bool = False,
    episodes: int = 256,
    reporter: Reporter | None = None,
    price_per_hour: float | None = None,
) -> Outcome | None:
    """Train, then choose the best member by `episodes` validation tasks and score it and the base on as many test tasks.

    None when a signal interrupted the training. Ray must be running. Writes into `out`: `best/` (PEFT format) and the schedule that
    made it as soon as the best is chosen, `results.json` at the end. Raises PbtAgentsError when every member failed.
    """
    reporter = reporter or PlainLines()
    if resume:
        is_resumable(out)  # what cannot be gone on with is refused before the engines start
    with _engines(spec, out, reporter) as (fleet, before):
        run = run_population(spec, out, fleet, resume, reporter, price_per_hour)
        if run.interrupted:
            return None
        if all(member.error for member in run.members):
            raise PbtAgentsError("every member failed; nothing is scored")
        outcome = _score(spec, run, (before, fleet.health()), fleet, out, episodes, reporter)
    _write_results(outcome, out)
    write_parquet(out)
    return outcome


def estimate(spec: PopulationSpec, out: Path, reporter: Reporter, price_per_hour: float | None = None) -> bool:
    """Train until every member has a result, which is when the watch tells what the whole would come to, and no further.

    False when a signal came before. Raises PbtAgentsError when the members failed before. Ray must be running.
    """
    with _engines(spec, out, reporter) as (fleet, _):
        run = run_population(spec, out, fleet, False, reporter, price_per_hour, only_estimate=True)
    if all(member.error for member in run.members):
        raise PbtAgentsError("every member failed; nothing could be measured")
    return not run.interrupted


@contextmanager
def _engines(spec: PopulationSpec, out: Path, reporter: Reporter) -> Iterator[tuple[EngineFleet, list[dict[str, float]]]]:
    """The fleet of this run for the time of the block, and process id and counters of each engine at its start."""
    cpus_per_member(spec, cores())  # what cannot be is refused before the engines start
    checked_objective(spec.agent)
    model = spec.agent.model.path
    with ExitStack() as ended:
        usual_s = usual_start_s(out, model)
        doing = "starting the engines" + (_FIRST_START if usual_s is None else "")
        with Stage(reporter, "engines", doing, usual_s) as stage:
            fleet = experiment_fleet(spec, out)
            ended.callback(fleet.end)
            before = fleet.health()
            worst = max(max(engine.self_test.values()) for engine in fleet.info.engines)
            stage.result = f"{len(before)} engine(s) ready; largest difference to transformers and peft {worst:.1e} nat"
        write_start(out, model, stage.seconds)
        yield fleet, before


def _score(
    spec: PopulationSpec, run: PopulationRun, engines: Engines, fleet: EngineFleet, out: Path, episodes: int, reporter: Reporter
) -> Outcome:
    saved = [member for member in run.members if member.checkpoint]
    with Evaluator(fleet.info, spec.agent, resolve_model(spec.agent.model.path)) as evaluator:
        count = (len(saved) + 2 * bool(saved) + 2) * episodes
        with Stage(reporter, "scoring", "scoring the members on fresh tasks", None, evaluator.played, count, "episodes") as stage:
            # Last fitness is noise and, among many members, luck: all are scored anew.
            validation = {member.name: _validate(evaluator, member, episodes, reporter) for member in saved}
            best = _best(run.members, validation)
            if best:
                _write_best(best, validation[best.name], run, out)
            scores = evaluator.adapter(_adapter(best), "test", episodes) if best else None
            stage.result = "all are scored"
            return Outcome(best, validation, scores, evaluator.base("test", episodes), run, engines)


def comparison(spec: PopulationSpec) -> dict[str, PopulationSpec]:
    """A population's rivals: the same members with no copying, and one default agent. Raises ConfigError when one cannot be made."""
    default = {name: spec.agent.value(name) for name in spec.search_space}
    return {
        "independent": replace(spec, exploit=False, synchronous=False),  # nobody is to be waited for
        "default": replace(spec.of_size(1), exploit=False, initial=(default,)),
    }


def compare(
    spec: PopulationSpec,
    outcome: Outcome,
    out: Path,
    resume: bool = False,
    episodes: int = 256,
    reporter: Reporter | None = None,
    price_per_hour: float | None = None,
) -> dict[str, Outcome | None]:
    """What the same CPU seconds come to without a population.

    After an interrupted one, None, there is no other.
    """
    reporter = reporter or PlainLines()
    budget = Budget(cpu_seconds=outcome.run.usage.cpu_s)
    arms = {name: replace(arm, budget=budget) for name, arm in comparison(spec).items()}
    results: dict[str, Outcome | None] = {}
    for name, arm in arms.items():
        reporter.tell(Note(f"comparison: {name}, {budget.cpu_seconds:.0f} CPU seconds"))
        (out / name).mkdir(exist_ok=resume)
        results[name] = train(arm, out / name, resume, episodes, reporter, price_per_hour)
        if results[name] is None:
            break
    return results


def report(
    spec: PopulationSpec, outcome: Outcome, arms: Mapping[str, Outcome | None], out: Path, price_per_hour: float | None = None
) -> Report:
    """The last word on a run and its rivals. Totals are those of the population's training."""
    run, (started, ended) = outcome.run, outcome.engine_pids
    gpu_hours = gpus_held(spec.agent) * run.usage.seconds / 3600
    return Report(
        out=str(out),
        clones=len(run.lineage.clones),
        seconds=run.usage.seconds,
        cpu_s=run.usage.cpu_s,
        gpu_hours=gpu_hours,
        money=money(run.usage.seconds, gpu_hours, price_per_hour),
        tokens=sum(after["tokens_generated"] - before["tokens_generated"] for before, after in zip(*outcome.engines, strict=True)),
        disk_bytes=disk_bytes(out),
        peak_memory_bytes=run.usage.peak_pss_bytes,
        engines_started=started,
        engines_ended=ended,
        base=outcome.base,
        arms={name: _arm(arm) if arm else None for name, arm in {"population": outcome, **arms}.items()},
    )


def _arm(outcome: Outcome) -> Arm:
    return Arm(outcome.scores, outcome.best.name if outcome.best else None, outcome.validation)


def _adapter(member: Member) -> Path:
    assert member.checkpoint is not None
    return member.checkpoint / "trainer"


def _validate(evaluator: Evaluator, member: Member, episodes: int, reporter: Reporter) -> float:
    """NaN for an adapter that engines do not take, since its training diverged: the others are scored all the same."""
    try:
        return evaluator.sampled(_adapter(member), "validation", episodes)
    except EngineDiedError:
        raise
    except (EngineError, GuardError) as error:
        reporter.tell(Note(f"{member.name} has no score: {error}"))
        return math.nan


def _best(members: Iterable[Member], validation: Mapping[str, float]) -> Member | None:
    scored = [member for member in members if math.isfinite(validation.get(member.name, math.nan))]
    return max(scored, key=lambda member: validation[member.name], default=None)


def _write_best(best: Member, score: float, run: PopulationRun, out: Path) -> None:
    """Adapter and schedule. The population has left the schedule of its last fitness, which may be another member's."""
    aside = out / f".{BEST}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for file in _ADAPTER_FILES:
        shutil.copy2(_adapter(best) / file, aside / file)
    shutil.rmtree(out / BEST, ignore_errors=True)
    aside.rename(out / BEST)
    write_schedule(run.lineage, out / EXPERIMENT / SCHEDULE, best.trial, score, step_unit=STEP)


def _write_results(outcome: Outcome, out: Path) -> None:
    clones = list(outcome.run.lineage.clones.values())
    content: dict[str, Any] = {
        "best": outcome.best and outcome.best.name,
        "scores": outcome.scores and asdict(outcome.scores),
        "base": asdict(outcome.base),
        "members": {
            member.name: {
                "trial": member.trial,
                "metrics": member.metrics,
                "validation": outcome.validation.get(member.name),
                "error": member.error,
            }
            for member in outcome.run.members
        },
        "clones": len(clones),
        "clone_latency_s": [event.latency_s for event in clones],
        "engines": {"start": outcome.engines[0], "end": outcome.engines[1]},
        **asdict(outcome.run.usage),
    }
    write_json(out / RESULTS, content)
