"""What travels between an engine's server and its clients: msgpack, one frame each.

Every message begins with its kind and the client's number of the call. Token ids and log-probs are little-endian bytes of int32
and float32.
"""

from typing import Literal

import msgspec
import numpy as np

from pbt_agents.engine import AdapterLayout
from pbt_agents.types import AdapterRef, Completion, FloatArray, IntArray, PolicyId, PolicySpan, Sampling


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    call: int


class Generate(Message, frozen=True):
    agent: str | None
    prompt_ids: bytes
    sampling: Sampling
    salt: str | None


class Load(Message, frozen=True):
    adapter: AdapterRef


class AskHealth(Message, frozen=True):
    pass


class AskLayout(Message, frozen=True):
    pass


class Cancel(Message, frozen=True):
    """Forget call `call`; has no reply."""


class Completed(Message, frozen=True):
    token_ids: bytes
    logprobs: bytes
    finish_reason: Literal["stop", "length"]
    policy_spans: tuple[PolicySpan, ...]
    prompt_tokens: int
    cached_tokens: int


class Loaded(Message, frozen=True):
    policy: PolicyId


class Health(Message, frozen=True):
    counters: dict[str, float]


class Layout(Message, frozen=True):
    tensors: AdapterLayout


class Failed(Message, frozen=True):
    died: bool
    """The engine is gone, rather than this call refused."""
    reason: str


Call = Generate | Load | AskHealth | AskLayout | Cancel
Reply = Completed | Loaded | Health | Layout | Failed

encode = msgspec.msgpack.Encoder().encode
decode_call = msgspec.msgpack.Decoder(Call).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode


def pack_ids(ids: IntArray) -> bytes:
    return np.ascontiguousarray(ids, "<i4").tobytes()


def unpack_ids(packed: bytes) -> IntArray:
    return np.frombuffer(packed, "<i4")


def completed(call: int, completion: Completion) -> Completed:
    return Completed(
        call,
        pack_ids(completion.token_ids),
        np.ascontiguousarray(completion.logprobs, "<f4").tobytes(),
        completion.finish_reason,
        completion.policy_spans,
        completion.prompt_tokens,
        completion.cached_tokens,
    )


def completion(reply: Completed) -> Completion:
    logprobs: FloatArray = np.frombuffer(reply.logprobs, "<f4")
    return Completion(
        unpack_ids(reply.token_ids), logprobs, reply.finish_reason, reply.policy_spans, reply.prompt_tokens, reply.cached_tokens
    )
