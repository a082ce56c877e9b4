import json
import os
import subprocess
import sys

import psutil
import pytest

from pbt_agents import resources
from pbt_agents.resources import ResourceMeter, Usage, _left_in, _memory_cgroups, available_memory, cores, disk_bytes, gpu_memory

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


def cgroup(folder, version, limit, used, given_back):
    folder.mkdir(parents=True, exist_ok=True)
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    for name, value in zip(names[version][:2], (limit, used), strict=True):
        (folder / name).write_text(f"{value}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[version][2]} {given_back}\n")


@pytest.mark.parametrize("version", [1, 2])
def test_what_a_cgroup_leaves_is_its_limit_less_what_cannot_be_given_back(tmp_path, version):
    cgroup(tmp_path, version, 1000, 600, 100)
    assert _left_in(tmp_path) == 500
    cgroup(tmp_path, version, 1000, 1600, 100)
    assert _left_in(tmp_path) == 0


def test_a_cgroup_without_a_limit_leaves_all(tmp_path):
    assert _left_in(tmp_path) == _left_in(tmp_path / "none") == 1 << 62
    cgroup(tmp_path, 2, "max", 600, 100)
    assert _left_in(tmp_path) == 1 << 62


@pytest.mark.parametrize(
    ("own", "folders"),
    [
        ("4:memory:/a/b\n1:cpu:/c\n", {"memory/a/b", "memory/a", "memory", "."}),
        ("0::/a/b\n", {"a/b", "a", "."}),
        ("0::/\n", {"."}),
    ],
)
def test_the_cgroups_of_this_process_and_those_around_them_are_asked(tmp_path, own, folders):
    (tmp_path / "own").write_text(own)
    assert set(_memory_cgroups(tmp_path, tmp_path / "own")) == {tmp_path / folder for folder in folders}
    assert _memory_cgroups(tmp_path, tmp_path / "none") == []


def test_memory_is_what_the_tightest_of_machine_and_cgroups_leaves(tmp_path, monkeypatch):
    assert 0 < available_memory() <= psutil.virtual_memory().total
    cgroup(tmp_path, 2, 1000, 600, 100)
    monkeypatch.setattr(resources, "_memory_cgroups", lambda: [tmp_path / "none", tmp_path])
    assert available_memory() == 500


@pytest.mark.parametrize(("visible", "count"), [(None, 2), ("1", 1), ("", 0)])
def test_gpus_are_those_that_this_process_may_use(tmp_path, monkeypatch, visible, count):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 81559\necho 81559\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_memory() == [81559 << 20] * count


def test_a_machine_without_nvidias_driver_has_no_gpu(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_memory() == []


def test_a_file_with_two_names_takes_its_place_once(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a").write_bytes(bytes(range(256)) * 4096)
    one = disk_bytes(tmp_path)
    os.link(tmp_path / "sub" / "a", tmp_path / "b")
    assert disk_bytes(tmp_path) == one
    assert 1 << 20 <= one < 2 << 20
    assert disk_bytes(tmp_path / "nowhere") == 0
