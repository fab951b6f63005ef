"""A client's connection to its hub: a DEALER, and a monitor that reports the end of the connection."""

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
"""The most packets received in one turn of the event loop."""

_EVENTS: Final = {
    zmq.EVENT_CLOSED: "nothing listens there",
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: "the hub ended the handshake: its keys are not the expected ones",
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: "the handshake failed: only one side has keys",
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: "the hub does not accept the key of this client",
    zmq.EVENT_DISCONNECTED: "the hub ended the connection",
}
_monitors = count()


class Dealer:
    """One connection.

    Automatic reconnection of the DEALER is disabled: the hub would not recognise the connection afterwards.
    """

    def __init__(self, url: str, max_frame_bytes: int, keys: KeyStore | None = None) -> None:
        self.socket = open_socket(zmq.DEALER)
        self._keys = keys
        options: tuple[tuple[int, int | bytes], ...] = (
            # The wire limits the data in flight.
            (zmq.SNDHWM, 0),
            (zmq.RCVHWM, 0),
            (zmq.RECONNECT_IVL, 3_600_000),
            (zmq.MAXMSGSIZE, packets.max_bytes(max_frame_bytes)),
            (zmq.IPV6, 1),
            # The hub routes to this id. A client that knew it could take over the connection after this one is gone.
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
        """Connect, and wait for the hub's answer.

        ZeroMQ by itself reports a connection even if nothing listens there.
        """
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

    # The packet channel of the wire

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

    # Incoming packets

    def _drain(self) -> bool:
        if self._opened.cancelled():
            # The caller of `open` was cancelled, and is about to release the connection.
            return False
        more = True
        for _ in range(TURN_PACKETS):
            frame = self.socket.recv(NOBLOCK, copy=False)
            packet = frame.buffer
            while frame.more:
                # A Trunkline hub always sends one part, so this is not a Trunkline hub.
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
            self._fail("it is not a Trunkline hub")

    def _listen(self) -> bool:
        """Handle an event of the connection. Every monitored event means that the connection has ended."""
        why = _EVENTS[zmq.Event(parse_monitor_message(self._monitor.recv_multipart(NOBLOCK))["event"])]
        if not self._opened.done():
            self._fail(why)
        if self._opened.cancelled() or self._opened.exception() is not None:
            return False
        # Packets that arrived before the end can still be received.
        while not self.socket.closed and self._get(EVENTS) & POLLIN:
            self._drain()
        self._wire.part(why)
        return False

    def _fail(self, why: str) -> None:
        self._opened.set_exception(ConnectionRefusedError(errno.ECONNREFUSED, why))
        for watch in self._watches:
            watch.stop()
