import numpy as np
import pytest

from pbt_agents.trainer.report import LagStats, TokenStats, token_metrics


def tokens(ratio: list[float], lags: list[int], capped: list[bool] | None = None, on_policy: list[bool] | None = None) -> TokenStats:
    none = [False] * len(ratio)
    return TokenStats(
        np.array(ratio, np.float32),
        np.array(capped or none),
        np.full(len(ratio), 0.5, np.float32),
        np.array(lags, np.int32),
        np.array(on_policy or none),
    )


def test_ratios_are_told_by_lag_over_all_micro_batches():
    _, by_lag = token_metrics([tokens([1.0, 2.0], [0, 2]), tokens([0.5, 1.0], [2, 2])])
    assert list(by_lag) == [0, 2]
    assert by_lag[0] == LagStats(tokens=1, ratio_mean=1.0, ratio_max=1.0, log_ratio_abs_mean=0.0)
    assert by_lag[2] == LagStats(
        tokens=3, ratio_mean=pytest.approx(3.5 / 3), ratio_max=2.0, log_ratio_abs_mean=pytest.approx(2 / 3 * np.log(2))
    )


def test_metrics_are_means_and_maxima_over_trained_tokens():
    metrics, _ = token_metrics([tokens([1.0, 4.0], [0, 1], [False, True]), tokens([0.5, 0.5], [1, 3])])
    expected = {
        "trained_tokens": 4,
        "ratio_mean": 1.5,
        "ratio_max_seen": 4.0,
        "log_ratio_abs_mean": np.log(2),
        "log_ratio_abs_max": np.log(4),
        "capped_fraction": 0.25,
        "entropy": 0.5,
        "lag_steps_mean": 1.25,
        "lag_steps_max": 3,
        "ratio_identically_one": 0,
        "on_policy_tokens": 0,
    }
    assert metrics == pytest.approx({f"trainer/{name}": value for name, value in expected.items()}, rel=1e-6)


@pytest.mark.parametrize(
    ("ratio", "lags", "warns"),
    [
        ([1.0, 1.0, 1.0], [0, 2, 2], 1.0),  # somebody recomputed the behaviour log-probs
        ([1.0, 1.0, 1.0001], [0, 2, 2], 0.0),
        ([1.2, 1.0, 1.0], [0, 2, 2], 1.0),
        ([1.0, 1.0, 1.0], [0, 0, 0], 0.0),  # on-policy it may be
    ],
)
def test_stale_data_with_a_ratio_of_exactly_one_everywhere_warn(ratio: list[float], lags: list[int], warns: float):
    """B14."""
    metrics, _ = token_metrics([tokens(ratio, lags)])
    assert metrics["trainer/ratio_identically_one"] == warns


def test_the_gap_between_engine_and_trainer_is_that_of_the_tokens_of_the_current_policy():
    """Ratios 2 and 1/8 are 1 and 3 times log 2 apart; the stale one, 64, does not count."""
    metrics, _ = token_metrics([tokens([2.0, 64.0], [0, 3], on_policy=[True, False]), tokens([0.125], [0], on_policy=[True])])
    assert metrics["trainer/on_policy_tokens"] == 2
    assert metrics["trainer/on_policy_gap_mean"] == pytest.approx(2 * np.log(2))
    assert metrics["trainer/on_policy_gap_max"] == pytest.approx(3 * np.log(2))
