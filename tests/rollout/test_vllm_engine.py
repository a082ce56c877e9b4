"""A real vLLM engine in a process of its own, against transformers and peft in this one."""

import asyncio
import contextlib
import json
import math
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pbt_agents.engine import checksum
from pbt_agents.errors import EngineError
from pbt_agents.rollout.engine_client import EngineClient
from pbt_agents.rollout.vllm_build import PROJECTIONS, UNPUBLISHED, EngineSpec
from pbt_agents.sync.adapter_sync import AdapterPublisher
from pbt_agents.testing.engine_process import engine_process
from pbt_agents.testing.tiny_model import random_model
from pbt_agents.types import AdapterRef, Completion, IntArray, PolicyId, PolicySpan, Sampling

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

AGENTS = ("a0", "a1", "a2")
SCALE = 24 / 8
"""alpha / rank, of PEFT's own making below."""
LONG = np.arange(100, dtype=np.int32) % 29 + 3
"""A prompt of three blocks of the prefix cache."""


@pytest.fixture(scope="module")
def model_path(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    random_model(folder)
    # What no request asks for, and what must therefore have no effect (B13).
    hidden = {"top_k": 1, "temperature": 0.1, "repetition_penalty": 1.5, "eos_token_id": [2, 3, 4], "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(hidden))
    return str(folder)


@pytest.fixture(scope="module")
def address(model_path, tmp_path_factory) -> Iterator[str]:
    address = f"ipc://{tmp_path_factory.mktemp('engine')}/engine.sock"
    with engine_process(EngineSpec(model_path, AGENTS, lora_rank=8, max_tokens=480, max_sequences=4, kv_cache_bytes=10 << 20), address):
        yield address


class Reference:
    """The model in transformers, with adapters in PEFT."""

    def __init__(self, model_path: str):
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        base = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        lora = LoraConfig(r=8, lora_alpha=24, target_modules=list(PROJECTIONS))
        self.model: Any = get_peft_model(base, lora).eval()

    def adapter(self, seed: int, deviation: float = 0.1) -> dict[str, Tensor]:
        """Random, by PEFT's names."""
        draw = torch.Generator().manual_seed(seed)
        trained = {name: parameter for name, parameter in self.model.named_parameters() if "lora_" in name}
        return {name: torch.randn(parameter.shape, generator=draw) * deviation for name, parameter in trained.items()}

    def apply(self, adapter: dict[str, Tensor] | None) -> contextlib.AbstractContextManager[None]:
        if adapter is None:
            return self.model.disable_adapter()
        self.model.load_state_dict(adapter, strict=False)
        return contextlib.nullcontext()

    @torch.no_grad()
    def logits(self, ids: list[int], adapter: dict[str, Tensor] | None, past: Any = None) -> tuple[Tensor, Any]:
        with self.apply(adapter):
            output = self.model(torch.tensor([ids]), past_key_values=past, use_cache=True)
        return output.logits[0], output.past_key_values

    def logprobs(self, prompt: IntArray, completion: Completion, adapter: dict[str, Tensor] | None, temperature: float = 1.0) -> np.ndarray:
        ids = [*prompt.tolist(), *completion.token_ids.tolist()]
        logits, _ = self.logits(ids[:-1], adapter)
        return _gather(logits[len(prompt) - 1 :] / temperature, completion.token_ids)


def _gather(logits: Tensor, token_ids: IntArray) -> np.ndarray:
    return torch.log_softmax(logits, -1).gather(1, torch.from_numpy(token_ids.astype(np.int64))[:, None])[:, 0].numpy()


@pytest.fixture(scope="module")
def reference(model_path) -> Reference:
    return Reference(model_path)


Scenario = Callable[[EngineClient, AdapterPublisher], Coroutine[Any, Any, Any]]


@pytest.fixture
def run(address, tmp_path) -> Callable[[Scenario], Any]:
    """Runs a scenario with a client and a publisher of a0's adapters."""

    async def connected(scenario: Scenario) -> Any:
        client = await EngineClient.connect(address)
        try:
            publisher = AdapterPublisher(await client.layout(), [client], tmp_path, SCALE)
            return await scenario(client, publisher)
        finally:
            await client.close()

    return lambda scenario: asyncio.run(connected(scenario))


_versions = iter(range(1000))


def next_policy(agent: str = "a0") -> PolicyId:
    """Names rise from test to test, as they do in a run."""
    return PolicyId(agent, 0, next(_versions))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_logprobs_are_of_the_distribution_that_was_sampled_from(run, reference, temperature):
    """B12, and B13: the folder's top_k of 1 would make every log-prob 0."""
    completion = run(lambda client, _: client.generate(None, LONG, Sampling(20, (), temperature)))

    expected = reference.logprobs(LONG, completion, None, temperature)
    np.testing.assert_allclose(completion.logprobs, expected, atol=1e-4)
    assert len(set(completion.token_ids.tolist())) > 5


def test_greedy_takes_the_likeliest_token(run, reference):
    completion = run(lambda client, _: client.generate(None, LONG, Sampling(8, (), 0.0)))
    logits, _ = reference.logits([*LONG.tolist(), *completion.token_ids.tolist()][:-1], None)
    assert completion.token_ids.tolist() == logits[len(LONG) - 1 :].argmax(-1).tolist()


def test_only_the_stop_set_of_the_request_ends_it(run):
    """B23, B13: neither the model's end token nor the folder's."""
    free, stopped = run(
        lambda client, _: asyncio.gather(
            client.generate(None, LONG, Sampling(300, ())), client.generate(None, LONG, Sampling(300, tuple(range(16))))
        )
    )
    assert (len(free.token_ids), free.finish_reason) == (300, "length")
    assert {2, 3, 4} & set(free.token_ids.tolist())
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids[-1] < 16 <= min([*stopped.token_ids[:-1], 99])


def test_a_published_adapter_is_applied_at_full_strength(run, reference):
    """B39, B40."""
    adapter, policy = reference.adapter(seed=1), next_policy()

    async def scenario(client, publisher):
        await publisher.publish(adapter, policy)
        return await client.generate("a0", LONG, Sampling(20, ()))

    completion = run(scenario)
    assert completion.policy_spans == (PolicySpan(0, 20, policy),)
    np.testing.assert_allclose(completion.logprobs, reference.logprobs(LONG, completion, adapter), atol=1e-3)
    assert np.abs(completion.logprobs - reference.logprobs(LONG, completion, None)).max() > 0.1


def test_base_and_adapters_share_a_batch_and_nothing_else(run, reference):
    adapters = {"a0": reference.adapter(2), "a1": reference.adapter(3)}

    async def scenario(client, publisher):
        for agent, adapter in adapters.items():
            await publisher.publish(adapter, next_policy(agent))
        return await asyncio.gather(*[client.generate(agent, LONG, Sampling(20, ())) for agent in (None, "a0", "a1", None)])

    for agent, completion in zip((None, "a0", "a1", None), run(scenario), strict=True):
        expected = reference.logprobs(LONG, completion, adapters.get(agent))
        np.testing.assert_allclose(completion.logprobs, expected, atol=1e-3, err_msg=str(agent))


def test_an_agent_without_an_adapter_is_the_base_and_says_so(run, reference):
    completion = run(lambda client, _: client.generate("a2", LONG, Sampling(10, ())))
    assert [span.policy for span in completion.policy_spans] == [PolicyId("a2", UNPUBLISHED, 0)]
    np.testing.assert_allclose(completion.logprobs, reference.logprobs(LONG, completion, None), atol=1e-4)


def test_no_cached_prefix_survives_a_swap(run, reference):
    """B37."""
    old, new = reference.adapter(4), reference.adapter(5)
    greedy = Sampling(20, (), 0.0)

    async def scenario(client, publisher):
        await publisher.publish(old, next_policy())
        await client.generate("a0", LONG, greedy)
        again = await client.generate("a0", LONG, greedy)
        await publisher.publish(new, next_policy())
        return again, await client.generate("a0", LONG, greedy)

    again, swapped = run(scenario)
    assert (again.cached_tokens, swapped.cached_tokens) == (96, 0)
    np.testing.assert_allclose(swapped.logprobs, reference.logprobs(LONG, swapped, new), atol=1e-3)


def test_an_episodes_salt_keeps_its_cache_across_a_swap(run, reference):
    async def scenario(client, publisher):
        await publisher.publish(reference.adapter(6), next_policy())
        await client.generate("a0", LONG, Sampling(4, ()), salt="episode")
        await publisher.publish(reference.adapter(7), next_policy())
        same = await client.generate("a0", LONG, Sampling(4, ()), salt="episode")
        return same, await client.generate("a0", LONG, Sampling(4, ()), salt="another")

    same, another = run(scenario)
    assert (same.cached_tokens, another.cached_tokens) == (96, 0)


async def steps_taken(client: EngineClient, count: int) -> None:
    """Returns when the engine has taken so many more steps. Each answer comes between two steps."""
    goal = (await client.check_health())["steps"] + count
    while (await client.check_health())["steps"] < goal:
        pass


def test_tokens_on_both_sides_of_a_swap_are_stamped_with_what_sampled_them(run, reference):
    """B28: the boundary is the very token from which on the new weights explain the log-probs."""
    old, new = reference.adapter(8), reference.adapter(9)
    before, after = next_policy(), next_policy()

    async def scenario(client, publisher):
        await publisher.publish(old, before)
        straddling = asyncio.ensure_future(client.generate("a0", LONG, Sampling(300, ())))
        await steps_taken(client, 5)
        await publisher.publish(new, after)
        return await straddling

    completion = run(scenario)
    first, second = completion.policy_spans
    assert (first.policy, second.policy) == (before, after)
    assert 0 == first.start < first.stop == second.start < second.stop == 300
    ids = [*LONG.tolist(), *completion.token_ids.tolist()]
    # The last token of the old policy is read by the new one: its keys and values are the first that the new weights make.
    boundary = len(LONG) + first.stop - 1
    old_logits, cache = reference.logits(ids[:boundary], old)
    new_logits, _ = reference.logits(ids[boundary:-1], new, cache)
    expected = _gather(torch.cat([old_logits[len(LONG) - 1 :], new_logits]), completion.token_ids)
    np.testing.assert_allclose(completion.logprobs, expected, atol=1e-3)


def test_who_waits_during_a_swap_is_answered_and_read_by_the_new_policy(run, reference):
    """B28, B37: four sequences run, eight wait; those have no token yet, and their prompt lies in the old policy's cache."""
    old, new = reference.adapter(10), reference.adapter(11)
    before, after = next_policy(), next_policy()

    async def scenario(client, publisher):
        await publisher.publish(old, before)
        await client.generate("a0", LONG, Sampling(1, ()))
        calls = [asyncio.ensure_future(client.generate("a0", LONG, Sampling(60, ()))) for _ in range(12)]
        await steps_taken(client, 3)
        await publisher.publish(new, after)
        return await asyncio.gather(*calls)

    completions = run(scenario)
    waited = [completion for completion in completions if completion.policy_spans[0].policy == after]
    assert len(waited) == 8
    for completion in waited:
        assert completion.policy_spans == (PolicySpan(0, 60, after),)
        np.testing.assert_allclose(completion.logprobs, reference.logprobs(LONG, completion, new), atol=1e-3)


def written(folder: Path, policy: PolicyId, values: np.ndarray) -> AdapterRef:
    path = folder / f"{policy}-{len(list(folder.iterdir()))}"
    values.tofile(path)
    return AdapterRef(policy, str(path), checksum(values))


def test_what_is_not_a_successor_is_refused_and_the_old_adapter_stays(run, tmp_path):
    """A name stands for one set of weights for ever, or prefix cache and buffer would mix two."""
    rng = np.random.default_rng(0)

    async def scenario(client, publisher):
        count = sum(math.prod(tensor.shape) for tensor in await client.layout())
        held, other = (rng.normal(0, 0.1, count).astype(np.float32) for _ in range(2))
        current = PolicyId("a1", 5, 7)
        await client.load_adapter(written(tmp_path, current, held))
        before = await client.generate("a1", LONG, Sampling(8, (), 0.0))
        refused = [
            written(tmp_path, PolicyId("a1", 5, 6), other),  # an older version
            written(tmp_path, PolicyId("a1", 4, 9), other),  # an older lineage
            written(tmp_path, current, other),  # the same name for other weights
            AdapterRef(PolicyId("a1", 5, 8), written(tmp_path, current, other).path, checksum(held)),  # not what was announced
            written(tmp_path, PolicyId("stranger", 0, 0), other),
        ]
        outcomes = await asyncio.gather(*[client.load_adapter(adapter) for adapter in refused], return_exceptions=True)
        assert await client.load_adapter(written(tmp_path, current, held)) == current, "the same again is harmless"
        return outcomes, before, await client.generate("a1", LONG, Sampling(8, (), 0.0))

    outcomes, before, after = run(scenario)
    assert [type(outcome) for outcome in outcomes] == [EngineError] * 5
    assert before.policy_spans == after.policy_spans
    np.testing.assert_array_equal(before.token_ids, after.token_ids)
    np.testing.assert_allclose(before.logprobs, after.logprobs, atol=1e-5)


def test_a_diverged_agent_is_refused_and_spoils_nobody_else(run, reference):
    """B15: its adapter is finite, but not what the forward pass makes of it; keys and values lie in blocks that others get next."""
    adapter = reference.adapter(12)

    async def scenario(client, publisher):
        await publisher.publish({name: tensor * 1e10 for name, tensor in adapter.items()}, next_policy())
        calls = [client.generate(agent, LONG, Sampling(30, ())) for agent in ("a0", None) * 6]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        # Enough for every block of the cache to change hands.
        later = await asyncio.gather(*[client.generate(None, LONG[: 50 + n], Sampling(100, ()), salt=str(n)) for n in range(40)])
        await publisher.publish(adapter, next_policy())
        return outcomes[::2], outcomes[1::2] + later, await client.generate("a0", LONG, Sampling(10, ()), salt="episode")

    diverged, others, mended = run(scenario)
    assert {type(outcome) for outcome in diverged} == {EngineError}
    assert "diverged" in str(diverged[0])
    for completion in others:
        assert np.isfinite(completion.logprobs).all()
    np.testing.assert_allclose(mended.logprobs, reference.logprobs(LONG, mended, adapter), atol=1e-3)


def test_fifty_swaps_leave_memory_as_it_was(run, reference):
    """B41."""

    async def scenario(client, publisher):
        sizes = []
        for swap in range(55):
            await publisher.publish(reference.adapter(swap % 3), next_policy())
            await client.generate("a0", LONG, Sampling(2, ()))
            if swap in (4, 54):
                sizes.append((await client.check_health())["rss_bytes"])
        return sizes

    early, late = run(scenario)
    assert late < 1.1 * early


def test_a_cancelled_call_makes_room(run):
    async def scenario(client, publisher):
        call = asyncio.ensure_future(client.generate("a0", LONG, Sampling(370, ())))
        await steps_taken(client, 2)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        return await client.check_health()

    assert run(scenario)["in_flight"] == 0


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        (np.zeros(0, np.int32), Sampling(4, ())),
        (np.zeros(480, np.int32), Sampling(4, ())),
        (np.array([5, 32], np.int32), Sampling(4, ())),
        (np.array([-1], np.int32), Sampling(4, ())),
        (LONG, Sampling(0, ())),
        (LONG, Sampling(4, (), -1.0)),
        (LONG, Sampling(4, (99,))),
        (LONG, Sampling(4, (), math.nan)),
    ],
    ids=["empty", "too long", "beyond the vocabulary", "negative", "nothing to sample", "negative temperature", "unknown stop", "nan"],
)
def test_impossible_requests_are_refused_and_the_engine_goes_on(run, prompt, sampling):
    async def scenario(client, publisher):
        (refused,) = await asyncio.gather(client.generate("a0", prompt, sampling), return_exceptions=True)
        return refused, await client.generate("a0", LONG, Sampling(2, ()))

    refused, answered = run(scenario)
    assert type(refused) is EngineError
    assert len(answered.token_ids) == 2


def test_a_prompt_near_the_limit_is_answered_as_far_as_there_is_room(run):
    completion = run(lambda client, _: client.generate(None, np.zeros(475, np.int32), Sampling(12, ())))
    assert (len(completion.token_ids), completion.finish_reason) == (5, "length")


def test_what_is_generated_is_counted(run):
    async def scenario(client, publisher):
        before = await client.check_health()
        await asyncio.gather(*[client.generate(None, LONG, Sampling(5, ())) for _ in range(3)])
        after = await client.check_health()
        return {name: after[name] - before[name] for name in after}

    counted = run(scenario)
    assert (counted["requests"], counted["tokens_generated"], counted["prompt_tokens"]) == (3, 15, 300)
    assert counted["steps"] >= 5
    assert 0 < counted["step_cpu_s"] <= counted["process_cpu_s"]
