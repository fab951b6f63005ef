"""Marks: messages of this process to itself. When a mark arrives, the server has received everything sent before it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trunkline.brokers.nats.link import NatsLink
from trunkline.brokers.nats.refusals import NAME
from trunkline.errors import EngineUnavailable

MARK_S = 0.05
"""The delay between a batch and the mark that confirms it. If a caller waits, the mark is sent at once."""
MARK_BYTES = 256 * 1024
MARK_BATCHES = 16
"""After this many bytes or batches a mark is sent at once, because the window limits unconfirmed messages."""


class Marks:
    def __init__(self, link: NatsLink, sent: Callable[[int], None]) -> None:
        self._link = link
        self._report = sent
        """Called with the number of the last batch that the server has received."""
        self.last = 0
        """The number of the last mark."""
        self._sent = 0
        """The number of the last plain batch that was sent."""
        self._under_way: dict[int, tuple[int, list[asyncio.Future[None]]]] = {}
        """By mark: the last batch that it confirms, and the callers that wait for it."""
        self._timer: asyncio.TimerHandle | None = None
        self._batches = self._bytes = 0
        """Batches and bytes sent since the last mark."""

    def connected(self) -> None:
        self._sent = 0
        self._under_way.clear()

    def ended(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for _, waiting in self._under_way.values():
            for waiter in waiting:
                if not waiter.done():
                    waiter.set_exception(EngineUnavailable(NAME, self._link.url, "the connection ended"))
        self._under_way.clear()

    def sent(self, number: int, size: int) -> None:
        """Note that a plain batch was sent. Answers may be sent again, after later batches."""
        self._sent = max(self._sent, number)
        self._bytes += size
        self._batches += 1
        if self._bytes > MARK_BYTES or self._batches > MARK_BATCHES:
            self._add([])
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(MARK_S, self._add, [])

    def _add(self, waiting: list[asyncio.Future[None]]) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._batches = self._bytes = 0
        self.last += 1
        self._under_way[self.last] = (self._sent, waiting)
        self._link.publish(f"{self._link.inbox}.m.{self.last}", b"")

    async def sync(self) -> None:
        """Return when the server has received everything that was sent before. Raises EngineUnavailable."""
        self._link.required()
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._add([waiter])
        await waiter

    def came_back(self, number: int) -> None:
        # Deferred: messages that arrived before the mark may still wait for their callbacks.
        asyncio.get_running_loop().call_soon(self._confirmed, number)

    def _confirmed(self, number: int) -> None:
        sent, waiting = self._under_way.pop(number, (0, []))
        if sent:
            self._report(sent)
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
