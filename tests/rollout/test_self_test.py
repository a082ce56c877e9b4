"""The start-up self-test on real engines of another architecture than the default's: Llama, grouped heads, byte-level tokens."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def seen(tmp_path_factory) -> dict[str, Any]:
    script = Path(__file__).with_name("two_engines.py")
    run = subprocess.run([sys.executable, script, tmp_path_factory.mktemp("llama")], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


def test_a_kernel_that_gives_the_base_an_adapter_is_found_out(seen):
    """vLLM's own CPU kernel gives rows without an adapter the last slot's; the adapters themselves are right."""
    figures = {name: float(value) for name, value in re.findall(r"(base|a\d) ([\d.e-]+)", seen["stock"])}
    assert figures["base"] > 0.01
    assert max(figures["a0"], figures["a1"], figures["a2"]) < 1e-3


def test_every_slot_of_a_right_engine_agrees_with_transformers_and_peft(seen):
    assert set(seen["patched"]) == {"base", "a0", "a1", "a2"}
    assert 0 < max(seen["patched"].values()) < 1e-4


def test_the_slots_hold_nothing_afterwards(seen):
    assert seen["zeros"]


def test_a_dead_step_loop_fails_every_call_with_its_reason(seen):
    assert seen["died"] == ["EngineDiedError: the engine's step loop ended: RuntimeError: out of memory"] * 4


def test_settings_that_vllm_refuses_are_a_config_error(seen):
    assert "max_tokens=256" in seen["no room"]
    assert "kv_cache_bytes=65536" in seen["no room"]
