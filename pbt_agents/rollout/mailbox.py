"""A zmq socket on an asyncio loop, without a coroutine per message."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import zmq

_monitors = itertools.count()


class Mailbox:
    """Hands every message that arrives to `on_message`, in the loop that was running when it was made."""

    def __init__(self, socket: Any, on_message: Callable[[list[bytes]], None]):
        self._socket = socket
        self._on_message = on_message
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(socket.fileno(), self._drain)
        self._loop.call_soon(self._drain)

    def send(self, frames: Sequence[bytes]) -> None:
        """Queue a message; never waits, since the sockets' queues are unbounded."""
        self._socket.send_multipart(frames, zmq.NOBLOCK)
        # Sending may consume the socket's edge-triggered readiness, and with it the only notice of a message that just came in.
        if self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self._loop.call_soon(self._drain)

    def close(self) -> None:
        if not self._socket.closed:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()

    def _drain(self) -> None:
        while not self._socket.closed and self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self._on_message(self._socket.recv_multipart(zmq.NOBLOCK))


def open_socket(kind: int, heartbeat_timeout_s: float) -> Any:
    """A socket with unbounded queues whose other end is noticed when it freezes. A peer that ends is noticed at once, always."""
    socket: Any = zmq.Context.instance().socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.HEARTBEAT_IVL, int(heartbeat_timeout_s * 250))
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(heartbeat_timeout_s * 1000))
    return socket


def open_monitor(socket: Any, events: int) -> Any:
    """A socket that receives the connection's events. Named by a counter: pyzmq's own name is a file number, which is used again."""
    address = f"inproc://monitor-{next(_monitors)}"
    socket.monitor(address, events)
    monitor: Any = zmq.Context.instance().socket(zmq.PAIR)
    monitor.connect(address)
    return monitor
