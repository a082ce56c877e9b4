"""One whole run: engines, population, and what it was worth on fresh tasks.

Owns the order of things and the files that a run leaves. How a population trains is tuning.py's.
"""

import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pbt_agents.capacity import cpus_per_member
from pbt_agents.errors import EngineDiedError, EngineError, GuardError, PbtAgentsError
from pbt_agents.evaluation import Evaluator, Scores
from pbt_agents.json_files import write_json
from pbt_agents.models import resolve_model
from pbt_agents.population import Budget, PopulationSpec
from pbt_agents.resources import cores
from pbt_agents.scheduling.lineage import write_schedule
from pbt_agents.scheduling.scheduler import SCHEDULE
from pbt_agents.trainer.trainer import checked_objective
from pbt_agents.tuning import EXPERIMENT, STEP, Member, PopulationRun, experiment_fleet, run_population

BEST, RESULTS = "best", "results.json"
_ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")


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
    engines: tuple[list[dict[str, float]], list[dict[str, float]]]
    """Process id and counters of each, before the first update and after the last."""

    @property
    def engine_pids(self) -> tuple[list[int], list[int]]:
        before, after = ([int(engine["pid"]) for engine in engines] for engines in self.engines)
        return before, after


def train(spec: PopulationSpec, out: Path, resume: bool = False, episodes: int = 256) -> Outcome | None:
    """Train, then choose the best member by `episodes` validation tasks and score it and the base on as many test tasks.

    None when a signal interrupted the training. Ray must be running. Writes into `out`: `best/` (PEFT format) and the schedule that
    made it as soon as the best is chosen, `results.json` at the end. Raises PbtAgentsError when every member failed.
    """
    cpus_per_member(spec, cores())  # what cannot be is refused before the engines start
    checked_objective(spec.agent)
    print("starting the engines", flush=True)
    fleet = experiment_fleet(spec, out)
    try:
        before = fleet.health()
        worst = max(max(engine.self_test.values()) for engine in fleet.info.engines)
        print(f"{len(before)} engine(s) ready; largest difference to transformers and peft {worst:.1e} nat", flush=True)
        run = run_population(spec, out, fleet, resume)
        if run.interrupted:
            return None
        if all(member.error for member in run.members):
            raise PbtAgentsError("every member failed; nothing is scored")
        after = fleet.health()
        print("scoring the members on fresh tasks", flush=True)
        with Evaluator(fleet.info, spec.agent, resolve_model(spec.agent.model.path)) as evaluator:
            # Last fitness is noise and, among many members, luck: all are scored anew.
            validation = {member.name: _validate(evaluator, member, episodes) for member in run.members if member.checkpoint}
            best = _best(run.members, validation)
            if best:
                _write_best(best, validation[best.name], run, out)
            scores = evaluator.adapter(_adapter(best), "test", episodes) if best else None
            outcome = Outcome(best, validation, scores, evaluator.base("test", episodes), run, (before, after))
    finally:
        fleet.end()
    _write_results(outcome, out)
    return outcome


def comparison(spec: PopulationSpec) -> dict[str, PopulationSpec]:
    """A population's rivals: the same members with no copying, and one default agent. Raises ConfigError when one cannot be made."""
    default = {name: spec.agent.value(name) for name in spec.search_space}
    return {
        "independent": replace(spec, exploit=False),
        "default": replace(spec.of_size(1), exploit=False, initial=(default,)),
    }


def compare(spec: PopulationSpec, outcome: Outcome, out: Path, resume: bool = False, episodes: int = 256) -> dict[str, Outcome | None]:
    """What the same CPU seconds come to without a population.

    After an interrupted one, None, there is no other.
    """
    budget = Budget(cpu_seconds=outcome.run.usage.cpu_s)
    arms = {name: replace(arm, budget=budget) for name, arm in comparison(spec).items()}
    results: dict[str, Outcome | None] = {}
    for name, arm in arms.items():
        print(f"comparison: {name}, {budget.cpu_seconds:.0f} CPU seconds", flush=True)
        (out / name).mkdir(exist_ok=resume)
        results[name] = train(arm, out / name, resume, episodes)
        if results[name] is None:
            break
    return results


def _adapter(member: Member) -> Path:
    assert member.checkpoint is not None
    return member.checkpoint / "trainer"


def _validate(evaluator: Evaluator, member: Member, episodes: int) -> float:
    """NaN for an adapter that engines do not take, since its training diverged: the others are scored all the same."""
    try:
        return evaluator.sampled(_adapter(member), "validation", episodes)
    except EngineDiedError:
        raise
    except (EngineError, GuardError) as error:
        print(f"{member.name} has no score: {error}", flush=True)
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
