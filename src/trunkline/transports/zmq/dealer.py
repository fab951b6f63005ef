"""A client's way to its hub: a DEALER, and a monitor that says when the connection is gone."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from itertools import count
from typing import Any, Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from trunkline.keys.store import KeyStore
from trunkline.transports.transport import PeerIdentity, Receiver, Wire
from trunkline.transports.zmq import packets
from trunkline.transports.zmq.socket import (
    EVENTS,
    LINGER_S,
    NOBLOCK,
    POLLIN,
    SocketWatch,
    close_socket,
    let_part,
    open_socket,
)
from trunkline.transports.zmq.wire import ZmqWire

TURN_PACKETS: Final = 64
"""Taken in one turn of the event loop at the most."""

_EVENTS: Final = {
    zmq.EVENT_CLOSED: "nobody listens there",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the hub ended the handshake: its keys are not those that we expect",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the handshake failed: one of us has keys, and the other none",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the hub does not accept our key",
    zmq.EVENT_DISCONNECTED: "the hub ended the connection",
}
_monitors = count()


class Dealer:
    """One connection. A DEALER would connect again by itself, to a hub that knows nothing of us: this one does not."""

    def __init__(self, url: str, max_frame_bytes: int, keys: KeyStore | None = None) -> None:
        self.socket = open_socket(zmq.DEALER)
        self._keys = keys
        options: tuple[tuple[int, int | bytes], ...] = (
            # How much is on its way is the wire's business.
            (zmq.SNDHWM, 0),
            (zmq.RCVHWM, 0),
            (zmq.RECONNECT_IVL, 3_600_000),
            (zmq.MAXMSGSIZE, packets.max_bytes(max_frame_bytes)),
            (zmq.IPV6, 1),
            # The hub's way to us goes by this: whoever knew it could take our place when we are gone.
            (zmq.ROUTING_ID, b"t" + os.urandom(16)),
        )
        for option, value in options:
            self.socket.setsockopt(option, value)
        place = f"inproc://trunkline.monitor.{next(_monitors)}"
        self.socket.monitor(place, sum(_EVENTS))
        self._monitor = open_socket(zmq.PAIR)
        self._monitor.connect(place)
        self._get: Callable[[int], Any] = self.socket.getsockopt
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receiver: Callable[[Wire], Receiver]
        self._wire = ZmqWire(self, PeerIdentity("anonymous" if keys is None else "key:hub", url), max_frame_bytes)
        self._watches: list[SocketWatch] = []

    async def open(self, address: str, receiver: Callable[[Wire], Receiver]) -> Wire:
        """Connect, and wait for the hub's answer: ZeroMQ alone would call it a connection if nobody were there."""
        self._receiver = receiver
        try:
            if self._keys is not None:
                public, secret = self._keys.curve_pair()
                self.socket.setsockopt(zmq.CURVE_PUBLICKEY, public)
                self.socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
                self.socket.setsockopt(zmq.CURVE_SERVERKEY, self._keys.hub_curve_key())
            self.socket.connect(address)
            self._watches = [SocketWatch(self._monitor, self._listen), SocketWatch(self.socket, self._drain)]
            self.post(packets.OPEN)
            await self._opened
        except BaseException:
            self._opened.cancel()
            self.release(linger_s=0.0)
            raise
        return self._wire

    # As the way of a wire

    def post(self, packet: bytes) -> bool:
        try:
            self.socket.send(packet, NOBLOCK)
        except zmq.ZMQError:
            return False
        self._watches[1].check()
        return True

    def part(self) -> bool:
        for socket in (self.socket, self._monitor):
            let_part(socket)
        return True

    def release(self, linger_s: float = LINGER_S) -> None:
        for watch in self._watches:
            watch.stop()
        if not self.socket.closed:
            self.socket.disable_monitor()
        close_socket(self._monitor, 0.0)
        close_socket(self.socket, linger_s)

    # What comes

    def _drain(self) -> bool:
        if self._opened.cancelled():
            # Whoever wanted the connection is about to let go of it.
            return False
        more = True
        for _ in range(TURN_PACKETS):
            frame = self.socket.recv(NOBLOCK, copy=False)
            packet = frame.buffer
            while frame.more:
                # We send one part, always: this is no hub of ours.
                frame, packet = self.socket.recv(NOBLOCK, copy=False), memoryview(b"")
            if self._opened.done():
                self._wire.take(packet)
            else:
                self._answered(packet)
            if self.socket.closed:
                return False
            if not self._get(EVENTS) & POLLIN:
                more = False
                break
        self._wire.hand_over()
        return more

    def _answered(self, packet: memoryview) -> None:
        if packets.is_open(packet):
            self._wire.receiver = self._receiver(self._wire)
            self._opened.set_result(None)
        elif packets.is_bye(packet):
            self._fail(packets.read_bye(packet))
        else:
            self._fail("it is no hub of ours")

    def _listen(self) -> bool:
        """Something has happened to the connection: whatever it is, it is the end of it."""
        why = _EVENTS[zmq.Event(parse_monitor_message(self._monitor.recv_multipart(NOBLOCK))["event"])]
        if not self._opened.done():
            self._fail(why)
        if self._opened.cancelled() or self._opened.exception() is not None:
            return False
        # What came before it is there.
        while not self.socket.closed and self._get(EVENTS) & POLLIN:
            self._drain()
        self._wire.part(why)
        return False

    def _fail(self, why: str) -> None:
        self._opened.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, why))
        for watch in self._watches:
            watch.stop()
