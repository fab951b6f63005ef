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
        """One of the subscribers that it waits for."""

    @abc.abstractmethod
    def unpark(self, why: str) -> None:
        """Stop waiting: the message is dropped where it has not entered. Does nothing if it has entered."""

    def give_up(self, why: str) -> None:
        """Stop waiting after the timeout. Does nothing if the message has entered."""
        self.unpark(why)

    async def wait(self, limits: Backpressure) -> None:
        """Return when the message has entered; raise BackpressureTimeout if there is no room in time.

        If the wait is cancelled or times out, the message no longer waits for room, and is recorded as dropped.
        """
        loop = asyncio.get_running_loop()
        # Counted from parking: a publisher that waits for several subscribers waits for all of them at the same time.
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
    """A publish that waits for room in an inbox. The inbox admits the message, and wakes the publisher."""

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
    """A publish of this process that waits for room at remote subscribers."""

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
