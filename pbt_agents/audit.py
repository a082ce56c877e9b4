"""Whether what is trained on is what was played: a stored trajectory is played again and told anew, from the environment's words.

Tokens, masks and rewards can go wrong on the way through rollout, log and batch without any curve showing it.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from pbt_agents.errors import EpisodeError, GuardError
from pbt_agents.rollout.episode import Replay
from pbt_agents.rollout.renderer import ChatRenderer
from pbt_agents.trainer.batch import micro_batches
from pbt_agents.types import BoolArray, IntArray, Trajectory

Verdict = Literal["agreed", "not_reproducible", "lost"]
"""agreed: every token, mask and reward; not_reproducible: the environment does not repeat itself; lost: it failed this time."""


def audit(trajectory: Trajectory, seed: int, replay: Callable[[int, Sequence[str]], Replay], renderer: ChatRenderer) -> Verdict:
    """`replay(seed, actions)` is what a fresh environment says to the same actions.

    Raises GuardError when it says the same each time, and that is not what the trainer is given.
    """
    actions = [renderer.text(turn.action_ids) for turn in trajectory.turns]
    try:
        told = replay(seed, actions)
        difference = _difference(trajectory, told, renderer)
        if difference and repr(replay(seed, actions)) != repr(told):  # NaN is not equal to itself
            return "not_reproducible"
    except EpisodeError:
        return "lost"
    if difference:
        raise GuardError(f"an attempt at task {seed} is trained on that is not what its environment gives: {difference}.")
    return "agreed"


def _difference(trajectory: Trajectory, told: Replay, renderer: ChatRenderer) -> str:
    """The first between what the environment tells and what the trainer is given; empty when there is none."""
    turns = len(trajectory.turns)
    if (len(told.rewards), told.stop_reason or "length") != (turns, trajectory.stop_reason):
        return f"it is {told.stop_reason or 'still going on'} after {len(told.rewards)} turns, stored are {turns}, {trajectory.stop_reason}"
    if not np.array_equal(np.array(told.rewards, np.float32), trajectory.rewards, equal_nan=True):
        return f"rewards are {list(told.rewards)}, stored are {trajectory.rewards.tolist()}"
    ids, sampled = _derived(trajectory, told, renderer)
    given = next(micro_batches([trajectory], [0.0], version=trajectory.newest_version, max_tokens=1))
    for what, derived, row in (("token ids", ids, given.token_ids[0]), ("trained tokens", sampled, given.loss_mask[0])):
        if not np.array_equal(derived, row):
            return _first_difference(what, derived, row)
    covered = sorted(position for span in trajectory.policy_spans for position in range(span.start, span.stop))
    return "" if covered == np.flatnonzero(sampled).tolist() else f"policy spans cover {covered}, not the sampled tokens"


def _derived(trajectory: Trajectory, told: Replay, renderer: ChatRenderer) -> tuple[IntArray, BoolArray]:
    """[T] ids and [T] which of them were sampled, from the environment's words and the actions."""
    ids: list[int] = []
    sampled: list[bool] = []
    before: IntArray | None = None
    for turn, observation in zip(trajectory.turns, told.observations, strict=False):
        shown = renderer.first(observation) if before is None else renderer.later(observation, before)
        before = turn.action_ids
        ids += [*shown, *before]
        sampled += [False] * len(shown) + [True] * len(before)
    return np.array(ids, np.int32), np.array(sampled, np.bool_)


def _first_difference(what: str, derived: np.ndarray, given: np.ndarray) -> str:
    if len(derived) != len(given):
        return f"{what} are {len(derived)}, given are {len(given)}"
    position = int(np.flatnonzero(derived != given)[0])
    return f"{what} differ from position {position} of {len(given)}: {derived[position]}, given is {given[position]}"
