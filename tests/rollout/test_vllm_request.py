import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from pbt_agents.rollout.vllm_request import Request, sampling_params
from pbt_agents.types import PolicyId, PolicySpan, Sampling

V3, V4, V5 = (PolicyId("a0", 1, version) for version in (3, 4, 5))


def request(salt: str | None = None) -> Request:
    async def make() -> Request:
        return Request("a0", [5, 6, 7], Sampling(20, (2,)), salt)

    return asyncio.run(make())


def final_output(tokens: int) -> SimpleNamespace:
    """As much of vLLM's RequestOutput as is read."""
    logprobs = SimpleNamespace(logprobs=[-0.25] * tokens)
    sampled = SimpleNamespace(token_ids=list(range(tokens)), logprobs=logprobs, finish_reason="length")
    return SimpleNamespace(outputs=[sampled], num_cached_tokens=2)


def test_a_swap_after_ten_of_twenty_tokens_makes_two_spans():
    """B28: v3 for tokens 0-9, v4 for 10-19."""
    straddling = request()
    straddling.sampled_by(V3, start=0)
    straddling.sampled_by(V4, start=10)

    completion = straddling.completion(final_output(20))

    assert completion.policy_spans == (PolicySpan(0, 10, V3), PolicySpan(10, 20, V4))
    assert completion.token_ids.tolist() == list(range(20))
    assert completion.logprobs.tolist() == [-0.25] * 20
    assert (completion.prompt_tokens, completion.cached_tokens) == (3, 2)


def test_a_policy_that_sampled_nothing_is_not_stamped():
    """B28: swapped before the first token, twice between two tokens, and after the last."""
    straddling = request()
    for policy, start in ((V3, 0), (V4, 0), (V3, 4), (V5, 4), (V3, 6)):
        straddling.sampled_by(policy, start)

    assert straddling.completion(final_output(6)).policy_spans == (PolicySpan(0, 4, V4), PolicySpan(4, 6, V5))


def test_the_cache_key_differs_between_versions():
    """B37."""
    keys = []
    for policy in (V3, V4, PolicyId("a0", 2, 3), PolicyId("a1", 1, 3)):
        asked = request()
        asked.sampled_by(policy, start=0)
        keys.append(asked.cache_salt())
    assert keys == ["a0.1.3", "a0.1.4", "a0.2.3", "a1.1.3"]


def test_a_callers_salt_outlives_versions_but_neither_lineage_nor_agent():
    keys = set()
    for policy in (V3, V4, PolicyId("a0", 2, 3), PolicyId("a1", 1, 3)):
        asked = request(salt="3")
        asked.sampled_by(policy, start=0)
        keys.add(asked.cache_salt())
    assert keys == {"a0.1:0:3", "a0.2:0:3", "a1.1:0:3"}


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_every_field_of_the_distribution_is_sent(temperature):
    """B13."""
    params = sampling_params(Sampling(max_tokens=7, stop_token_ids=(2, 9), temperature=temperature))

    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (temperature, 1.0, 0, 0.0)
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (params.max_tokens, params.min_tokens, params.n) == (7, 0, 1)
    assert params.stop_token_ids == [2, 9]
    assert params.ignore_eos


@pytest.mark.slow
def test_a_request_leaves_the_shared_parameters_as_they_were():
    """They are copied shallowly: what vLLM does to a request's copy must not show in the next one's."""
    shared = sampling_params(Sampling(max_tokens=7, stop_token_ids=(2, 9)))
    copy = shared.clone()
    copy.update_from_generation_config({}, None)
    copy.max_tokens = 1

    assert shared.stop_token_ids == [2, 9]
    assert shared.max_tokens == 7
    assert shared._all_stop_token_ids == {2, 9}


def test_ids_and_logprobs_are_arrays_of_the_promised_types():
    asked = request()
    asked.sampled_by(V3, start=0)
    completion = asked.completion(final_output(3))
    assert completion.token_ids.dtype == np.int32
    assert completion.logprobs.dtype == np.float32
