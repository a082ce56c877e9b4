"""Server and client of an engine, with a fake engine between them."""

import asyncio
import os
import signal
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
import zmq

from pbt_agents.engine import checksum
from pbt_agents.errors import EngineDiedError, EngineError
from pbt_agents.rollout.engine_client import EngineClient
from pbt_agents.rollout.engine_server import EngineServer
from pbt_agents.testing.engine_process import held_fake_process
from pbt_agents.testing.fake_engine import TWO_LAYERS, FakeEngine
from pbt_agents.types import AdapterRef, PolicyId, PolicySpan, Sampling

PROMPT = np.array([4, 5], np.int32)
SAMPLING = Sampling(max_tokens=3, stop_token_ids=(9,))


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(("a0", "a1"))


@pytest.fixture
def server(engine, tmp_path) -> Iterator[EngineServer]:
    server = EngineServer(engine, f"ipc://{tmp_path}/engine.sock")
    yield server
    server.close()


async def arrived(semaphore, count: int = 1) -> None:
    for _ in range(count):
        assert await asyncio.to_thread(semaphore.acquire, timeout=10)


def test_a_completion_arrives_as_the_engine_sampled_it(engine, server):
    async def ask():
        client = await EngineClient.connect(server.address)
        completion = await client.generate("a1", PROMPT, SAMPLING, salt="episode 3")
        await client.close()
        return completion

    completion = asyncio.run(ask())

    assert engine.asked == [("a1", [4, 5], SAMPLING, "episode 3")]
    assert completion.token_ids.dtype == np.int32
    assert completion.logprobs.dtype == np.float32
    assert completion.token_ids.tolist() == [6, 7, 8]
    np.testing.assert_array_equal(completion.logprobs, np.full(3, -0.1, np.float32))
    assert completion.finish_reason == "length"
    assert completion.policy_spans == (PolicySpan(0, 3, PolicyId("a1", -1, 0)),)
    assert completion.prompt_tokens == 2


def test_the_whole_stop_set_and_the_engines_reason_travel(server):
    """B23."""

    async def ask():
        client = await EngineClient.connect(server.address)
        return await client.generate(None, PROMPT, Sampling(max_tokens=9, stop_token_ids=(2, 8), temperature=0.5))

    completion = asyncio.run(ask())
    assert completion.token_ids.tolist() == [6, 7, 8]
    assert completion.finish_reason == "stop"


def test_layout_health_and_adapters_go_over_the_socket(engine, server, tmp_path):
    values = np.arange(48, dtype=np.float32)
    values.tofile(tmp_path / "adapter")
    policy = PolicyId("a0", 2, 5)

    async def ask():
        client = await EngineClient.connect(server.address)
        layout = await client.layout()
        confirmed = await client.load_adapter(AdapterRef(policy, str(tmp_path / "adapter"), checksum(values)))
        return layout, confirmed, await client.check_health()

    layout, confirmed, health = asyncio.run(ask())
    assert layout == TWO_LAYERS
    assert confirmed == policy
    np.testing.assert_array_equal(engine.slots["a0"], values)
    assert health["requests"] == 0.0
    assert health["malformed"] == 0.0


def test_answers_find_their_calls_whatever_their_order(engine, server):
    async def ask():
        client = await EngineClient.connect(server.address)
        engine.hold()
        first = asyncio.ensure_future(client.generate("a0", PROMPT, SAMPLING))
        await arrived(engine.arrivals)
        held, engine._held = engine._held, None
        second = await client.generate("a0", PROMPT + 10, SAMPLING)
        engine._held = held
        engine.release()
        return await first, second

    first, second = asyncio.run(ask())
    assert first.token_ids.tolist() == [6, 7, 8]
    assert second.token_ids.tolist() == [16, 17, 18]


def test_two_hundred_calls_of_two_event_loops_all_get_their_own_answer(server):
    async def ask(offset: int) -> list[int]:
        client = await EngineClient.connect(server.address)
        prompts = [np.array([offset + number], np.int32) for number in range(100)]
        completions = await asyncio.gather(*[client.generate("a0", prompt, Sampling(1, ())) for prompt in prompts])
        await client.close()
        return [int(completion.token_ids[0]) for completion in completions]

    async def both() -> list[list[int]]:
        return await asyncio.gather(*[asyncio.to_thread(lambda offset=offset: asyncio.run(ask(offset))) for offset in (0, 1000)])

    assert asyncio.run(both()) == [list(range(1, 101)), list(range(1001, 1101))]


def test_a_refused_call_is_an_engine_error_and_hurts_no_other(server):
    async def ask():
        client = await EngineClient.connect(server.address)
        refused, answered = await asyncio.gather(
            client.generate("nobody", PROMPT, SAMPLING), client.generate("a0", PROMPT, SAMPLING), return_exceptions=True
        )
        return refused, answered

    refused, answered = asyncio.run(ask())
    assert type(refused) is EngineError
    assert "nobody" in str(refused)
    assert answered.token_ids.tolist() == [6, 7, 8]


def test_when_the_engine_dies_every_waiting_call_hears_of_it(engine, server):
    async def ask():
        client = await EngineClient.connect(server.address)
        engine.hold()
        calls = [asyncio.ensure_future(client.generate("a0", PROMPT, SAMPLING)) for _ in range(3)]
        await arrived(engine.arrivals, 3)
        engine.die()
        return await asyncio.gather(*calls, client.check_health(), return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(ask())] == [EngineDiedError] * 4


def test_a_cancelled_call_is_cancelled_in_the_engine(engine, server):
    async def ask() -> None:
        client = await EngineClient.connect(server.address)
        engine.hold()
        call = asyncio.ensure_future(client.generate("a0", PROMPT, SAMPLING))
        await arrived(engine.arrivals)
        call.cancel()
        await arrived(engine.cancellations)

    asyncio.run(ask())


@pytest.mark.parametrize(
    "frames",
    [
        [b"\xff\xff"],
        [b""],
        [msgspec.msgpack.encode(["Generate", 1, "a0"])],
        [msgspec.msgpack.encode(["Unheard", 1])],
        [msgspec.msgpack.encode(["AskHealth", "one"])],
        [msgspec.msgpack.encode(["AskHealth", 1]), b"another frame"],
    ],
)
def test_messages_that_nobody_can_read_are_counted_and_nothing_else(server, frames):
    stranger = zmq.Context.instance().socket(zmq.DEALER)
    stranger.connect(server.address)
    stranger.send_multipart(frames)
    stranger.send(msgspec.msgpack.encode(["AskHealth", 7]))
    assert stranger.poll(10_000), "the server no longer answers"
    kind, call, counters = msgspec.msgpack.decode(stranger.recv())
    stranger.close(linger=0)

    assert (kind, call, counters["malformed"]) == ("Health", 7, 1.0)


@pytest.mark.parametrize("prompt", [b"\x01\x00\x00", b""])
def test_a_readable_call_with_impossible_ids_is_refused(server, prompt):
    stranger = zmq.Context.instance().socket(zmq.DEALER)
    stranger.connect(server.address)
    sampling = {"max_tokens": 1, "stop_token_ids": [], "temperature": 1.0}
    stranger.send(msgspec.msgpack.encode(["Generate", 1, "a0", prompt, sampling, None]))
    assert stranger.poll(10_000)
    kind, call, died, _ = msgspec.msgpack.decode(stranger.recv())
    stranger.close(linger=0)

    assert (kind, call, died) == ("Failed", 1, False)


def test_nobody_at_the_address_is_a_dead_engine(tmp_path):
    async def ask() -> None:
        await EngineClient.connect(f"ipc://{tmp_path}/nobody.sock", timeout_s=0.2)

    with pytest.raises(EngineDiedError, match=r"no engine at ipc://.*nobody\.sock within 0\.2 s"):
        asyncio.run(ask())


def test_an_address_that_cannot_be_bound_is_refused_at_once(server):
    with pytest.raises(EngineError, match="cannot listen at"):
        EngineServer(FakeEngine(), "ipc:///no/such/folder/engine.sock")


def test_a_client_waits_for_a_server_that_comes_later(engine, tmp_path):
    address = f"ipc://{tmp_path}/late.sock"

    async def ask():
        client = EngineClient(address)
        call = asyncio.ensure_future(client.generate("a0", PROMPT, SAMPLING))
        await asyncio.sleep(0)
        server = await asyncio.to_thread(EngineServer, engine, address)
        completion = await call
        server.close()
        return completion

    assert asyncio.run(ask()).token_ids.tolist() == [6, 7, 8]


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_an_engine_process_that_ends_or_freezes_is_noticed(tmp_path, blow):
    address = f"ipc://{tmp_path}/engine.sock"

    async def ask(pid: int, arrivals):
        client = EngineClient(address, heartbeat_timeout_s=0.5)
        call = asyncio.ensure_future(client.generate("a0", PROMPT, SAMPLING))
        assert await asyncio.to_thread(arrivals.poll, 30)
        os.kill(pid, blow)
        async with asyncio.timeout(5):
            (died,) = await asyncio.gather(call, return_exceptions=True)
            (later,) = await asyncio.gather(client.generate("a0", PROMPT, SAMPLING), return_exceptions=True)
        return died, later

    with held_fake_process(address, heartbeat_timeout_s=0.5) as (pid, arrivals):
        died, later = asyncio.run(ask(pid, arrivals))
    assert isinstance(died, EngineDiedError)
    assert isinstance(later, EngineDiedError)
