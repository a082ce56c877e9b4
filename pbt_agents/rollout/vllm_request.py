"""One request on its way through vLLM: what is asked, which policies sampled it, and the completion it becomes."""

import functools
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pbt_agents.rollout.answer import Answer
from pbt_agents.types import Completion, PolicyId, PolicySpan, Sampling


@dataclass(eq=False)
class Request:
    """Lives from the call until the completion; its spans grow when a slot is written meanwhile."""

    agent: str | None
    prompt_ids: list[int]
    sampling: Sampling
    salt: str | None
    answer: Answer[Completion] = field(default_factory=Answer)
    id: str = ""
    internal_id: str = ""
    """vLLM's own, of its latest submission."""
    span_starts: list[tuple[int, PolicyId]] = field(default_factory=list)
    """(position of a span's first token, policy)."""
    cache_epoch: int = 0
    """Rises when the engine's cache had to be cleaned: what a caller's salt found in it before is not to be used again."""

    def sampled_by(self, policy: PolicyId, start: int) -> None:
        """Tokens from `start` on come from `policy`."""
        if self.span_starts and self.span_starts[-1][0] == start:  # nothing was sampled by the one before
            self.span_starts.pop()
        self.span_starts.append((start, policy))

    def cache_salt(self) -> str:
        """Keys the prefix cache: the whole policy, or the caller's salt within the agent's lineage."""
        policy = self.span_starts[-1][1]
        return str(policy) if self.salt is None else f"{policy.agent}.{policy.lineage}:{self.cache_epoch}:{self.salt}"

    def completion(self, output: Any) -> Completion:
        """From vLLM's final RequestOutput."""
        sampled = output.outputs[0]
        stops = [start for start, _ in self.span_starts[1:]] + [len(sampled.token_ids)]
        return Completion(
            token_ids=np.array(sampled.token_ids, np.int32),
            logprobs=np.array(sampled.logprobs.logprobs, np.float32),
            finish_reason=sampled.finish_reason,
            policy_spans=tuple(
                PolicySpan(start, stop, policy) for (start, policy), stop in zip(self.span_starts, stops, strict=True) if start < stop
            ),
            prompt_tokens=len(self.prompt_ids),
            cached_tokens=output.num_cached_tokens or 0,
        )


@functools.lru_cache(maxsize=64)
def sampling_params(sampling: Sampling) -> Any:
    """vLLM's parameters, every field that shapes the distribution written out, so that no default or model folder decides one."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=1,
        temperature=sampling.temperature,
        top_p=1.0,
        top_k=0,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        seed=None,
        stop=[],
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,  # the stop ids above are all there are
        max_tokens=sampling.max_tokens,
        min_tokens=0,
        logprobs=0,
        flat_logprobs=True,
        prompt_logprobs=None,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        # vLLM then copies these shallowly. Safe: what it would write into their lists are the end tokens of a tokenizer or of a
        # generation config, and the engine is given neither.
        skip_clone=True,
    )
