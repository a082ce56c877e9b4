"""Agents learn multi-turn Sudoku side by side, and the best of them teach the worst: the main example.

python experiments/sudoku_pbt.py --population 4
"""

import ast
import gc
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _args import parse

from pbt_agents.config import require
from pbt_agents.environment import environment_maker
from pbt_agents.errors import ConfigError, PbtAgentsError
from pbt_agents.models import check_context, resolve_model
from pbt_agents.population import Budget, PopulationSpec
from pbt_agents.populations.sudoku import CHAT_MODEL, POPULATION
from pbt_agents.preflight import check_engine, check_torch
from pbt_agents.ray_session import ray_session
from pbt_agents.run_folder import new_run, resumed_run
from pbt_agents.search_space import agent_search_space

if TYPE_CHECKING:
    from pbt_agents.training import Outcome


@dataclass
class Args:
    population: int = 4
    """Agents trained side by side."""
    updates: int = 100
    """Optimizer steps of each agent."""
    minutes: float | None = None
    """Stop earlier, after so many minutes of training."""
    window: int | None = None
    """Fix the buffer's window (policy versions) instead of searching it; 0 trains synchronously."""
    environment: str = "sudoku:tiny"
    """Environment and variant, or one's own as my_package.maze:ENVIRONMENT."""
    model: str = "tiny"
    """Base model: tiny (in the package), a folder, or a hub id."""
    set: tuple[str, ...] = ()
    """Any other setting of an agent by its name, e.g. --set max_reuse=1 fleet=per_agent."""
    test_episodes: int = 256
    """Fresh tasks that the members, and at the end the best and the base, are scored on."""
    seed: int = 0
    """Of puzzles, first values and mutations."""
    out: str | None = None
    """Directory of the run; runs/sudoku-<time> when not given."""
    resume: str | None = None
    """Directory of an interrupted run to go on with, under the same settings."""
    compare: bool = False
    """Afterwards train the same agents without copying, and one default agent, on the same CPU seconds."""


def population(args: Args) -> PopulationSpec:
    """The recipe with what the command line changes."""
    agent = POPULATION.agent.with_values({"seed": args.seed, "environment.id": args.environment, "model.path": args.model})
    agent = agent.with_values(({} if args.model == "tiny" else CHAT_MODEL) | settings(args.set))
    space = dict(POPULATION.search_space)
    if args.window is not None:
        agent = agent.with_values({"window": args.window})
        del space["window"]
    agent_search_space(agent, space)
    environment_maker(agent.environment, "train")
    check_context(resolve_model(agent.model.path), agent.rollout.max_episode_tokens)
    require(args.test_episodes >= 2, f"test_episodes must be at least 2, got {args.test_episodes}.")
    budget = Budget(updates=args.updates, minutes=args.minutes)
    return replace(POPULATION, agent=agent, search_space=space, budget=budget).of_size(args.population)


def settings(pairs: Sequence[str]) -> dict[str, Any]:
    """name=value, the value as Python writes it, or a plain word."""
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set takes name=value, got '{pair}'.")
        try:
            values[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            values[name] = text
    return values


def main(args: Args) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = Path(args.resume or args.out or f"runs/sudoku-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        print(f"torch {check_torch()}, {check_engine()}", flush=True)
        if args.resume:
            if args != Args(resume=args.resume):
                raise ConfigError("--resume goes on under the settings of its run. Leave the other flags out.")
            with resumed_run(out) as settings:
                return run(Args(**settings), out, resume=True)
        population(args)  # refuse what is wrong before there is a directory
        with new_run(out, asdict(args)):
            return run(args, out, resume=False)
    except PbtAgentsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        print(f"interrupted. What was saved until then goes on with: python {sys.argv[0]} --resume {out}", file=sys.stderr)
        return 130


def run(args: Args, out: Path, resume: bool) -> int:
    from pbt_agents.training import compare, train  # takes seconds, and is not needed to refuse a wrong flag

    spec = population(args)
    with ray_session(out):
        outcome = train(spec, out, resume, args.test_episodes)
        if outcome is None:
            print(f"interrupted and saved. Go on with: python {sys.argv[0]} --resume {out}")
            return 130
        arms = compare(spec, outcome, out, resume, args.test_episodes) if args.compare else {}
    report(outcome, arms, out)
    return 130 if None in arms.values() else 1 if any(member.error for member in outcome.run.members) else 0


def report(outcome: "Outcome", arms: Mapping[str, "Outcome | None"], out: Path) -> None:
    run, (started, ended) = outcome.run, outcome.engine_pids
    print(f"\n{len(run.lineage.clones)} clones in {run.usage.seconds:.0f} s, {run.usage.cpu_s:.0f} CPU s, ", end="")
    print(f"at most {run.usage.peak_pss_bytes / 2**30:.1f} GiB resident; engines {started} at the start, {ended} at the end")
    print(f"test puzzles: {outcome.base.episodes}, none seen in training; in brackets all members on validation puzzles, sampled")
    print(f"  base model   {outcome.base}")
    for name, arm in {"population": outcome, **arms}.items():
        print(f"  {name:<12} {standing(arm) if arm else 'interrupted'}")
    print(f"adapter (loads with peft and vLLM): {out / 'best'}")
    print(f"lineage and schedule: {out / 'population' / 'lineage.json'}, schedule.json beside it")


def standing(outcome: "Outcome") -> str:
    members = " ".join(f"{score:.2f}" for score in outcome.validation.values())
    return f"{outcome.scores}  ({outcome.best.name} of {members})" if outcome.best else "saved no adapter"


if __name__ == "__main__":
    code = main(parse(Args))
    gc.freeze()  # there is nothing to collect at the end, and looking for it takes seconds once torch is there
    sys.exit(code)
