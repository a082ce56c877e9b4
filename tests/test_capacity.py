import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from pbt_agents import capacity
from pbt_agents.assets import tiny_model_path
from pbt_agents.capacity import (
    GIB,
    MIB,
    check_capacity,
    check_disk,
    check_gpu,
    check_memory,
    cpus_per_member,
    gpu_plans,
    gpus_held,
    memory_plan,
)
from pbt_agents.config import AgentConfig
from pbt_agents.errors import ConfigError
from pbt_agents.population import PopulationSpec

SPACE = {"learning_rate": [1e-4, 1e-3, 1e-2]}
TINY = str(tiny_model_path())


def spec(size, **values):
    return PopulationSpec(AgentConfig().with_values({"slots": size, **values}), SPACE, size)


@pytest.mark.parametrize(("size", "cores", "share"), [(1, 2, 1.0), (4, 2, 0.37), (8, 2, 0.18), (2, 64, 1.0)])
def test_all_members_and_the_engine_fit_into_the_cores_at_once(size, cores, share):
    assert cpus_per_member(spec(size), cores) == share
    assert size * share + 0.5 <= cores


def test_engines_of_ones_own_take_their_share():
    own = PopulationSpec(AgentConfig().with_values({"fleet": "per_agent", "slots": 4}), SPACE, 4)
    assert cpus_per_member(own, 4) == 0.5


def test_what_does_not_fit_is_refused_and_not_left_waiting():
    with pytest.raises(ConfigError, match="200 members beside 1 engines do not fit into 2 cores"):
        cpus_per_member(spec(200), 2)


def total(plan):
    return sum(count * size for count, size in plan.values())


@pytest.mark.parametrize(("size", "measured_gib"), [(4, 4.2), (8, 5.5)])
def test_the_plan_is_near_what_populations_of_the_tiny_model_were_seen_to_hold(size, measured_gib):
    """As results.json of such runs tells, and not below it by more than a tenth."""
    assert 0.9 * measured_gib < total(memory_plan(spec(size), TINY)) / GIB < 1.25 * measured_gib


def test_a_larger_model_is_planned_with_its_weights_in_every_process_and_its_logits_in_every_member(tmp_path, monkeypatch):
    """Of a member: weights of 2 GB, and 1,024 tokens of 100,000 logits in three copies of 4 bytes, 1.2288 GB."""
    config = {"vocab_size": 100_000, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}
    (tmp_path / "config.json").write_text(json.dumps(config))
    sizes = []
    for weights in (0, 2_000_000_000):
        monkeypatch.setattr(capacity, "weight_bytes", lambda _, weights=weights: weights)
        plan = memory_plan(spec(2), str(tmp_path))
        sizes.append((plan["engine"][1], plan["member"][1]))
    (engine, member), (large_engine, large_member) = sizes
    assert member == 500 * MIB + 1_228_800_000
    assert large_member - member == 2_000_000_000
    assert large_engine - engine == 2 * 2_000_000_000


def test_what_lies_on_a_gpu_is_not_asked_of_the_machines_memory():
    """Half of 64 sequences of 480 tokens, 4,096 bytes each; and 1,024 tokens of 32 logits in three copies of 4 bytes."""
    on_cpu, on_gpu = memory_plan(spec(2), TINY), memory_plan(spec(2, gpus_per_engine=0.5), TINY)
    assert on_cpu["engine"][1] - on_gpu["engine"][1] == 32 * 480 * 4096
    assert on_cpu["member"][1] - on_gpu["member"][1] == 3 * 4 * 1024 * 32


def test_each_engine_and_each_member_counts():
    plan = memory_plan(spec(3, fleet="per_agent", engines=2), TINY)
    assert [count for count, _ in plan.values()] == [1, 6, 3]


def test_too_little_memory_is_refused_with_need_have_and_remedy():
    plan = {"driver and Ray": (1, GIB), "engine": (1, 2 * GIB), "member": (4, GIB // 2)}
    check_memory(plan, 5 * GIB)
    with pytest.raises(ConfigError) as caught:
        check_memory(plan, 5 * GIB - 1)
    assert str(caught.value) == (
        "this run needs about 5.0 GiB of memory (1 x driver and Ray 1.00, 1 x engine 2.00, 4 x member 0.50), and 5.0 GiB are available. "
        "Take a smaller population or model, fewer engines, or a lower kv_cache_bytes."
    )


def disk(monkeypatch, free):
    asked = []

    def usage(path):
        asked.append(Path(path))
        return SimpleNamespace(free=free)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return asked


def test_a_full_disk_is_refused_with_the_path_need_and_free(tmp_path, monkeypatch):
    """B72."""
    asked = disk(monkeypatch, 5 * MIB)
    with pytest.raises(
        ConfigError, match=r"^the disk of '.*/runs/new' has 5 MiB free, and this run needs about 80 MiB\. Make room, or move\.$"
    ):
        check_disk(tmp_path / "runs" / "new", 80 * MIB, "move")
    assert asked == [tmp_path]  # the nearest folder that is there
    disk(monkeypatch, 80 * MIB)
    check_disk(tmp_path / "runs" / "new", 80 * MIB, "move")


def test_the_temporary_folder_needs_room_too(tmp_path, monkeypatch):
    """B72: it may lie on another disk."""
    monkeypatch.setattr(capacity, "available_memory", lambda: 64 * GIB)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(capacity, "temporary_folder", lambda: tmp_path / "temporary")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0 if path == tmp_path / "temporary" else GIB))
    with pytest.raises(ConfigError, match=r"the disk of '.*/temporary' has 0 MiB free.* set TMPDIR to another directory"):
        check_capacity(spec(1), tmp_path / "run")


def test_engines_on_one_gpu_are_refused_by_their_sum_with_the_trainers():
    """B76."""
    with pytest.raises(ConfigError, match=r"^the plan takes 110% of GPU 0: engine0 40%, engine1 40%, trainers 30%\. Lower"):
        check_gpu(0, {"engine0": 0.4, "engine1": 0.4, "trainers": 0.3})
    check_gpu(0, {"engine0": 0.3, "engine1": 0.3, "trainers": 0.3})
    check_gpu(0, {"engine0": 0.4, "engine1": 0.3, "trainers": 0.3})


def test_engines_are_planned_on_gpus_one_after_another_and_all_trainers_on_the_first():
    """B76."""
    plans = gpu_plans(spec(2, engines=3, gpus_per_engine=0.4), TINY, [80 * GIB, 80 * GIB])
    assert [sorted(plan) for plan in plans] == [["engine0", "engine1", "trainers"], ["engine2"]]
    assert plans[0]["engine0"] == 0.4
    assert 0 < plans[0]["trainers"] < 0.05


def test_an_engine_that_needs_more_than_its_share_is_planned_with_what_it_needs():
    """B76: a fraction in Ray binds no memory."""
    [plan] = gpu_plans(spec(1, engines=1, gpus_per_engine=0.1, kv_cache_bytes=40 * GIB), TINY, [80 * GIB])
    assert 0.5 < plan["engine0"] < 0.52


@pytest.mark.parametrize(
    ("engines", "share", "gpus", "told"),
    [
        (1, 0.5, [], r"gpus_per_engine is 0\.5, but nvidia-smi lists no GPU here\. Leave it at 0"),
        (2, 0.6, [80 * GIB], r"2 engines with gpus_per_engine 0\.6 do not fit on 1 GPU\(s\)\. Lower it"),
        (5, 0.5, [80 * GIB, 80 * GIB], r"5 engines with gpus_per_engine 0\.5 do not fit on 2 GPU\(s\)"),
    ],
)
def test_an_engine_for_which_ray_would_wait_without_end_is_refused(engines, share, gpus, told):
    """B76."""
    with pytest.raises(ConfigError, match=told):
        gpu_plans(spec(1, engines=engines, gpus_per_engine=share), TINY, gpus)


@pytest.mark.parametrize(
    ("size", "values", "memory", "free", "told"),
    [
        (300, {}, 64, 64, "300 members beside 1 engines do not fit"),
        (4, {}, 1, 64, "GiB of memory"),
        (4, {}, 64, 0, "has 0 MiB free"),
        (1, {"gpus_per_engine": 0.5}, 64, 64, "no GPU"),
    ],
)
def test_all_that_a_run_needs_is_asked_before_it_begins(tmp_path, monkeypatch, size, values, memory, free, told):
    monkeypatch.setattr(capacity, "cores", lambda: 2)
    monkeypatch.setattr(capacity, "available_memory", lambda: memory * GIB)
    monkeypatch.setattr(capacity, "gpu_memory", list)
    disk(monkeypatch, free * GIB)
    with pytest.raises(ConfigError, match=told):
        check_capacity(spec(size, **values), tmp_path / "run")


@pytest.mark.parametrize(("engines", "share", "gpus"), [(1, 0.0, 0), (1, 1.0, 1), (3, 0.5, 2), (5, 0.6, 5), (2, 0.1, 1), (10, 0.1, 1)])
def test_engines_with_a_share_of_a_gpu_lie_on_one_together(engines, share, gpus):
    assert gpus_held(AgentConfig().with_values({"engines": engines, "gpus_per_engine": share})) == gpus
