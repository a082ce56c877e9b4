"""Serves one engine over a socket, to any number of clients (engine_client.py).

Owns a thread with an event loop of its own, so that decoding and encoding never wait for the engine's steps.

    server = EngineServer(engine, "ipc:///tmp/run/engine0.sock")    # listens on return; server.address is the one in use
    server.close()                                                  # does not close the engine
"""

import asyncio
import threading
import time

import msgspec
import zmq

from pbt_agents.engine import LocalEngine
from pbt_agents.errors import EngineDiedError, EngineError
from pbt_agents.rollout import engine_messages as messages
from pbt_agents.rollout.mailbox import Mailbox, open_socket


class EngineServer:
    """Answers calls concurrently, each when the engine has answered it."""

    def __init__(self, engine: LocalEngine, address: str, heartbeat_timeout_s: float = 5.0):
        """Raises EngineError when the address cannot be listened at."""
        self.address = address
        self.malformed = 0
        """Messages that nobody could read. They are dropped."""
        self._engine = engine
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._calls: dict[tuple[bytes, int], asyncio.Task[None]] = {}
        self._listening = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="engine-server", daemon=True)
        self._thread.start()
        self._listening.wait()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Drop what is unanswered, and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        socket = open_socket(zmq.ROUTER, self._heartbeat_timeout_s)
        try:
            socket.bind(self.address)
            self.address = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        except zmq.ZMQError as error:
            self._failure = EngineError(f"engine cannot listen at {self.address}: {error}. Is the path too long, or taken?")
            socket.close()
            return
        finally:
            self._listening.set()
        self._mailbox = Mailbox(socket, self._receive)
        await self._stop.wait()
        self._mailbox.close()

    def _receive(self, frames: list[bytes]) -> None:
        try:
            sender, body = frames
            call = messages.decode_call(body)
        except (ValueError, msgspec.MsgspecError):
            self.malformed += 1
            return
        key = (sender, call.call)
        if isinstance(call, messages.Cancel):
            if key in self._calls:
                self._calls[key].cancel()
            return
        self._calls[key] = task = self._loop.create_task(self._answer(sender, call))
        task.add_done_callback(lambda _: self._calls.pop(key))

    async def _answer(self, sender: bytes, call: messages.Call) -> None:
        try:
            reply = await self._reply(call)
        except Exception as error:  # whatever went wrong, the client waits for a word
            reply = messages.Failed(call.call, isinstance(error, EngineDiedError), str(error) or repr(error))
        self._mailbox.send([sender, messages.encode(reply)])

    async def _reply(self, call: messages.Call) -> messages.Reply:
        match call:
            case messages.Generate():
                prompt_ids = messages.unpack_ids(call.prompt_ids)
                return messages.completed(call.call, await self._engine.generate(call.agent, prompt_ids, call.sampling, call.salt))
            case messages.Load():
                return messages.Loaded(call.call, await self._engine.load_adapter(call.adapter))
            case messages.AskHealth():
                own = {"server_cpu_s": time.thread_time(), "malformed": float(self.malformed)}
                return messages.Health(call.call, await self._engine.check_health() | own)
            case messages.AskLayout():
                return messages.Layout(call.call, self._engine.layout())
        raise EngineError(f"no answer to {type(call).__name__}")
