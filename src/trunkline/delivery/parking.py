"""Parking: publishes that wait for room at a subscriber. They are woken, and do not poll."""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trunkline.delivery.batch import Batch
from trunkline.delivery.subscriber import WARN_AFTER_S
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
    def topic(self) -> str: ...

    @property
    @abc.abstractmethod
    def subscriber(self) -> Inbox | Outlet:
        """One that it waits for."""

    @abc.abstractmethod
    def unpark(self, why: str) -> None:
        """Wait no longer: it is dropped where it has not entered; nothing happens if it has."""

    def give_up(self, why: str) -> None:
        """It has waited for too long: nothing happens if it has entered."""
        self.unpark(why)

    async def wait(self, limits: Backpressure) -> None:
        """Return when the message has entered; raise BackpressureTimeout if there is no room in time.

        Cancelled or timed out, the message leaves the waiting line and its fate is recorded as dropped.
        """
        loop = asyncio.get_running_loop()
        # From the moment of parking: a publisher that waits for several waits for all of them at once.
        deadline = self.since + limits.timeout_s
        stretch_s = limits.wait_s
        warn_at = self.since + WARN_AFTER_S
        try:
            while not self.entered.done():
                now = loop.time()
                stretch_ends = min(deadline, now + stretch_s, warn_at if warn_at > now else deadline)
                await asyncio.wait([self.entered], timeout=stretch_ends - loop.time())
                if self.entered.done():
                    return
                if stretch_ends >= deadline:
                    where = self.subscriber.name
                    self.give_up(f"backpressure timeout after {limits.timeout_s:g} s")
                    raise BackpressureTimeout(where, limits.timeout_s)
                if stretch_ends >= warn_at:
                    self.subscriber.warn_of_waiting(self.topic)
                stretch_s *= 2
                log.debug("%s is congested: publishes wait", self.subscriber.name)
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
    def topic(self) -> str:
        return self.message.topic

    @property
    def subscriber(self) -> Inbox:
        return self.inbox

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
    def topic(self) -> str:
        return self._batch.topic

    @property
    def subscriber(self) -> Outlet:
        return next(outlet for outlet in self._outlets if outlet.holds(self._batch))

    def unpark(self, why: str) -> None:
        for outlet in self._outlets:
            outlet.withdraw(self._batch, why)

    def settled(self, batch: Batch) -> None:
        if not self.entered.done():
            self.entered.set_result(None)
