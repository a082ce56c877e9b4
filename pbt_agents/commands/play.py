"""Watch an adapter, or its base model, at a task: each observation, action and reward, as they happen.

The tasks are the first ones that `evaluate` scores with the same split and seed.

    python -m pbt_agents play runs/mine/best --greedy
    python -m pbt_agents play runs/mine/best --base      # the same tasks, without the adapter
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pbt_agents.checks import require
from pbt_agents.commands._subject import subject
from pbt_agents.environment import Environment, StepResult, environment_maker
from pbt_agents.types import Split, StopReason, Trajectory

POSITIONAL = ("adapter",)
REASONS: dict[StopReason, str] = {
    "terminated": "the environment ended it",
    "truncated": "the environment's limit of turns",
    "length": "the token budget of an episode was used up",
}


@dataclass(frozen=True)
class Args:
    adapter: Path | None = None
    """Folder in PEFT's format, such as the `best` of a run. With --base only its run's settings are used, and it may be left out."""
    base: bool = False
    """The base model alone."""
    split: Split = "test"
    """Which tasks."""
    episodes: int = 1
    """How many tasks, one after the other."""
    greedy: bool = False
    """The likeliest token each time, in place of sampling at temperature 1."""
    environment: str | None = None
    """Environment and variant; that of the run, else sudoku:tiny, when not given."""
    model: str | None = None
    """Base model: tiny, a folder or a hub id; that of the run, else tiny, when not given."""
    seed: int | None = None
    """Of the tasks; that of the run, else 0, when not given."""


class Watched:
    """An environment that tells each turn."""

    def __init__(self, environment: Environment, tell: Callable[[str], None]) -> None:
        self._environment, self._tell = environment, tell
        self._turns = 0

    def reset(self, seed: int) -> str:
        observation = self._environment.reset(seed)
        self._tell(indented(observation))
        return observation

    def step(self, action: str) -> StepResult:
        result = self._environment.step(action)
        self._turns += 1
        self._tell(f"\nturn {self._turns}\n{indented(action, '  > ')}")
        with suppress(AttributeError, TypeError, ValueError):  # no StepResult, or a wrong one: who plays says what is wrong with it
            self._tell(f"  reward {result.reward:+.3f}\n{indented(result.observation)}")
        return result


def main(args: Args) -> int:
    require(args.adapter is not None or args.base, "name the folder of an adapter, or play the base model with --base.")
    require(args.episodes >= 1, f"episodes must be at least 1, got {args.episodes}.")
    playing = subject(args.adapter, args.environment, args.model, args.seed)
    print(playing, file=sys.stderr)

    from pbt_agents.commands._ready import lines_on_stderr, ready_evaluator

    who, make = None if args.base else args.adapter, environment_maker(playing.config.environment, args.split)
    with ready_evaluator(playing, lines_on_stderr()) as evaluator:
        for number, task in enumerate(evaluator.tasks(args.split, args.episodes), 1):
            print(f"\n{args.split} task {number} of {args.episodes}, {who or 'base model'}, {'greedy' if args.greedy else 'sampled'}\n")
            print(ending(evaluator.watch(who, lambda: Watched(make(), _tell), task, 0.0 if args.greedy else 1.0)), flush=True)
    return 0


def ending(played: Trajectory) -> str:
    """Score, reason, and what the environment measured."""
    metrics = "".join(f", {name} {value:g}" for name, value in played.metrics.items())
    return f"\nscore {played.score:.3f} in {len(played.turns)} turns; {REASONS[played.stop_reason]}{metrics}"


def indented(text: str, mark: str = "    ") -> str:
    """Line by line behind the mark. What would move a terminal's cursor or colour it is written out."""
    shown = "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in text)
    return "\n".join(mark + line for line in shown.split("\n"))


def _tell(text: str) -> None:
    print(text, flush=True)
