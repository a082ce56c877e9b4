"""Advantages of a batch, from the scores its groups were stored with.

Owns what a score is worth beside its siblings, and which groups teach nothing. Scores stay in the buffer as the environment gave
them, so that another estimator or a late verdict needs no new data. Spreading over tokens is batch.py's.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_agents.config import ADVANTAGES
from pbt_agents.errors import ConfigError, GuardError
from pbt_agents.types import Group, Trajectory

SPREAD_TOLERANCE = 1e-6
"""Scores whose max - min is at most this, times their magnitude where that exceeds 1, are equal: float32 sums differ by less."""
DEVIATION_FLOOR = 1e-4
"""Deviations below it are not divided away: so small a difference between attempts is noise of the reward."""

SKIP_REASONS = ("solved", "failed", "other", "too_few")


@dataclass(frozen=True)
class Lesson:
    """The episodes of a batch that teach something."""

    trajectories: tuple[Trajectory, ...]
    advantages: tuple[float, ...]
    """One for each trajectory; every trained token of it gets the same."""
    skipped: dict[str, int]
    """Groups left out, by reason: all equal at 1 or above (`solved`), at 0 or below (`failed`), in between (`other`), or fewer than
    two scored attempts (`too_few`)."""
    unscored: int
    """Episodes without a verdict: outside the statistics and the loss."""


def draw_lesson(groups: Sequence[Group], kind: str) -> Lesson:
    """Raises GuardError when most episodes have no verdict: such a run would learn nothing and never say so."""
    trajectories: list[Trajectory] = []
    advantages: list[float] = []
    skipped: Counter[str] = Counter()
    for group in groups:
        if reason := skip_reason(group.scores):
            skipped[reason] += 1
            continue
        scored = np.isfinite(group.scores)
        trajectories += [trajectory for trajectory, kept in zip(group.trajectories, scored, strict=True) if kept]
        worth = group_advantages(group.scores, kind)[scored]
        if kind == "group_shuffled":
            worth = np.random.default_rng(group.seed).permutation(worth)
        advantages += worth.tolist()
    episodes = sum(len(group.trajectories) for group in groups)
    unscored = sum(int((~np.isfinite(group.scores)).sum()) for group in groups)
    if 2 * unscored > episodes:
        raise GuardError(f"{unscored} of {episodes} episodes have no verdict (a score that is not finite). Mend the environment's reward.")
    return Lesson(tuple(trajectories), tuple(advantages), {reason: skipped[reason] for reason in SKIP_REASONS}, unscored)


def group_advantages(scores: NDArray[Any], kind: str) -> NDArray[np.float64]:
    """[G] -> [G]. 0 without a verdict; all exactly 0 where `skip_reason` gives one.

    `group_centered` subtracts the group's mean. `group_standardized` also divides by the *population* deviation (so that a pair
    gives -1 and 1, and no advantage exceeds the root of G - 1), or by DEVIATION_FLOOR where that is larger; so does `group_shuffled`.
    """
    if kind not in ADVANTAGES:
        raise ConfigError(f"advantage is one of {ADVANTAGES}, got '{kind}'.")
    advantages = np.zeros(len(scores))
    if skip_reason(scores):
        return advantages
    scored = np.isfinite(scores)
    centered = scores[scored].astype(np.float64)
    centered -= centered.mean()
    if kind != "group_centered":
        centered /= max(np.sqrt(np.mean(centered**2)), DEVIATION_FLOOR)
    advantages[scored] = centered
    return advantages


def skip_reason(scores: NDArray[Any]) -> str | None:
    """Why a group [G] carries no gradient, or None when it does."""
    scored = scores[np.isfinite(scores)].astype(np.float64)
    if len(scored) < 2:
        return "too_few"
    tolerance = SPREAD_TOLERANCE * max(1.0, np.abs(scored).max())
    if scored.max() - scored.min() > tolerance:
        return None
    if scored.mean() >= 1.0 - tolerance:
        return "solved"
    return "failed" if scored.mean() <= tolerance else "other"
