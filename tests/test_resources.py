import json
import subprocess
import sys

import psutil
import pytest

from pbt_agents.resources import ResourceMeter, Usage, cores

WORK = """
import sys, time
kept = bytearray(b"x" * (100 << 20))
while time.process_time() < 0.5:
    pass
print("done", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def meter(tmp_path):
    made = ResourceMeter(tmp_path / "usage.json", period_s=1000)
    yield made
    made.close()


def test_cpu_and_memory_of_a_child_count_and_stay_counted_when_it_has_ended(meter):
    with subprocess.Popen([sys.executable, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "done\n"
        running = meter.usage()
        memory = meter._sample(with_memory=True).peak_pss_bytes
        spent = psutil.Process(child.pid).cpu_times()
    ended = meter.close()
    assert running.cpu_s >= 0.45
    assert ended.cpu_s >= spent.user + spent.system - 0.05
    assert memory > 100 << 20
    assert ended.peak_pss_bytes == memory


def test_what_was_used_before_the_meter_is_not_counted(meter):
    assert psutil.Process().cpu_times().user > 0.1
    assert meter.usage().cpu_s < 0.1


def test_a_resumed_run_counts_on_from_what_is_in_the_file(tmp_path):
    (tmp_path / "usage.json").write_text(json.dumps({"seconds": 100.0, "cpu_s": 200.0, "peak_pss_bytes": 1 << 50}))
    meter = ResourceMeter(tmp_path / "usage.json", period_s=1000)
    assert 100 < meter.seconds < 130
    usage = meter.close()
    assert 100 < usage.seconds < 130
    assert 200 <= usage.cpu_s < 230
    assert usage.peak_pss_bytes == 1 << 50


def test_the_file_is_written_while_the_run_goes_on(tmp_path):
    file, deadline = tmp_path / "usage.json", 30.0
    meter = ResourceMeter(file, period_s=0.01, memory_every=1)
    try:
        while not file.exists():
            assert meter.seconds < deadline
        assert Usage(**json.loads(file.read_text())).peak_pss_bytes > 0
    finally:
        meter.close()


def test_the_file_holds_the_last_figures_in_the_end(tmp_path):
    meter = ResourceMeter(tmp_path / "usage.json", period_s=1000)
    usage = meter.close()
    assert Usage(**json.loads((tmp_path / "usage.json").read_text())) == usage


def test_cores_are_those_that_this_process_may_use():
    assert cores() == len(psutil.Process().cpu_affinity())
