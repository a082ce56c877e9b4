"""Agents learn multi-turn Sudoku side by side, and the best of them teach the worst: the main example.

python experiments/sudoku_pbt.py --population 4
"""

import ast
import gc
import math
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _interpreter  # noqa: F401

from pbt_agents import plugins
from pbt_agents.capacity import check_capacity
from pbt_agents.checks import require
from pbt_agents.command_line import parse
from pbt_agents.config import ObjectiveConfig, field_path
from pbt_agents.dashboard.events import Failed, Interrupted, Note
from pbt_agents.dashboard.reporter import Reporter, reporter_for
from pbt_agents.dashboard.stages import Stage
from pbt_agents.environment import environment_maker
from pbt_agents.errors import ConfigError, PbtAgentsError, one_line
from pbt_agents.json_files import as_written, difference
from pbt_agents.models import check_context, check_model, resolve_model
from pbt_agents.population import Budget, PopulationSpec
from pbt_agents.populations.sudoku import CHAT_MODEL
from pbt_agents.preflight import check_engine, check_torch
from pbt_agents.ray_session import check_address, ray_session
from pbt_agents.run_folder import MANIFEST, new_run, nothing_kept, resumed_run
from pbt_agents.search_space import agent_search_space

if TYPE_CHECKING:
    from pbt_agents.study import Study


@dataclass
class Args:
    recipe: str = "sudoku"
    """What is trained: a file of populations/, or one's own as my_package.maze:POPULATION. The flags below change it."""
    population: int | None = None
    """Agents trained side by side; as the recipe says, 4 for sudoku, when not given."""
    updates: int | None = None
    """Optimizer steps of each agent, which ends with the evaluation that follows; as the recipe says, 100 for sudoku, when not given."""
    minutes: float | None = None
    """Stop earlier, after so many minutes of training."""
    cpu_seconds: float | None = None
    """Stop earlier, after so many CPU seconds of training, all members and engines together."""
    target_fitness: float | None = None
    """Stop earlier, as soon as one evaluation of an agent scores this."""
    window: int | None = None
    """Fix the buffer's window (policy versions) instead of searching it; 0 trains synchronously."""
    environment: str | None = None
    """Environment and variant, or one's own as my_package.maze:ENVIRONMENT; the recipe's, sudoku:tiny, when not given."""
    model: str | None = None
    """Base model: tiny (in the package), a folder, or a hub id; the recipe's, tiny, when not given."""
    set: tuple[str, ...] = ()
    """Any other setting of an agent by its name, e.g. --set max_reuse=1 fleet=per_agent. What is set is not searched."""
    test_episodes: int = 256
    """Fresh tasks that the members, and at the end the best and the base, are scored on."""
    seed: int | None = None
    """Of puzzles, first values and mutations; the recipe's, 0, when not given."""
    out: str | None = None
    """Directory of the run; runs/sudoku-<time>, by the recipe's name, when not given."""
    resume: str | None = None
    """Directory of an interrupted run to go on with, under the same settings."""
    study: str | None = None
    """Optuna storage, e.g. sqlite:///runs/study.db: first values come from what former runs of the recipe left there, and this run's
    are added."""
    compare: bool = False
    """Afterwards train the same agents without copying, and one default agent, on the same CPU seconds."""
    quiet: bool = False
    """Print only the final report, and errors. Without it there is a live table on a terminal, and plain lines elsewhere."""
    json: bool = False
    """Print one JSON object per line on stdout for every event; pbt_agents/dashboard/json_lines.py lists them."""
    estimate: bool = False
    """Dry run: train until every member has its first result, print what the whole run would take, and end. Nothing is kept in --out."""
    price_per_hour: float | None = None
    """Of one GPU, or of the machine where no GPU is used: what the training costs is printed as well."""
    address: str | None = None
    """Ray cluster to join instead of a local one; 'auto' for the one running here."""


_FLAG_OF = {"seed": "seed", "environment.id": "environment", "model.path": "model", "window": "window"}
"""Settings that have a flag of their own."""
_SESSION = ("address", "quiet", "json", "price_per_hour")
"""Flags of a session: a run may be resumed with others."""
_INFINITY = ("inf", "float('inf')")


def population(args: Args) -> PopulationSpec:
    """The recipe with what the command line changes."""
    recipe, given = written_recipe(args.recipe), given_values(args)
    if args.population is not None:
        recipe = recipe.of_size(args.population)
    budget = limited(recipe.budget, args)
    every = recipe.agent.evaluation.updates_per_evaluation
    short = {"updates_per_evaluation": min(budget.updates or every, every)}
    agent = recipe.agent.with_values((short if args.model in (None, "tiny") else short | CHAT_MODEL) | given)
    space = still_searched(recipe.search_space, given, agent.objective)
    if recipe.size == 1:  # it has nobody to copy, so its values stay, whatever may be searched
        space = space or {"learning_rate": recipe.search_space["learning_rate"]}
    require(
        bool(space), f"nothing is left to search of {', '.join(recipe.search_space)}. Leave one of them to the population: do not set it."
    )
    agent_search_space(agent, space)
    environment_maker(agent.environment, "train")
    model = resolve_model(agent.model.path)
    check_model(model)
    check_context(model, agent.rollout.max_episode_tokens)
    require(args.test_episodes >= 2, f"test_episodes must be at least 2, got {args.test_episodes}.")
    first = recipe.initial and tuple({name: values[name] for name in space} for values in recipe.initial)
    stability = recipe.stability if recipe.stability and recipe.stability.rate in space else None
    return replace(recipe, agent=agent, search_space=space, budget=budget, initial=first, stability=stability)


def written_recipe(name: str) -> PopulationSpec:
    """Of a file in populations/, or a user's own. Raises ConfigError for one that is none."""
    recipe: Any = plugins.load("population", name)[0]
    if not isinstance(recipe, PopulationSpec):
        raise ConfigError(f"recipe '{name}' is of the type {type(recipe).__name__}, and no PopulationSpec. Name another object.")
    return recipe


def limited(budget: Budget, args: Args) -> Budget:
    """The recipe's, with the limits that are given in place of its own."""
    return Budget(
        budget.updates if args.updates is None else args.updates,
        budget.minutes if args.minutes is None else args.minutes,
        budget.cpu_seconds if args.cpu_seconds is None else args.cpu_seconds,
        budget.fitness if args.target_fitness is None else args.target_fitness,
    )


def given_values(args: Args) -> dict[str, Any]:
    """What the command line sets, once each, by flags of their own and by --set."""
    values = {name: getattr(args, flag) for name, flag in _FLAG_OF.items() if getattr(args, flag) is not None}
    flags = {field_path(name): f"--{flag}" for name, flag in _FLAG_OF.items()}
    for name, value in settings(args.set).items():
        flag = flags.setdefault(field_path(name), "--set")
        require(flag == "--set", f"--set names '{name}', which has a flag of its own. Use {flag}.")
        values[name] = value
    if args.environment is not None and field_path("options") not in map(field_path, values):  # another one has other options
        values["options"] = {}
    return values


def still_searched(space: Mapping[str, Any], given: Mapping[str, Any], objective: ObjectiveConfig) -> dict[str, Any]:
    """The recipe's search without what is given, for every member, and without what the objective does not use."""
    unused = [name for name in given if field_path(name) in map(field_path, objective.ignored)]
    require(not unused, f"objective '{objective.objective}' does not use {', '.join(unused)}. Leave it out.")
    gone = {field_path(name) for name in (*given, *objective.ignored)}
    return {name: domain for name, domain in space.items() if field_path(name) not in gone}


def settings(pairs: Sequence[str]) -> dict[str, Any]:
    """name=value, the value as Python writes it, inf, or a plain word. Raises ConfigError for a setting that is named twice."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        require(bool(equals), f"--set takes name=value, got '{pair}'.")
        require(field_path(name) not in map(field_path, values), f"--set names '{name}' twice. Keep one.")
        values[name] = read_value(text)
    return values


def read_value(text: str) -> Any:
    if text in _INFINITY:
        return math.inf
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):  # the last two for text that is nested too deep
        return text


def main(args: Args) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = Path(args.resume or args.out or f"runs/{args.recipe.partition(':')[0].partition('.')[0]}-{time.strftime('%Y%m%d-%H%M%S')}")
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  it may be closed, and lasts as long as the process
    try:
        with reporter_for(args.quiet, args.json) as reporter:
            return told(args, out, reporter)
    except ConfigError as error:  # there is no reporter
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, or an output that takes no more
        print(f"error: {error}", file=sys.stderr)
        return 1


def told(args: Args, out: Path, reporter: Reporter) -> int:
    """Everything that happens is told by events, and so is how it ends."""
    try:
        reporter.tell(Note(f"torch {check_torch()}, {check_engine()}"))
        require(not (args.estimate and args.quiet), "--quiet would keep back what --estimate is for. Leave one of them out.")
        require(
            "" not in (args.out, args.resume), "--out and --resume take a directory, got an empty name. Leave the flag out, or name one."
        )
        price = args.price_per_hour
        require(price is None or 0 <= price < math.inf, f"price_per_hour must be at least 0, got {price}. Leave it out for no cost.")
        if args.resume:
            session = {name: getattr(args, name) for name in _SESSION}
            require(
                args == Args(resume=args.resume, **session),
                "--resume goes on under the settings of its run. Leave the other flags out, but for --address and those about output.",
            )
            with resumed_run(out) as manifest:
                settings = manifest["settings"]
                kept = {name: settings.get(name) for name in ("address", "price_per_hour") if session[name] is None}
                return run(*_as_resumed(out, manifest, settings | session | kept), out, True, reporter)
        spec = with_first_values(population(args), args)  # refuses what is wrong before there is a directory
        with new_run(out, asdict(args), spec.to_dict()), nothing_kept(out) if args.estimate else nullcontext():
            return run(args, spec, out, False, reporter)
    except PbtAgentsError as error:
        reporter.tell(Failed(str(error)))
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        if args.estimate:
            reporter.tell(Failed("interrupted before there was an estimate; nothing is kept"))
            return 130
        if not (out / MANIFEST).exists():
            reporter.tell(Failed("interrupted before anything was begun"))
            return 130
        reporter.tell(Interrupted(False, resume_command(out)))
        return 130


def with_first_values(spec: PopulationSpec, args: Args) -> PopulationSpec:
    """From the study, where one is named and the recipe leaves them open."""
    study = opened_study(args, spec)
    if study is None or spec.initial is not None or spec.size == 1:
        return spec
    return replace(spec, initial=tuple(study.first_values(spec.search_space, spec.size, spec.agent.seed)))


def opened_study(args: Args, spec: PopulationSpec) -> "Study | None":
    if args.study is None:
        return None
    from pbt_agents.study import Study, study_name  # needed by few

    return Study(args.study, study_name(args.recipe, spec.agent.environment.id))


def _as_resumed(out: Path, manifest: Mapping[str, Any], settings: Mapping[str, Any]) -> tuple[Args, PopulationSpec]:
    """The flags that the run was started with, if they still come to the population that it was started with.

    First values of a study are those that were asked for then: it may have grown since.
    """
    with as_written(out / MANIFEST):
        args, then = Args(**settings), manifest["population"]
        require(isinstance(then, dict), f"'{out / MANIFEST}' holds no population. Bring the file back, or start a new run.")
        spec = population(args)
        if args.study is not None and then.get("initial"):
            spec = replace(spec, initial=tuple(then["initial"]))
        changed = difference(then, spec.to_dict())
    require(
        changed is None,
        f"'{out / MANIFEST}' was started with another population than its settings come to now: {changed}. "
        "Undo what was changed in the file, or go on with the version of the code that started the run.",
    )
    return args, spec


def resume_command(out: Path) -> str:
    """As it can be typed in this directory."""
    python = os.path.relpath(sys.executable) if Path(sys.executable).is_relative_to(Path.cwd()) else sys.executable
    return shlex.join([python, sys.argv[0], "--resume", str(out)])


def run(args: Args, spec: PopulationSpec, out: Path, resume: bool, reporter: Reporter) -> int:
    if args.address is None:
        check_capacity(spec, out)
    else:
        check_address(args.address)
    from pbt_agents.training import (  # takes seconds, and is not needed to refuse a wrong flag
        RESULTS,
        compare,
        comparison,
        estimate,
        report,
        train,
    )

    rivals = comparison(spec) if args.compare else {}  # refuses now what could not be compared later
    ended = all((out / arm / RESULTS).exists() for arm in ("", *rivals))
    require(
        not (resume and ended),
        f"'{out}' has ended, and {RESULTS} in it has the report. Start a new run, or score it: python -m pbt_agents evaluate {out}/best",
    )
    with ExitStack() as session:
        with Stage(reporter, "ray", "starting Ray") as stage:
            session.enter_context(ray_session(out, args.address))
            stage.result = "Ray is up"
        if args.estimate:
            if not estimate(spec, out, reporter, args.price_per_hour):
                raise KeyboardInterrupt
            reporter.tell(Note("nothing of this is kept; the same command without --estimate trains"))
            return 0
        outcome = train(spec, out, resume, args.test_episodes, reporter, args.price_per_hour)
        if outcome is None:
            reporter.tell(Interrupted(True, resume_command(out)))
            return 130
        arms = compare(spec, outcome, out, resume, args.test_episodes, reporter, args.price_per_hour) if args.compare else {}
    reporter.tell(report(spec, outcome, arms, out, args.price_per_hour))
    study = opened_study(args, spec)
    if study:
        study.add(out)
    idle = not any(member.metrics.get("updates") for member in outcome.run.members)
    if idle:
        reporter.tell(Note("no agent has made an update, so that every adapter is the base model; the lines above say what they lacked"))
    return 130 if None in arms.values() else 1 if idle or any(member.error for member in outcome.run.members) else 0


if __name__ == "__main__":
    code = main(parse(Args))
    gc.freeze()  # there is nothing to collect at the end, and looking for it takes seconds once torch is there
    sys.exit(code)
