"""The near end of an engine's socket: the verbs of RolloutEngine, for one event loop.

    client = await EngineClient.connect("ipc:///tmp/run/engine0.sock")    # for this event loop; another loop makes its own
    layout = await client.layout()
    completion = await client.generate("a0", prompt_ids, sampling)   # any number at the same time
    await client.close()

When the engine ends or freezes, every call that waits raises EngineDiedError, and so does every later one until an engine listens
at the address again.
"""

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import zmq
from zmq.utils.monitor import parse_monitor_message

from pbt_agents.engine import AdapterLayout, RolloutEngine
from pbt_agents.errors import EngineDiedError, EngineError
from pbt_agents.rollout import engine_messages as messages
from pbt_agents.rollout.mailbox import Mailbox, open_monitor, open_socket
from pbt_agents.types import AdapterRef, Completion, IntArray, PolicyId, Sampling

ReplyT = TypeVar("ReplyT", bound=messages.Message)


class EngineClient:
    """Implements RolloutEngine."""

    def __init__(self, address: str, connect_timeout_s: float = 60.0, answer_timeout_s: float = 60.0, heartbeat_timeout_s: float = 5.0):
        """`answer_timeout_s` bounds every verb but generate, which takes as long as sampling takes."""
        self.address = address
        self._connect_timeout_s = connect_timeout_s
        self._answer_timeout_s = answer_timeout_s
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._calls = 0
        self._connected = asyncio.Event()
        self._lost = False
        socket = open_socket(zmq.DEALER, heartbeat_timeout_s)
        monitor = open_monitor(socket, zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        self._monitor = Mailbox(monitor, self._connection_changed)
        self._mailbox = Mailbox(socket, self._receive)
        self._socket = socket
        socket.connect(address)

    @classmethod
    async def connect(cls, address: str, timeout_s: float = 60.0) -> "EngineClient":
        """A client of the engine that listens at `address`, or will within the timeout. Raises EngineDiedError otherwise."""
        client = cls(address, timeout_s)
        try:
            await client._connection()
        except BaseException:
            await client.close()
            raise
        return client

    async def generate(self, agent: str | None, prompt_ids: IntArray, sampling: Sampling, salt: str | None = None) -> Completion:
        call = messages.Generate(self._next(), agent, messages.pack_ids(prompt_ids), sampling, salt)
        return messages.completion(await self._ask(call, messages.Completed, None))

    async def load_adapter(self, adapter: AdapterRef) -> PolicyId:
        return (await self._ask(messages.Load(self._next(), adapter), messages.Loaded, self._answer_timeout_s)).policy

    async def check_health(self) -> dict[str, float]:
        return (await self._ask(messages.AskHealth(self._next()), messages.Health, self._answer_timeout_s)).counters

    async def layout(self) -> AdapterLayout:
        """Order and shapes of the values in an adapter published to this engine."""
        return (await self._ask(messages.AskLayout(self._next()), messages.Layout, self._answer_timeout_s)).tensors

    async def close(self) -> None:
        """Waiting calls raise EngineDiedError."""
        if self._socket.closed:
            return
        self._lose("the client was closed")
        self._socket.monitor(None, 0)
        self._monitor.close()
        self._mailbox.close()

    def _next(self) -> int:
        self._calls += 1
        return self._calls

    async def _ask(self, call: messages.Call, reply_type: type[ReplyT], timeout_s: float | None) -> ReplyT:
        await self._connection()
        future: asyncio.Future[ReplyT] = asyncio.get_running_loop().create_future()
        self._waiting[call.call] = future
        self._mailbox.send([messages.encode(call)])
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            raise EngineDiedError(f"engine at {self.address} gave no answer within {timeout_s} s.") from error
        except asyncio.CancelledError:
            if not self._lost:
                self._mailbox.send([messages.encode(messages.Cancel(call.call))])
            raise
        finally:
            self._waiting.pop(call.call, None)

    async def _connection(self) -> None:
        if self._connected.is_set():
            return
        if self._lost:
            raise EngineDiedError(f"engine at {self.address} is gone.")
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await self._connected.wait()
        except TimeoutError as error:
            raise EngineDiedError(f"no engine at {self.address} within {self._connect_timeout_s} s.") from error

    def _receive(self, frames: list[bytes]) -> None:
        reply = messages.decode_reply(frames[0])
        future = self._waiting.get(reply.call)
        if future is None or future.done():  # cancelled, or timed out
            return
        if isinstance(reply, messages.Failed):
            future.set_exception(EngineDiedError(reply.reason) if reply.died else EngineError(reply.reason))
        else:
            future.set_result(reply)

    def _connection_changed(self, frames: list[bytes]) -> None:
        if parse_monitor_message(frames)["event"] == zmq.EVENT_DISCONNECTED:
            self._lose(f"engine at {self.address} ended or froze.")
        else:
            self._lost = False
            self._connected.set()

    def _lose(self, reason: str) -> None:
        self._lost = True
        self._connected.clear()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EngineDiedError(reason))


if TYPE_CHECKING:
    _engine: RolloutEngine = EngineClient("")
