"""Has this machine what a run needs? Cores, memory, disk and GPUs, planned in bytes and asked before anything is started or made.

The constants were measured with the tiny model, as proportional set sizes of the processes of a run.
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from pbt_agents.checks import require
from pbt_agents.config import AgentConfig
from pbt_agents.models import resolve_model, vocabulary_size, weight_bytes
from pbt_agents.population import PopulationSpec
from pbt_agents.ray_session import temporary_folder
from pbt_agents.resources import available_memory, cores, gpu_memory
from pbt_agents.rollout.fleet import ENGINE_CPUS, engine_plan, engine_spec

MIB, GIB = 1 << 20, 1 << 30
_DRIVER_BYTES, _RAY_BYTES, _ENGINE_BYTES, _MEMBER_BYTES = 450 * MIB, 450 * MIB, 1000 * MIB, 500 * MIB
"""Before any weights: this process and W&B, Ray's own processes, vLLM in an engine, torch and a ring in a member."""
_CUDA_BYTES = 500 * MIB
"""CUDA's own share in each process that uses a GPU."""
_LOGIT_COPIES = 3
"""Of a micro-batch at a time: logits, their log-softmax and its gradient."""
_MEMBER_DISK_BYTES, _TEMPORARY_BYTES = 20 * MIB, 100 * MIB
"""Some hundred updates leave so much experience, checkpoints and logs of each member; Ray's logs and adapters on their way."""


def check_capacity(spec: PopulationSpec, out: Path) -> None:
    """Raises ConfigError naming what is needed, what there is, and what to take less of."""
    cpus_per_member(spec, cores())
    model = resolve_model(spec.agent.model.path)
    check_memory(memory_plan(spec, model), available_memory())
    check_disk(out, spec.size * _MEMBER_DISK_BYTES, "choose another --out")
    check_disk(temporary_folder(), _TEMPORARY_BYTES, "set TMPDIR to another directory")
    if spec.agent.fleet.gpus_per_engine > 0:
        for number, shares in enumerate(gpu_plans(spec, model, gpu_memory())):
            check_gpu(number, shares)


def cpus_per_member(spec: PopulationSpec, available: float) -> float:
    """A share of Ray's cores that lets all members run at once. Raises ConfigError when there is none."""
    engines = ENGINE_CPUS * len(engine_plan(spec.agent))
    share = int(100 * (available - engines) / spec.size) / 100
    require(
        share > 0,
        f"{spec.size} members beside {len(engine_plan(spec.agent))} engines do not fit into {available:g} cores. "
        "Take a smaller population or fewer engines.",
    )
    return min(share, 1.0)


def memory_plan(spec: PopulationSpec, model: str) -> dict[str, tuple[int, int]]:
    """What a run takes at most of the machine's memory: kind of process -> how many there are, and bytes of each."""
    agent, weights, engines = spec.agent, weight_bytes(model), engine_plan(spec.agent)
    on_gpu = agent.fleet.gpus_per_engine > 0
    cache = 0 if on_gpu else engine_spec(model, engines[0], agent, 0).kv_cache_bytes
    logits = 0 if on_gpu else _logit_bytes(agent, model)
    return {
        "driver and Ray": (1, _DRIVER_BYTES + _RAY_BYTES),
        "engine": (len(engines), _ENGINE_BYTES + 2 * weights + cache),  # twice: its self-test compares with transformers' model
        "member": (spec.size, _MEMBER_BYTES + weights + logits),
    }


def check_memory(plan: Mapping[str, tuple[int, int]], available: int) -> None:
    need = sum(count * size for count, size in plan.values())
    parts = ", ".join(f"{count} x {kind} {size / GIB:.2f}" for kind, (count, size) in plan.items())
    require(
        need <= available,
        f"this run needs about {need / GIB:.1f} GiB of memory ({parts}), and {available / GIB:.1f} GiB are available. "
        "Take a smaller population or model, fewer engines, or a lower kv_cache_bytes.",
    )


def check_disk(folder: Path, need: int, remedy: str) -> None:
    """Raises ConfigError when the disk of a directory, which need not exist yet, has no room."""
    place = next(there for there in (folder.absolute(), *folder.absolute().parents) if there.exists())
    free = shutil.disk_usage(place).free
    require(
        need <= free,
        f"the disk of '{folder}' has {free / MIB:.0f} MiB free, and this run needs about {need / MIB:.0f} MiB. Make room, or {remedy}.",
    )


def gpu_plans(spec: PopulationSpec, model: str, gpus: Sequence[int]) -> list[dict[str, float]]:
    """For each GPU, given by its bytes, the share of it that each process takes: engines one after another, all trainers on the first.

    Raises ConfigError where an engine finds no place, since Ray would wait for one without end.
    """
    share, engines = spec.agent.fleet.gpus_per_engine, engine_plan(spec.agent)
    require(bool(gpus), f"gpus_per_engine is {share}, but nvidia-smi lists no GPU here. Leave it at 0 to run on the CPU.")
    on_each = _engines_on_a_gpu(share)
    require(
        len(engines) <= on_each * len(gpus),
        f"{len(engines)} engines with gpus_per_engine {share} do not fit on {len(gpus)} GPU(s). Lower it, or take fewer engines.",
    )
    plans: list[dict[str, float]] = [{} for _ in gpus]
    for number, agents in enumerate(engines):
        place = number // on_each
        need = _CUDA_BYTES + weight_bytes(model) + engine_spec(model, agents, spec.agent, number).kv_cache_bytes
        plans[place][f"engine{number}"] = max(share, need / gpus[place])
    plans[0]["trainers"] = spec.size * (_CUDA_BYTES + weight_bytes(model) + _logit_bytes(spec.agent, model)) / gpus[0]
    return plans


def gpus_held(agent: AgentConfig) -> int:
    """By the engines: so many of them lie on one GPU as have a whole share there."""
    share, engines = agent.fleet.gpus_per_engine, len(engine_plan(agent))
    return math.ceil(engines / _engines_on_a_gpu(share)) if share else 0


def check_gpu(number: int, shares: Mapping[str, float]) -> None:
    """Raises ConfigError when processes take more than there is of one GPU, by their shares."""
    total = sum(shares.values())
    require(
        total <= 1 + 1e-9,
        f"the plan takes {total:.0%} of GPU {number}: {', '.join(f'{name} {share:.0%}' for name, share in shares.items())}. "
        "Lower gpus_per_engine, kv_cache_bytes or micro_batch_tokens, or take a smaller population.",
    )


def _engines_on_a_gpu(share: float) -> int:
    return math.floor(1 / share + 1e-9)


def _logit_bytes(agent: AgentConfig, model: str) -> int:
    return _LOGIT_COPIES * 4 * agent.trainer.micro_batch_tokens * vocabulary_size(model)
