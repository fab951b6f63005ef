"""A wire over ZeroMQ, used on both sides. It limits the data in flight, because ZeroMQ does not.

A hub has one socket for all clients. The socket cannot read less from one client, or report how much data waits for
another, and its own limit counts messages, not bytes. So each side may have at most WINDOW_BYTES in flight that the
other has not taken, and waits beyond that. A paused wire holds back only its own sender.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from trunkline.errors import ProtocolError
from trunkline.transports.transport import HIGH_BYTES, LOW_BYTES, Frame, PeerIdentity, Receiver
from trunkline.transports.zmq import packets
from trunkline.transports.zmq.socket import LINGER_S

WINDOW_BYTES: Final = 512 * 1024
"""The maximum number of bytes in flight.

Measured with frames of 13 KB between processes: 33 k/s with half of this window, 53 k/s with this one, and no
improvement with 1 or 4 MB.
"""
TELL_BYTES: Final = WINDOW_BYTES // 4


class PacketChannel(Protocol):
    """The connection of a wire to the other side."""

    def post(self, packet: bytes) -> bool:
        """Pass a packet to ZeroMQ. Never waits, never raises.

        Returns False if the other side is gone. `ZmqWire.part` is then called, after everything received from there was
        taken.
        """

    def part(self) -> bool:
        """Called after the last packet was posted.

        Returns True if `release` closes the socket, so that the wire must wait for the other side.
        """

    def release(self) -> None:
        """Called when the wire has ended."""


class ZmqWire:
    """One connection, on either side."""

    def __init__(self, link: PacketChannel, peer: PeerIdentity, max_frame_bytes: int) -> None:
        self.peer = peer
        self.receiver: Receiver
        """Set before the first packet is taken."""
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._max_frame_bytes = max_frame_bytes
        self._waiting: deque[bytes] = deque()
        self._backlog = 0
        self._full = False
        self._posted = 0
        self._arrived = 0
        """Bytes that this side has posted and the other side has taken."""
        self._held: list[memoryview] = []
        self._held_bytes = 0
        self._taken = 0
        self._acknowledged = 0
        self._paused = False
        self._parting: str | None = None
        """Why the other side will send no more. Reported after all earlier frames are handed over."""
        self._is_peer_gone = False
        """Whether the other side is gone."""
        self._broken = False
        self._closing = False
        self._asked = False
        """Whether the other side has sent BYE, and waits for BYE from this side."""
        self._parted = False
        """Whether this side has sent BYE, and waits for BYE from the other side."""
        self._deadline: asyncio.TimerHandle | None = None
        self.ended = False

    # The interface of a wire

    def send(self, frames: Sequence[Frame]) -> None:
        if self.ended or self._closing or self._is_peer_gone:
            return
        for packet in packets.pack(frames):
            if self._waiting or self._posted - self._arrived >= WINDOW_BYTES:
                self._waiting.append(packet)
                self._backlog += len(packet)
            else:
                self._post(packet)
        if self._backlog > HIGH_BYTES:
            self._full = True

    @property
    def backlog(self) -> int:
        return self._backlog

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._loop.call_soon(self.hand_over)

    def close(self) -> None:
        if not self._closing and not self.ended:
            self._closing = True
            self._wait_for_the_rest()

    def abort(self) -> None:
        if not self.ended:
            self._link.post(packets.bye("the other side aborted the connection"))
            self.end("the connection was aborted")

    # Incoming packets

    def take(self, packet: bytes | memoryview) -> None:
        """Process a packet from the other side. Its frames are kept until `hand_over`."""
        if self.ended or self._broken or self._parting is not None:
            return
        try:
            kind = packet[0] if len(packet) else 0
            if self._parted and kind != packets.BYE:
                return
            if kind == packets.FRAMES:
                self._hold(packet)
            elif kind == packets.TAKEN:
                self._make_room(packets.read_taken(packet))
            elif kind == packets.BYE:
                self._asked = True
                self.part(packets.read_bye(packet) or "the other side closed the connection")
            else:
                raise ProtocolError("malformed", "a ZeroMQ message that is not a packet")
        except ProtocolError as error:
            self._broken = True
            self.hand_over()
            if not self.ended:
                self.receiver.broken(error)

    def _hold(self, packet: bytes | memoryview) -> None:
        if self._held_bytes >= WINDOW_BYTES and self._paused:
            raise ProtocolError("too_much", f"more than {WINDOW_BYTES:,} bytes without a confirmation")
        self._held += packets.unpack(packet, self._max_frame_bytes)
        self._held_bytes += len(packet)

    def hand_over(self) -> None:
        if self._paused or self.ended:
            return
        if self._held:
            frames, self._held = self._held, []
            self._taken += self._held_bytes
            self._held_bytes = 0
            try:
                self.receiver.received(frames)
            except Exception as error:
                # asyncio handles a protocol that raises in the same way.
                self._loop.call_exception_handler({"message": "a receiver raised an error", "exception": error})
                self.abort()
                return
            if self._taken - self._acknowledged >= TELL_BYTES and not self.ended:
                self._acknowledged = self._taken
                self._link.post(packets.taken(self._taken))
        self._maybe_end()

    def _maybe_end(self) -> None:
        if self._parting is not None and not self._held and not self._paused:
            if self._asked and not self._closing:
                # The side that closes waits for this BYE: everything that it has sent was taken.
                self._link.post(packets.bye(""))
            self.end(self._parting)

    def part(self, why: str) -> None:
        """Note that the other side will send no more."""
        if self._parted:
            self.end("closed")
        elif self._parting is None:
            self._parting = why
            self._loop.call_soon(self.hand_over)

    # Outgoing packets

    def _post(self, packet: bytes) -> None:
        if not self._is_peer_gone and self._link.post(packet):
            self._posted += len(packet)
        else:
            self._is_peer_gone = True
            self._waiting.clear()
            self._backlog = 0

    def _make_room(self, taken: int) -> None:
        if not self._arrived <= taken <= self._posted:
            raise ProtocolError("malformed", f"{taken:,} bytes were taken, of {self._posted:,}")
        self._arrived = taken
        while self._waiting and self._posted - self._arrived < WINDOW_BYTES:
            packet = self._waiting.popleft()
            self._backlog -= len(packet)
            self._post(packet)
        if self._closing:
            self._wait_for_the_rest()
        elif self._full and self._backlog < LOW_BYTES:
            self._full = False
            self.receiver.writable()

    # The end

    def _wait_for_the_rest(self) -> None:
        """Send the remaining packets, then BYE. Gives up if the other side takes nothing for LINGER_S."""
        if self._parted:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        if self._waiting:
            self._deadline = self._loop.call_later(LINGER_S, self.abort)
            return
        if self._is_peer_gone or not self._link.post(packets.bye("")):
            self.end("closed")
            return
        if not self._link.part():
            self.end("closed")
            return
        # If the socket were closed now, and the other side had sent anything meanwhile, TCP would discard the data that
        # is still on its way from this side.
        self._parted = True
        self._deadline = self._loop.call_later(LINGER_S, self.end, "closed")

    def end(self, why: str) -> None:
        if self.ended:
            return
        self.ended = True
        if self._deadline is not None:
            self._deadline.cancel()
        self._waiting.clear()
        self._backlog = 0
        self._held.clear()
        self._link.release()
        self._loop.call_soon(self.receiver.lost, why)
