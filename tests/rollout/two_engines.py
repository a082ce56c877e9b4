"""In a process of its own: an engine whose base is wrong, one that cannot be built, and a right one whose step loop dies.

Prints what happened, as JSON: python tests/rollout/two_engines.py FOLDER
"""

import asyncio
import json
import os
import sys
from dataclasses import replace

from pbt_agents.rollout.vllm_build import ENGINE_ENVIRONMENT, EngineSpec

os.environ.update(ENGINE_ENVIRONMENT)

import numpy as np

from pbt_agents.errors import ConfigError, GuardError
from pbt_agents.rollout import vllm_cpu_lora
from pbt_agents.rollout.self_test import self_test
from pbt_agents.rollout.vllm_engine import VLLMEngine
from pbt_agents.testing.tiny_model import BYTE_VOCABULARY, random_model
from pbt_agents.types import Sampling


def main(folder: str) -> dict[str, object]:
    spec = EngineSpec(random_model(folder, "llama", BYTE_VOCABULARY), ("a0", "a1", "a2"), lora_rank=8, max_tokens=256)
    seen: dict[str, object] = {}

    install, vllm_cpu_lora.install = vllm_cpu_lora.install, lambda: False
    stock = VLLMEngine(spec)
    try:
        self_test(stock, spec)
    except GuardError as error:
        seen["stock"] = str(error)
    asyncio.run(stock.close())

    vllm_cpu_lora.install = install
    try:
        VLLMEngine(replace(spec, kv_cache_bytes=1 << 16))
    except ConfigError as error:
        seen["no room"] = str(error)

    engine = VLLMEngine(spec)
    seen["patched"] = self_test(engine, spec)
    seen["zeros"] = all(not asyncio.run(engine.read_slot(agent)).any() for agent in spec.agents)
    seen["died"] = asyncio.run(die(engine))
    return seen


async def die(engine: VLLMEngine) -> list[str]:
    """What calls before and after the death of the step loop come to."""

    def broken() -> None:
        raise RuntimeError("out of memory")

    prompt = np.array([5, 6], np.int32)
    calls = [asyncio.ensure_future(engine.generate("a0", prompt, Sampling(200, ()))) for _ in range(2)]
    await engine.check_health()
    engine._vllm.step = broken
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    outcomes += await asyncio.gather(engine.generate("a0", prompt, Sampling(2, ())), engine.check_health(), return_exceptions=True)
    await engine.close()
    return [f"{type(outcome).__name__}: {outcome}" for outcome in outcomes]


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
