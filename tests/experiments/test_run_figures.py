"""Figures of a run that was written by hand."""

import json
import os

import pytest
from _figures import latency_ms
from run_figures import Args, measure, start_up

from pbt_agents.errors import ConfigError


def row(started, tokens, cpu_s, lag, ratio, publish_s, stepped=1.0):
    by_lag = {str(lag): {"tokens": tokens, "ratio_mean": ratio, "ratio_max": 2 * ratio, "log_ratio_abs_mean": 0.0}}
    update = {"trainer/trained_tokens": tokens, "trainer/padded_tokens": 4 * tokens, "trainer/update_cpu_s": cpu_s, "trainer/update_s": 1.5}
    return {"started": started, **update, "trainer/stepped": stepped, "sync/publish_s": publish_s, "by_lag": by_lag}


@pytest.fixture
def run(tmp_path):
    """Two members; the second became a clone at 103 s and trained again at 103.25 s."""
    updates = {
        "agent0": [row(100.0, 300, 2.0, 0, 1.0, 0.010), row(104.0, 300, 2.0, 1, 1.2, 0.030)],
        "agent1": [row(101.0, 100, 1.0, 0, 1.0, 0.020), row(103.25, 100, 1.0, 1, 1.6, 0.020), row(105.0, 9, 9.0, 0, 1.0, 9.0, 0.0)],
    }
    for name, rows in updates.items():
        (tmp_path / "population" / name / "ring").mkdir(parents=True)
        (tmp_path / "population" / name / "ring" / "updates.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (tmp_path / "population" / "lineage.json").write_text(json.dumps({"clones": [{"child": "x_00001", "time_s": 103.0}]}))
    before = {"tokens_generated": 10, "process_cpu_s": 1.0, "prompt_tokens": 0, "cached_tokens": 0, "swaps": 2, "swap_s": 0.0}
    after = {"tokens_generated": 1010, "process_cpu_s": 6.0, "prompt_tokens": 400, "cached_tokens": 100, "swaps": 6, "swap_s": 0.008}
    members = {"agent0": {"metrics": {"time/train_s": 6.0}}, "agent1": {"metrics": {"time/train_s": 3.0, "time/publish_s": 1.0}}}
    usage = {"seconds": 20.0, "cpu_s": 30.0, "peak_pss_bytes": 3 << 30}
    results = {"engines": {"start": [before], "end": [after]}, "members": members, "clones": 1, "clone_latency_s": [0.1, None]}
    (tmp_path / "results.json").write_text(json.dumps(results | usage))
    return tmp_path


def test_a_run_is_read_as_throughput_shares_staleness_and_latency(run):
    figures = measure(Args(run))
    assert figures["generation in the ring"]["generated_tokens_per_engine_cpu_s"] == 200  # 1000 in 5 s
    assert figures["generation in the ring"]["prompt_tokens_in_cache_share"] == 0.25
    assert figures["generation in the ring"]["adapter_write_ms_mean"] == pytest.approx(2.0)
    assert figures["training in the ring"]["updates"] == 4  # what did not step is none
    assert figures["training in the ring"]["trained_tokens_per_trainer_cpu_s"] == pytest.approx(800 / 6)
    assert figures["time of the members"] == {"time_publish_share": 0.1, "time_train_share": 0.9}
    assert figures["staleness"]["lag_0_share"] == 0.5
    assert figures["staleness"]["lag_1_ratio_mean"] == pytest.approx(1.3)  # 300 at 1.2, 100 at 1.6
    assert figures["staleness"]["lag_1_largest_ratio"] == 3.2
    assert figures["latency in the ring"]["publish_ms_median"] == pytest.approx(20)
    assert figures["latency in the ring"]["exploit_applied_ms_median"] == pytest.approx(100)
    assert figures["latency in the ring"]["exploit_next_update_ms_longest"] == pytest.approx(250)
    assert figures["resources"]["peak_pss_gib"] == 3


def test_a_run_that_has_not_ended_is_refused_with_the_way_on(run):
    (run / "results.json").unlink()
    with pytest.raises(ConfigError, match=r"holds no results\.json.*--resume"):
        measure(Args(run))


def test_nothing_timed_is_no_figure():
    assert latency_ms("exploit", []) == {}


def test_start_up_is_split_at_what_a_run_writes(run):
    (run / "run.json").write_text(json.dumps({"started": 92.0}))
    (run / "usage.json").write_text(json.dumps({"seconds": 20.0}))
    os.utime(run / "usage.json", (118.0, 118.0))
    assert start_up(run, 90.0) == {"settings_checked_s": 2.0, "engines_up_s": 8.0, "first_update_s": 11.5}
