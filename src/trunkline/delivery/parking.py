"""Parking: publishes that wait for room in an inbox. They are woken, they do not poll."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from trunkline.errors import BackpressureTimeout
from trunkline.message import Message
from trunkline.settings import Backpressure

if TYPE_CHECKING:
    from trunkline.delivery.inbox import Inbox

log = logging.getLogger("trunkline.delivery")


class Parked:
    """A publish that waits for room. The message moves in by itself; `entered` then wakes the publisher."""

    __slots__ = ("entered", "inbox", "message", "since")

    def __init__(self, inbox: Inbox, message: Message) -> None:
        loop = asyncio.get_running_loop()
        self.inbox = inbox
        self.message = message
        self.entered: asyncio.Future[None] = loop.create_future()
        self.since = loop.time()

    async def wait(self, limits: Backpressure) -> None:
        """Return when the message is in the inbox; raise BackpressureTimeout if nobody makes room.

        Cancelled or timed out, the message leaves the waiting line and its fate is recorded as dropped.
        """
        loop = asyncio.get_running_loop()
        # From the moment of parking: a publisher that waits for several waits for all of them at once.
        deadline = self.since + limits.timeout_s
        stretch_s = limits.wait_s
        try:
            while not self.entered.done():
                stretch_ends = min(deadline, loop.time() + stretch_s)
                await asyncio.wait([self.entered], timeout=stretch_ends - loop.time())
                if self.entered.done():
                    return
                if stretch_ends >= deadline:
                    self.inbox.unpark(self, f"backpressure timeout after {limits.timeout_s:g} s")
                    raise BackpressureTimeout(self.inbox.name, limits.timeout_s)
                stretch_s *= 2
                log.debug("%s is congested: %d publishes wait", self.inbox.name, len(self.inbox.parked))
        except asyncio.CancelledError:
            if not self.entered.done():
                self.inbox.unpark(self, "its publisher was cancelled while waiting for room")
            raise
