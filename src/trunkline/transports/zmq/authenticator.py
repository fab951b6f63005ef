"""CURVE authentication: which clients may connect over ZeroMQ, by key.

For every connection to a socket with keys, ZeroMQ sends a request to one address of the context (the ZAP protocol, RFC
27). One thread answers for all hubs of the process: each hub may run in its own event loop, and end before the others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import count

import zmq

from trunkline.transports.zmq.socket import Socket, close_socket, open_socket

log = logging.getLogger("trunkline.transports")

NameOf = Callable[[bytes], str | None]
"""Returns the owner of a public key; None if the key is not accepted."""

_ZAP = "inproc://zeromq.zap.01"
_VERSION = b"1.0"


class Authenticator:
    """Opened for each listener, and closed with it. The thread runs while at least one listener is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._domains: dict[bytes, NameOf] = {}
        self._numbers = count()
        self._thread: threading.Thread | None = None
        self._sockets: tuple[Socket, ...] = ()

    def open(self, name_of: NameOf) -> bytes:
        """Check every key with `name_of`, in a thread. Returns the ZAP domain for the socket."""
        with self._lock:
            domain = b"trunkline.%d" % next(self._numbers)
            # In a forked child process the thread is not alive.
            if self._thread is None or not self._thread.is_alive():
                self._start(f"inproc://{domain.decode()}")
            self._domains[domain] = name_of
            return domain

    def _start(self, place: str) -> None:
        self._sockets = zap, end, bell = open_socket(zmq.REP), open_socket(zmq.PAIR), open_socket(zmq.PAIR)
        try:
            zap.bind(_ZAP)
            end.bind(place)
            bell.connect(place)
        except zmq.ZMQError:
            for socket in self._sockets:
                close_socket(socket, 0.0)
            raise
        self._thread = threading.Thread(target=self._answer, args=(zap, end), name="trunkline-zap", daemon=True)
        self._thread.start()

    def close(self, domain: bytes) -> None:
        with self._lock:
            del self._domains[domain]
            if not self._domains and self._thread is not None:
                self._sockets[-1].send(b"")
                self._thread.join()
                self._thread = None
                # A closed socket releases its address some time later, but another hub may need it at once.
                self._sockets[0].unbind(_ZAP)
                for socket in self._sockets:
                    close_socket(socket, 0.0)

    def _answer(self, zap: Socket, end: Socket) -> None:
        poller = zmq.Poller()
        poller.register(zap, zmq.POLLIN)
        poller.register(end, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if zap in ready:
                zap.send_multipart(self.decide(zap.recv_multipart()))
            if end in ready:
                return

    def decide(self, asked: Sequence[bytes]) -> list[bytes]:
        """The reply to a ZAP request."""
        number = asked[1] if len(asked) > 1 else b""
        name: str | None = None
        if len(asked) == 7 and asked[0] == _VERSION and asked[5] == b"CURVE":
            name_of = self._domains.get(asked[2])
            try:
                name = None if name_of is None else name_of(asked[6])
            except Exception:
                # If the check fails, the client is refused. The thread continues with the next request.
                log.exception("the owner of a key could not be determined")
        if name is None:
            log.warning("a client with an unknown or revoked key was refused")
            return [_VERSION, number, b"400", b"this key may not come in", b"", b""]
        return [_VERSION, number, b"200", b"OK", name.encode(), b""]


authenticator = Authenticator()
"""One per process, like the context."""
