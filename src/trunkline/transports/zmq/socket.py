"""A plain ZeroMQ socket in an event loop, and the one context of this process.

Not zmq.asyncio: it makes a future for every message.
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
"""So long ZeroMQ goes on sending what a closed socket has left."""

Socket = zmq.Socket[bytes]

# As plain numbers: an operation on zmq's own flags costs as much as a call into ZeroMQ.
EVENTS: Final = int(zmq.EVENTS)
POLLIN: Final = int(zmq.POLLIN)
NOBLOCK: Final = int(zmq.NOBLOCK)
MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)


class _Shared:
    """The context, and how many sockets of ours are open in it. A child process begins with its own."""

    def __init__(self) -> None:
        self.context: zmq.Context[Socket] = zmq.Context()
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.open = 0
        self.parting: set[Socket] = set()
        """Sockets whose last word has been said. Nobody else may hold them."""
        atexit.register(self._end)

    def _end(self) -> None:
        # What was sent last may still be with ZeroMQ: wait for it, at most as long as it lingers. With a socket that
        # nobody has closed this would be for ever.
        if self.pid != os.getpid():
            return
        for socket in list(self.parting):
            close_socket(socket)
        if not self.open:
            self.context.term()


_shared: _Shared | None = None


def context() -> zmq.Context[Socket]:
    """Lives as long as the process: it has threads of its own, and ending it waits for all its sockets."""
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
    """Never waits. Closing twice is fine."""
    here = _here()
    here.parting.discard(socket)
    if not socket.closed:
        socket.close(linger=int(linger_s * 1000))
        with here.lock:
            here.open -= 1


def let_part(socket: Socket) -> None:
    """It is closed soon, or else when the process ends: what it has said then still leaves."""
    _here().parting.add(socket)


class SocketWatch:
    """Calls `drain` when a socket has something to receive.

    A socket's descriptor does not say that there is something: it says, once, that something has changed, and any call
    on the socket may take that word away. So `drain` is called when there is something; it receives until there is
    nothing, or returns True to be called again with the next turn of the loop; and who sends calls `check` after it.
    """

    def __init__(self, socket: Socket, drain: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._get: Callable[[int], Any] = socket.getsockopt
        self._drain = drain
        self._scheduled = False
        self._stopped = False
        self._descriptor = cast(int, socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._descriptor, self._wake)
        # What came before anybody watched has been told already.
        self.check()

    def check(self) -> None:
        if not self._scheduled and not self._stopped and self._get(EVENTS) & POLLIN:
            self._scheduled = True
            self._loop.call_soon(self._go_on)

    def _wake(self) -> None:
        # Asked in any case: it is what quiets the descriptor.
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
            # What was not received yet is not announced again.
            self._loop.call_exception_handler({"message": "what came could not be taken", "exception": error})
            more = not isinstance(error, zmq.ZMQError)
        if more and not self._stopped:
            self._scheduled = True
            self._loop.call_soon(self._go_on)

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            if not self._loop.is_closed():
                self._loop.remove_reader(self._descriptor)
