"""What one update tells: metrics of what ran, and how far the policy had moved from the data, by lag."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pbt_agents.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class LagStats:
    """The trained tokens of one lag."""

    tokens: int
    ratio_mean: float
    ratio_max: float
    log_ratio_abs_mean: float
    """Nats."""


@dataclass(frozen=True, slots=True)
class UpdateReport:
    stepped: bool
    """False when nothing was to be learned, or the step was refused: the version is then unchanged."""
    version: int
    """Of the weights as they are now."""
    metrics: dict[str, float]
    by_lag: dict[int, LagStats] = field(default_factory=dict)
    """Lags in policy versions, ascending."""


@dataclass(frozen=True, slots=True)
class TokenStats:
    """[N] values of the trained tokens of one micro-batch."""

    ratio: FloatArray
    capped: BoolArray
    entropy: FloatArray
    lags: IntArray
    on_policy: BoolArray


def token_metrics(parts: Sequence[TokenStats]) -> tuple[dict[str, float], dict[int, LagStats]]:
    ratio, lags, on_policy = (np.concatenate([getattr(part, name) for part in parts]) for name in ("ratio", "lags", "on_policy"))
    log_ratio = np.abs(np.log(ratio.astype(np.float64)))
    stale = ratio[lags >= 1]
    metrics = {
        "trainer/trained_tokens": float(len(ratio)),
        "trainer/ratio_mean": float(ratio.mean(dtype=np.float64)),
        "trainer/ratio_max_seen": float(ratio.max()),
        "trainer/log_ratio_abs_mean": float(log_ratio.mean()),
        "trainer/log_ratio_abs_max": float(log_ratio.max()),
        "trainer/capped_fraction": float(np.concatenate([part.capped for part in parts]).mean()),
        "trainer/entropy": float(np.concatenate([part.entropy for part in parts]).mean(dtype=np.float64)),
        "trainer/lag_steps_mean": float(lags.mean()),
        "trainer/lag_steps_max": float(lags.max()),
        # Two programs never agree to the last bit: exact ones mean that somebody recomputed the behaviour log-probs.
        "trainer/ratio_identically_one": float(len(stale) > 0 and bool((stale == 1.0).all())),
        **agreement(log_ratio[on_policy], "trainer/on_policy_"),
    }
    return metrics, {int(lag): _lag_stats(ratio[lags == lag], log_ratio[lags == lag]) for lag in np.unique(lags)}


def agreement(gaps: NDArray[Any], prefix: str) -> dict[str, float]:
    """How far log-probs of one policy lie apart [N], nat, that engine and trainer computed. Just the count where there are none."""
    figures = {f"{prefix}tokens": float(len(gaps))}
    if len(gaps):
        figures |= {f"{prefix}gap_mean": float(gaps.mean()), f"{prefix}gap_max": float(gaps.max())}
    return figures


def _lag_stats(ratio: FloatArray, log_ratio: NDArray[np.float64]) -> LagStats:
    return LagStats(len(ratio), float(ratio.mean(dtype=np.float64)), float(ratio.max()), float(log_ratio.mean()))
