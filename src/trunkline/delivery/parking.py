"""Parking: publishes that wait for room at a subscriber. They are woken, they do not poll."""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trunkline.delivery.batch import Batch
from trunkline.errors import BackpressureTimeout
from trunkline.message import Message
from trunkline.settings import Backpressure

if TYPE_CHECKING:
    from trunkline.delivery.inbox import Inbox
    from trunkline.delivery.outlet import Outlet

log = logging.getLogger("trunkline.delivery")


class Waiting(abc.ABC):
    """A publish that waits for room. When `entered` is done, it waits no longer."""

    __slots__ = ("entered", "since")

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.entered: asyncio.Future[None] = loop.create_future()
        self.since = loop.time()

    @property
    @abc.abstractmethod
    def where(self) -> str:
        """The name of a subscriber it waits for."""

    @abc.abstractmethod
    def unpark(self, why: str) -> None:
        """Wait no longer: it is dropped where it has not entered; nothing happens if it has."""

    async def wait(self, limits: Backpressure) -> None:
        """Return when the message has entered; raise BackpressureTimeout if there is no room in time.

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
                    where = self.where
                    self.unpark(f"backpressure timeout after {limits.timeout_s:g} s")
                    raise BackpressureTimeout(where, limits.timeout_s)
                stretch_s *= 2
                log.debug("%s is congested: publishes wait", self.where)
        except asyncio.CancelledError:
            self.unpark("its publisher was cancelled while waiting for room")
            raise


class Parked(Waiting):
    """For room in an inbox. The message moves in by itself, and wakes its publisher."""

    __slots__ = ("inbox", "message")

    def __init__(self, inbox: Inbox, message: Message) -> None:
        super().__init__()
        self.inbox = inbox
        self.message = message

    @property
    def where(self) -> str:
        return self.inbox.name

    def unpark(self, why: str) -> None:
        self.inbox.unpark(self, why)


class WaitingBatch(Waiting):
    """For room at subscribers elsewhere, of a publisher in this process."""

    __slots__ = ("_batch", "_outlets")

    def __init__(self, batch: Batch, outlets: Sequence[Outlet]) -> None:
        super().__init__()
        self._batch = batch
        self._outlets = outlets
        batch.publisher = self

    @property
    def where(self) -> str:
        return next(outlet.name for outlet in self._outlets if outlet.holds(self._batch))

    def unpark(self, why: str) -> None:
        for outlet in self._outlets:
            outlet.withdraw(self._batch, why)

    def settled(self, batch: Batch) -> None:
        if not self.entered.done():
            self.entered.set_result(None)
