"""A transport with both ends in one event loop, for an embedded hub, and for tests in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from trunkline.transports.transport import LINGER_S, Accept, Frame, Listener, PeerIdentity, Receiver, Wire

_listening: dict[str, Accept] = {}
"""Listeners by URL, for this process."""


class End:
    """One end of a pair. Frames arrive in the next iteration of the event loop."""

    def __init__(self, peer: PeerIdentity) -> None:
        self.peer = peer
        self.other: End
        self.receiver: Receiver
        self._inbound: list[memoryview] = []
        self._scheduled = False
        self._paused = False
        self._closing = False
        self._linger: asyncio.TimerHandle | None = None
        self._ended = False

    def send(self, frames: Sequence[Frame]) -> None:
        if not self._ended and not self._closing:
            self.other.take([memoryview(b"".join(frame)) for frame in frames])

    @property
    def backlog(self) -> int:
        return sum(map(len, self.other._inbound))

    def take(self, frames: list[memoryview]) -> None:
        self._inbound += frames
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and not self._paused:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._scheduled = False
        if self._paused or self._ended or not self._inbound:
            return
        frames, self._inbound = self._inbound, []
        self.receiver.received(frames)
        if not self.other._ended:
            self.other.receiver.writable()
        if self.other._closing:
            asyncio.get_running_loop().call_soon(self.other.abort)

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self._inbound:
            self._schedule()

    def close(self) -> None:
        if not self._ended and not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        """End the connection after the frames that were sent were received: the other side may be paused."""
        if self.other._paused and self.other._inbound and not self._ended:
            self._linger = asyncio.get_running_loop().call_later(LINGER_S, self.abort)
        else:
            self.abort()

    def abort(self) -> None:
        for end, why in ((self, "closed"), (self.other, "the other side closed the connection")):
            if not end._ended:
                end._hand_over()
                end._ended = True
                if end._linger is not None:
                    end._linger.cancel()
                asyncio.get_running_loop().call_soon(end.receiver.lost, why)


class _Listening:
    def __init__(self, url: str) -> None:
        self.address = url

    async def aclose(self) -> None:
        _listening.pop(self.address, None)


class PairTransport:
    """`pair:name`."""

    async def connect(self, url: str, receiver: Callable[[Wire], Receiver], *, max_frame_bytes: int) -> Wire:
        accept = _listening.get(url)
        if accept is None:
            raise ConnectionRefusedError(f"nothing listens at {url}")
        here, there = End(PeerIdentity("local", url)), End(PeerIdentity("local", url))
        here.other, there.other = there, here
        there.receiver = accept(there)
        here.receiver = receiver(here)
        return here

    async def listen(self, url: str, accept: Accept, *, max_frame_bytes: int) -> Listener:
        if url in _listening:
            raise OSError(f"{url} is already in use")
        _listening[url] = accept
        return _Listening(url)
