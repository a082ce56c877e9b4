"""Whether an engine samples from the policies that it says it does, asked before it is used.

The base model and every slot, each slot with another random adapter, sample in one batch; transformers and peft then give the
log-probs of what was sampled. A wrong index, module, scale, slot or temperature shows as a difference. (A fresh adapter would
not do: its B is zero, so it equals the base whatever is wrong.)
"""

import asyncio
import contextlib
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pbt_agents.engine import AdapterLayout, LocalEngine, RolloutEngine, checksum
from pbt_agents.errors import GuardError
from pbt_agents.rollout.vllm_build import UNPUBLISHED, EngineSpec
from pbt_agents.types import AdapterRef, Completion, FloatArray, IntArray, PolicyId, Sampling

SAMPLING = Sampling(max_tokens=12, stop_token_ids=(), temperature=0.7)
ALPHA_PER_RANK = 3
"""Any factor but 1."""


def self_test(engine: LocalEngine, spec: EngineSpec) -> dict[str, float]:
    """Largest difference of a log-prob to transformers and peft, nat, for `base` and each agent. Raises GuardError above the tolerance.

    For an engine that nobody uses yet. Its slots hold zeros afterwards.
    """
    rng = np.random.default_rng(0)
    probes = {agent: _probe(engine.layout(), rng) for agent in spec.agents}
    length = min(40, spec.max_tokens - SAMPLING.max_tokens)
    sampling = replace(SAMPLING, max_tokens=min(SAMPLING.max_tokens, spec.max_tokens - 1))
    reference = _Reference(spec, engine.layout())
    prompts = {agent: rng.integers(reference.vocabulary, size=max(length, 1), dtype=np.int32) for agent in (None, *spec.agents)}
    sampled = asyncio.run(_sample(engine, probes, prompts, sampling))
    differences = {}
    for agent, completion in sampled.items():
        expected = reference.logprobs(prompts[agent], completion.token_ids, sampling.temperature, probes.get(agent or ""))
        differences[agent or "base"] = float(np.abs(expected - completion.logprobs).max())
    tolerance = 1e-3 if spec.dtype == "float32" else 0.3
    # Not `any above`: a difference that is not a number must fail too.
    if not all(difference <= tolerance for difference in differences.values()):
        figures = ", ".join(f"{name} {difference:.2g}" for name, difference in differences.items())
        raise GuardError(
            f"engine of {spec.model_path} does not sample from the policies it was given: log-probs differ from transformers and peft "
            f"by up to {figures} nat (tolerance {tolerance}). Is this vLLM version supported, and are base and dtype the same?"
        )
    return differences


async def _sample(
    engine: RolloutEngine, probes: dict[str, FloatArray], prompts: dict[str | None, IntArray], sampling: Sampling
) -> dict[str | None, Completion]:
    """One completion of the base and of each slot, in the same batch."""
    await _load(engine, probes, version=1)
    completions = await asyncio.gather(*[engine.generate(agent, ids, sampling) for agent, ids in prompts.items()])
    await _load(engine, {agent: np.zeros_like(probe) for agent, probe in probes.items()}, version=2)
    return dict(zip(prompts, completions, strict=True))


async def _load(engine: RolloutEngine, adapters: dict[str, FloatArray], version: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for number, (agent, values) in enumerate(adapters.items()):
            path = Path(folder) / str(number)
            values.tofile(path)
            await engine.load_adapter(AdapterRef(PolicyId(agent, UNPUBLISHED, version), str(path), checksum(values)))


def _probe(layout: AdapterLayout, rng: np.random.Generator) -> FloatArray:
    """Random values for a slot, with an effect of a fifth of a layer's normalised input."""
    parts = []
    for tensor in layout:
        deviation = (1.0 if tensor.matrix == "a" else 0.2) / np.sqrt(tensor.shape[1])
        parts.append(rng.standard_normal(tensor.shape[0] * tensor.shape[1], np.float32) * np.float32(deviation))
    return np.concatenate(parts)


class _Reference:
    """The same model in transformers and peft, float32 on the CPU."""

    def __init__(self, spec: EngineSpec, layout: AdapterLayout):
        import torch
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(spec.model_path, dtype=torch.float32, local_files_only=True)
        lora = LoraConfig(r=spec.lora_rank, lora_alpha=ALPHA_PER_RANK * spec.lora_rank, target_modules=list(spec.target_modules))
        with torch.random.fork_rng(devices=[]):
            self._model: Any = get_peft_model(base, lora).eval()
        self._layout = layout
        self.vocabulary: int = base.config.vocab_size

    def logprobs(self, prompt_ids: IntArray, token_ids: IntArray, temperature: float, adapter: FloatArray | None) -> FloatArray:
        """[A], of the sampled tokens."""
        import torch

        if adapter is not None:
            self._set(adapter)
        ids = torch.from_numpy(np.concatenate([prompt_ids, token_ids]).astype(np.int64))
        with torch.no_grad(), contextlib.nullcontext() if adapter is not None else self._model.disable_adapter():
            logits = self._model(ids[None]).logits[0, len(prompt_ids) - 1 : -1].float()
        return torch.log_softmax(logits / temperature, -1).gather(1, ids[len(prompt_ids) :, None])[:, 0].numpy()

    def _set(self, adapter: FloatArray) -> None:
        import torch

        start = 0
        for tensor in self._layout:
            stop = start + tensor.shape[0] * tensor.shape[1]
            values = torch.from_numpy(adapter[start:stop]).view(tensor.shape)
            layer = self._model.base_model.model.get_submodule(tensor.projection)
            weight = (layer.lora_A if tensor.matrix == "a" else layer.lora_B)["default"].weight
            weight.data.copy_(values if tensor.matrix == "a" else values / layer.scaling["default"])
            start = stop
