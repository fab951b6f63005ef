"""A hub's ROUTER: one socket for all its clients. Each client has a wire."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import zmq

from trunkline.transports.addresses import SocketFile
from trunkline.transports.transport import Accept, PeerIdentity
from trunkline.transports.zmq import packets
from trunkline.transports.zmq.authenticator import authenticator
from trunkline.transports.zmq.socket import EVENTS, MORE, NOBLOCK, POLLIN, Socket, SocketWatch, close_socket
from trunkline.transports.zmq.wire import ZmqWire

TURN_PACKETS: Final = 64
TURN_BYTES: Final = 1024 * 1024
"""The most packets, and bytes, received in one turn of the event loop."""
GONE_S: Final = 1.0
"""How long to wait for packets that a client sent before it vanished, if other clients send without a pause."""


class RouterSocket:
    """Uses a bound socket: bound to a file, or under a ZAP domain in which clients have keys, or neither."""

    def __init__(
        self,
        socket: Socket,
        address: str,
        accept: Accept,
        max_frame_bytes: int,
        *,
        file: SocketFile | None = None,
        domain: bytes | None = None,
    ) -> None:
        self.address = address
        self._loop = asyncio.get_running_loop()
        self._socket = socket
        self._get: Callable[[int], Any] = socket.getsockopt
        self._accept = accept
        self._max_frame_bytes = max_frame_bytes
        self._file = file
        self._domain = domain
        self._wires: dict[bytes, RouterChannel] = {}
        self._missing: list[RouterChannel] = []
        self._closed = False
        self._draining = False
        self._watch = SocketWatch(socket, self._drain)

    async def aclose(self) -> None:
        """Refuse new clients. The socket stays open while clients are connected, because they use it."""
        self._closed = True
        if self._file is not None:
            self._file.remove()
        self._maybe_shut()

    def _maybe_shut(self) -> None:
        if self._closed and not self._wires and not self._draining and not self._socket.closed:
            self._watch.stop()
            close_socket(self._socket)
            if self._domain is not None:
                authenticator.close(self._domain)

    # Incoming packets

    def _drain(self) -> bool:
        self._draining = True
        try:
            return self._receive()
        finally:
            self._draining = False
            self._maybe_shut()

    def _receive(self) -> bool:
        touched: dict[ZmqWire, None] = {}
        recv = self._socket.recv
        size = 0
        more = True
        for _ in range(TURN_PACKETS):
            sender = recv(NOBLOCK)
            frame = recv(NOBLOCK, copy=False)
            packet = frame.buffer
            while frame.more:
                # A Trunkline client sends one part.
                frame, packet = recv(NOBLOCK, copy=False), memoryview(b"")
            way = self._wires.get(sender)
            if way is None:
                self._meet(sender, frame, packet)
            elif self._domain is not None and _metadata(frame, "User-Id") != way.name:
                # Another client uses this routing id. The packet is ignored, and nothing more is sent there.
                way.wire.end("another connection has replaced it")
            else:
                way.wire.take(packet)
                touched[way.wire] = None
                size += len(packet)
            if not self._get(EVENTS) & POLLIN:
                more = False
                break
            if size >= TURN_BYTES:
                break
        for wire in touched:
            wire.hand_over()
        if not more:
            self._part()
        return more

    def _meet(self, sender: bytes, frame: zmq.Frame, packet: memoryview) -> None:
        if packets.is_open(packet) and not self._closed:
            way = RouterChannel(self, sender, _metadata(frame, "User-Id"))
            if self.post(sender, packets.OPEN):
                way.wire = ZmqWire(way, self._peer(frame), self._max_frame_bytes)
                self._wires[sender] = way
                way.wire.receiver = self._accept(way.wire)
        elif not packets.is_bye(packet):
            why = "the hub is closing" if self._closed else "the hub does not know this connection"
            self.post(sender, packets.bye(why))

    def _peer(self, frame: zmq.Frame) -> PeerIdentity:
        address = _metadata(frame, "Peer-Address")
        if self._domain is not None:
            return PeerIdentity(f"key:{_metadata(frame, 'User-Id')}", address)
        # Over ipc, the address comes from the kernel: localhost:uid:gid:pid.
        _, *local = address.split(":")
        if self._file is not None and len(local) == 3:
            return PeerIdentity(f"uid:{local[0]}", f"process {local[2]}")
        return PeerIdentity("anonymous", address)

    # Outgoing packets

    def post(self, sender: bytes, packet: bytes) -> bool:
        try:
            self._socket.send(sender, MORE)
            self._socket.send(packet, NOBLOCK)
        except zmq.ZMQError:
            return False
        self._watch.check()
        return True

    # Clients that are gone

    def miss(self, way: RouterChannel) -> None:
        """Note that a client cannot be reached any more. Packets that it sent before may not be received yet."""
        self._missing.append(way)
        self._loop.call_later(GONE_S, self._part)
        if not self._get(EVENTS) & POLLIN:
            self._loop.call_soon(self._part)

    def _part(self) -> None:
        missing, self._missing = self._missing, []
        for way in missing:
            way.wire.part("the client has disconnected")

    def forget(self, sender: bytes) -> None:
        self._wires.pop(sender, None)
        self._maybe_shut()


class RouterChannel:
    """The packet channel of one client's wire."""

    def __init__(self, router: RouterSocket, sender: bytes, name: str) -> None:
        self.wire: ZmqWire
        self.name = name
        self._router = router
        self._sender = sender
        self._missed = False

    def post(self, packet: bytes) -> bool:
        if self._missed or self._router.post(self._sender, packet):
            return not self._missed
        self._missed = True
        self._router.miss(self)
        return False

    def part(self) -> bool:
        # The socket belongs to the hub, and stays open.
        return False

    def release(self) -> None:
        self._router.forget(self._sender)


def _metadata(frame: zmq.Frame, name: str) -> str:
    """A property of the sender of a frame, from ZeroMQ; empty if it is unknown."""
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return ""
