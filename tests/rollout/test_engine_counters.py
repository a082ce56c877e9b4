import os

from pbt_agents.rollout.engine_counters import EngineCounters


def test_counters_and_the_process_are_read_as_plain_numbers():
    counters = EngineCounters()
    counters.steps += 2
    counters.step_cpu_s += 0.25

    read = counters.read()

    assert (read["steps"], read["step_cpu_s"], read["swaps"]) == (2.0, 0.25, 0.0)
    assert 0 < read["process_cpu_s"] <= sum(os.times()[:2])
    assert 0 < read["pss_bytes"] <= read["rss_bytes"]
    assert all(type(value) is float for value in read.values())
