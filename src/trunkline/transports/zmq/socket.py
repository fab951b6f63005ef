"""A plain ZeroMQ socket in an event loop, and the one context of this process.

zmq.asyncio is not used, because it makes a future for every message.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable
from typing import Any, Final, cast

import zmq

LINGER_S: Final = 5.0
"""How long ZeroMQ continues to send the queued data of a closed socket."""

Socket = zmq.Socket[bytes]

# Plain integers, because an operation on zmq's own flags costs as much as a call into ZeroMQ.
EVENTS: Final = int(zmq.EVENTS)
POLLIN: Final = int(zmq.POLLIN)
NOBLOCK: Final = int(zmq.NOBLOCK)
MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)


class _Shared:
    """The context, and the number of open sockets in it. A child process starts with its own."""

    def __init__(self) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.open = 0
        self.parting: set[Socket] = set()
        """Sockets that have sent their last packet. This set may hold the only reference to them."""
        atexit.register(self._end)

    def _end(self) -> None:
        # ZeroMQ may still have unsent data. Wait for it, at most for the linger time. If a socket was not closed, this
        # would wait for ever.
        if self.pid != os.getpid():
            return
        for socket in list(self.parting):
            close_socket(socket)
        if not self.open:
            self.context.term()


_shared: _Shared | None = None


def context() -> zmq.Context[Socket]:
    """The context of this process.

    It lives as long as the process: it has its own threads, and ending it waits for all sockets.
    """
    return _here().context


def _here() -> _Shared:
    global _shared
    if _shared is None or _shared.pid != os.getpid():
        _shared = _Shared()
    return _shared


def open_socket(kind: int) -> Socket:
    here = _here()
    socket: Socket = here.context.socket(kind)
    with here.lock:
        here.open += 1
    return socket


def close_socket(socket: Socket, linger_s: float = LINGER_S) -> None:
    """Close a socket. Never waits. May be called twice."""
    here = _here()
    here.parting.discard(socket)
    if not socket.closed:
        socket.close(linger=int(linger_s * 1000))
        with here.lock:
            here.open -= 1


def let_part(socket: Socket) -> None:
    """Note that a socket will be closed soon, or at the latest when the process ends.

    Its last data is sent in any case.
    """
    _here().parting.add(socket)


class SocketWatch:
    """Calls `drain` when a socket has something to receive.

    The descriptor of a ZeroMQ socket is edge-triggered: it signals once that something has changed, and any call on the
    socket may clear the signal. So `drain` is called while there is something to receive. It receives until there is
    nothing left, or returns True to be called again in the next turn of the loop. After each send, the sender must call
    `check`.
    """

    def __init__(self, socket: Socket, drain: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._get: Callable[[int], Any] = socket.getsockopt
        self._drain = drain
        self._scheduled = False
        self._stopped = False
        self._descriptor = cast(int, socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._wake)
        # Data that arrived before the watch began is not signalled again.
        self.check()

    def check(self) -> None:
        if not self._scheduled and not self._stopped and self._get(EVENTS) & POLLIN:
            self._scheduled = True
            self._loop.call_soon(self._go_on)

    def _wake(self) -> None:
        # EVENTS is always read, because that clears the signal of the descriptor.
        if self._get(EVENTS) & POLLIN and not self._scheduled:
            self._take()

    def _go_on(self) -> None:
        self._scheduled = False
        if not self._stopped and self._get(EVENTS) & POLLIN:
            self._take()

    def _take(self) -> None:
        try:
            more = self._drain()
        except Exception as error:
            # Data that was not received yet is not signalled again.
            self._loop.call_exception_handler({"message": "received data could not be handled", "exception": error})
            more = not isinstance(error, zmq.ZMQError)
        if more and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._go_on)

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            if not self._loop.is_closed():
                self._loop.remove_reader(self._descriptor)
