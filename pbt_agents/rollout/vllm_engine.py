"""A rollout engine in this process: vLLM's own engine, driven by one thread, with a slot for every agent's adapter.

Owns the step thread, which policy each slot holds, and the stamp on every sampled token. Calling it over a socket is left to
engine_server.py, writing the slots to vllm_extension.py, and what an adapter is made of to sync/.

    os.environ.update(ENGINE_ENVIRONMENT)                   # before anything imports torch or vllm
    engine = VLLMEngine(EngineSpec(model_path, agents=("a0", "a1"), lora_rank=8, max_tokens=480))
    engine.layout()                                         # order of the values in a published adapter
    await engine.load_adapter(AdapterRef(...))              # from any event loop, while others generate
    completion = await engine.generate("a0", prompt_ids, Sampling(max_tokens=12, stop_token_ids=(2,)))
    await engine.close()

An agent whose adapter was never loaded answers as the base model, stamped with lineage UNPUBLISHED.
"""

import asyncio
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from pbt_agents.engine import AdapterLayout, LocalEngine
from pbt_agents.errors import EngineDiedError, EngineError
from pbt_agents.rollout.adapter_file import read_adapter
from pbt_agents.rollout.answer import Answer, deliver
from pbt_agents.rollout.engine_counters import EngineCounters
from pbt_agents.rollout.step_loop import StepLoop
from pbt_agents.rollout.vllm_build import ENGINE_ENVIRONMENT, UNPUBLISHED, EngineSpec, build_engine, lora_request
from pbt_agents.rollout.vllm_request import Request, sampling_params
from pbt_agents.types import AdapterRef, Completion, FloatArray, IntArray, PolicyId, Sampling

__all__ = ["BASE", "ENGINE_ENVIRONMENT", "UNPUBLISHED", "EngineSpec", "VLLMEngine"]

BASE = PolicyId("", 0, 0)
"""Stamped on what the base model samples."""

Value = TypeVar("Value")


class VLLMEngine:
    """Implements LocalEngine. Methods with an underscore that touch vLLM run in the step thread only."""

    def __init__(self, spec: EngineSpec):
        self.spec = spec
        self.counters = EngineCounters()
        self._vllm = build_engine(spec)
        self._vocabulary = self._vllm.model_config.get_vocab_size()
        self._slots = {agent: lora_request(agent, slot) for slot, agent in enumerate(spec.agents, start=1)}
        self._layout: AdapterLayout
        (self._layout,) = self._vllm.collective_rpc("register_slots", args=(list(self._slots.values()), spec.lora_rank))
        self._policies = {agent: PolicyId(agent, UNPUBLISHED, 0) for agent in spec.agents}
        self._checksums = dict.fromkeys(spec.agents, "")
        self._diverged: set[PolicyId] = set()
        """Policies that sampled from what is not a distribution. Their agents are answered again after the next adapter."""
        self._live: dict[str, Request] = {}
        self._submitted = 0
        self._loop = StepLoop(self._step, lambda: bool(self._live), self._die)
        self._loop.start()

    def layout(self) -> AdapterLayout:
        return self._layout

    async def generate(self, agent: str | None, prompt_ids: IntArray, sampling: Sampling, salt: str | None = None) -> Completion:
        if agent is not None:
            self._require_slot(agent)
        if not 0 < len(prompt_ids) < self.spec.max_tokens:
            raise EngineError(f"a prompt must have 1 to {self.spec.max_tokens - 1} tokens, got {len(prompt_ids)}.")
        if prompt_ids.min() < 0 or prompt_ids.max() >= self._vocabulary:
            raise EngineError(f"prompt ids must lie in [0, {self._vocabulary}), got {prompt_ids.min()} to {prompt_ids.max()}.")
        request = Request(agent, prompt_ids.tolist(), sampling, salt)
        self._loop.call(lambda: self._start(request), lambda error: request.answer.fail(_died(error)))
        try:
            return await request.answer
        except asyncio.CancelledError:
            self._loop.call(lambda: self._abort(request), request.answer.fail)
            raise

    async def load_adapter(self, adapter: AdapterRef) -> PolicyId:
        self._require_slot(adapter.policy.agent)
        values = await asyncio.to_thread(read_adapter, adapter, self._layout)
        return await self._between_steps(lambda: self._write(adapter, values))

    async def read_slot(self, agent: str) -> FloatArray:
        """What the forward pass applies for this agent, in slot order."""
        self._require_slot(agent)
        slot = self._slots[agent].lora_int_id
        return await self._between_steps(lambda: self._vllm.collective_rpc("read_slot", args=(slot,))[0].numpy())

    async def check_health(self) -> dict[str, float]:
        in_flight = await self._between_steps(lambda: len(self._live))
        return self.counters.read() | {"in_flight": float(in_flight)}

    async def close(self) -> None:
        await asyncio.to_thread(self._loop.close)
        self._vllm.engine_core.shutdown()

    def _require_slot(self, agent: str) -> None:
        if agent not in self._slots:
            raise EngineError(f"no slot for agent '{agent}'. This engine serves {', '.join(self._slots)}.")

    async def _between_steps(self, closure: Callable[[], Value]) -> Value:
        """What `closure` returns in the step thread. Its EngineError is the caller's; any other error ends the engine."""
        answer: Answer[Value] = Answer()

        def run() -> None:
            try:
                answer.resolve(closure())
            except EngineError as error:
                answer.fail(error)

        self._loop.call(run, lambda error: answer.fail(_died(error)))
        return await answer

    def _start(self, request: Request) -> None:
        """Hand a new request to vLLM, to be answered by the policy that the slot holds now."""
        policy = BASE if request.agent is None else self._policies[request.agent]
        if policy in self._diverged:
            request.answer.fail(_not_finite(policy))
            return
        self._submitted += 1
        request.id = str(self._submitted)
        request.cache_epoch = self.counters.divergences
        request.sampled_by(policy, start=0)
        try:
            self._submit(request)
        except Exception as error:  # vLLM's checks raise many kinds; a broken engine shows in its next step
            self._vllm.abort_request([request.id])
            request.answer.fail(EngineError(f"request refused: {error}"))
        else:
            self._live[request.id] = request

    def _submit(self, request: Request) -> None:
        from vllm.inputs.engine import tokens_input

        slot = None if request.agent is None else self._slots[request.agent]
        prompt = tokens_input(request.prompt_ids, cache_salt=request.cache_salt())
        request.internal_id = self._vllm.add_request(request.id, prompt, sampling_params(request.sampling), lora_request=slot)

    def _abort(self, request: Request) -> None:
        if self._live.pop(request.id, None) is not None:
            self._vllm.abort_request([request.id])

    def _write(self, adapter: AdapterRef, values: FloatArray) -> PolicyId:
        """Put the adapter into its slot, and from then on its name on what the slot's agent samples."""
        import torch

        agent = adapter.policy.agent
        _require_successor(adapter, self._policies[agent], self._checksums[agent])
        started = time.perf_counter()
        (written,) = self._vllm.collective_rpc("write_slot", args=(self._slots[agent].lora_int_id, torch.from_numpy(values)))
        if not written:
            raise EngineError(f"slot of '{agent}' does not read back as {adapter.policy}; {self._policies[agent]} stays.")
        self._policies[agent] = adapter.policy
        self._checksums[agent] = adapter.checksum
        for request in [request for request in self._live.values() if request.agent == agent]:
            self._hand_over(request, adapter.policy)
        self.counters.swaps += 1
        self.counters.swap_s += time.perf_counter() - started
        return adapter.policy

    def _hand_over(self, request: Request, policy: PolicyId) -> None:
        """Stamp the new policy on the tokens still to come. Who has sampled none yet starts again, its prompt unread by the old one."""
        sampled = self._state(request).detokenizer.num_output_tokens()
        salt = request.cache_salt()
        request.sampled_by(policy, start=sampled)
        if sampled == 0 and request.cache_salt() != salt:
            self._vllm.abort_request([request.id])
            self._submit(request)

    def _step(self) -> None:
        started, cpu = time.perf_counter(), time.thread_time()
        outputs = self._vllm.step()
        finished = [(self._live.pop(output.request_id), output) for output in outputs if output.finished]
        completions = [(request, request.completion(output)) for request, output in finished]
        sick = [request for request, completion in completions if not np.isfinite(completion.logprobs).all()]
        sick += [request for request in self._live.values() if not math.isfinite(self._logprob(request))]
        if sick:
            self._quarantine(sick)
        deliver([(request.answer, completion) for request, completion in completions if request not in sick])
        self.counters.count_step(time.perf_counter() - started, time.thread_time() - cpu)
        for _, completion in completions:
            self.counters.count_completion(completion)

    def _state(self, request: Request) -> Any:
        """What vLLM knows of an unfinished request."""
        return self._vllm.output_processor.request_states[request.internal_id]

    def _logprob(self, request: Request) -> float:
        """Of all its tokens so far."""
        logprob: float = self._state(request).logprobs_processor.cumulative_logprob
        return logprob

    def _quarantine(self, sick: list[Request]) -> None:
        """Fail all that the agents of these requests asked, and clean the cache: a block that holds a NaN spoils whoever gets it next."""
        agents = {request.agent for request in sick}
        for request in sick + [request for request in self._live.values() if request.agent in agents]:
            self._abort(request)
            request.answer.fail(_not_finite(request.span_starts[-1][1]))
        self._diverged |= {self._policies[agent] for agent in agents if agent is not None}
        self._vllm.collective_rpc("clean_cache")
        self.counters.divergences += 1

    def _die(self, error: BaseException) -> None:
        deliver([(request.answer, _died(error)) for request in self._live.values()])
        self._live.clear()


def _require_successor(adapter: AdapterRef, held: PolicyId, held_checksum: str) -> None:
    """A policy's name stands for one set of weights for ever: prefix cache, buffer and confirmations are keyed by it."""
    new, old = (adapter.policy.lineage, adapter.policy.version), (held.lineage, held.version)
    if new < old or (new == old and held_checksum not in ("", adapter.checksum)):
        raise EngineError(f"{adapter.policy} comes after {held}. A restore or a clone must raise the lineage, an update the version.")


def _not_finite(policy: PolicyId) -> EngineError:
    return EngineError(f"{policy} samples from a distribution that is not finite: its adapter has diverged. It is not asked again.")


def _died(error: BaseException) -> EngineDiedError:
    died = EngineDiedError(f"the engine's step loop ended: {type(error).__name__}: {error}")
    died.__cause__ = error
    return died


if TYPE_CHECKING:
    _engine: LocalEngine = VLLMEngine(EngineSpec("", (), 8, 1))
