"""A subscriber: its name and pattern, a bounded queue, the overflow policy, and its books.

There are two kinds of queue. An inbox queues messages, for a subscriber in this process. An outlet queues batches as
they arrived, for a remote subscriber. Both use the same policies, which are here.
"""

from __future__ import annotations

import abc
import enum
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, TypeVar

from trunkline.delivery.books import Books
from trunkline.delivery.fates import Fate
from trunkline.delivery.lanes import Lanes, Ranked

if TYPE_CHECKING:
    from trunkline.delivery.ledger import Ledger
    from trunkline.delivery.parking import Waiting

log = logging.getLogger("trunkline.delivery")

HIGHEST = 100
WARN_AFTER_S = 1.0
"""A publish that has waited so long for room is reported."""


def warn_of_waiting(logger: logging.Logger, topic: str, subscriber: str) -> None:
    logger.warning(
        "a publish on %s has waited %g s because the inbox of %s is full: make its handler faster, add members to its "
        "group, or subscribe with a larger capacity or another overflow policy",
        topic,
        WARN_AFTER_S,
        subscriber,
    )


class Overflow(enum.StrEnum):
    """What happens to a message when the inbox is full."""

    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"
    REJECT = "reject"


Item = TypeVar("Item", bound=Ranked)


class Subscriber(abc.ABC, Generic[Item]):
    __slots__ = (
        "_lanes",
        "_waited_at",
        "_warned",
        "books",
        "capacity",
        "closed",
        "ledger",
        "name",
        "overflow",
        "pattern",
        "time_ns",
        "times_full",
    )

    one_for_one = False
    """Whether an item makes room for one item only, also if more is queued than may be."""

    def __init__(
        self, name: str, pattern: str, time_ns: Callable[[], int], capacity: int, overflow: Overflow, books: Books
    ) -> None:
        self.name = name
        self.pattern = pattern
        self.time_ns = time_ns
        self.capacity = capacity
        """In messages."""
        self.overflow = overflow
        self.books = books
        self.ledger: Ledger | None = None
        """Who writes its fates down."""
        self.closed = False
        self.times_full = 0
        """How often publishers had to wait after it had taken as much as it has room for without a wait."""
        self._waited_at = 0
        """How many messages had come when the last of those that had to wait came."""
        self._warned = 0
        self._lanes: Lanes[Item] = Lanes()

    def _overflow(self, policy: Overflow, item: Item) -> Waiting | None:
        """Do what the policy says with an item that does not fit, or not whole."""
        if policy is Overflow.BLOCK:
            return self._wait_for_room(item)
        if policy is Overflow.DROP_OLDEST:
            # The oldest of the lowest priority goes, which may be the newcomer.
            self._enqueue(item)
            while (why := self._overfull()) is not None:
                victim = self._lanes.pop_lowest(HIGHEST)
                assert victim is not None
                self._evict(victim, f"drop_oldest: {why}" + (" of what ranks higher" if victim is item else ""))
                if self.one_for_one:
                    break
            return None
        rest, why = self._take_what_fits(policy, item)
        if rest is not None and policy is Overflow.DROP_NEWEST:
            self._drop(rest, why)
        elif rest is not None:
            self._refuse(rest, why)
        return None

    def _count_waiting(self, count: int) -> None:
        """To be called when so many messages, which count as accepted, begin to wait for room."""
        accepted = self.books.accepted
        if not self.times_full or accepted - count - self._waited_at >= self.capacity:
            self.times_full += 1
        self._waited_at = accepted

    def warn_of_waiting(self, topic: str) -> None:
        """A publish has waited for WARN_AFTER_S: say so once, until it has had room again."""
        if self._warned != self.times_full:
            self._warned = self.times_full
            warn_of_waiting(log, topic, self.name)

    def _begin_to_lose(self, policy: Overflow) -> None:
        """To be called before a message is dropped."""
        if not self.books.settled[Fate.DROPPED]:
            log.warning("%s is full (%d) and begins to lose messages: %s", self.name, self.capacity, policy.value)

    # What the two kinds of queue do in their own way

    @abc.abstractmethod
    def _wait_for_room(self, item: Item) -> Waiting | None:
        """Its publisher waits until there is room."""

    @abc.abstractmethod
    def _enqueue(self, item: Item) -> None: ...

    @abc.abstractmethod
    def _overfull(self) -> str | None:
        """Why something must go, if more is queued than may be."""

    @abc.abstractmethod
    def _evict(self, item: Item, why: str) -> None:
        """Drop an item that was taken out of the queue, or as much of it as must go."""

    @abc.abstractmethod
    def _take_what_fits(self, policy: Overflow, item: Item) -> tuple[Item | None, str]:
        """Take as much of an item as there is room for. Returns the rest, and why there is no room for it."""

    @abc.abstractmethod
    def _drop(self, item: Item, why: str) -> None: ...

    @abc.abstractmethod
    def _refuse(self, item: Item, why: str) -> None:
        """Drop it, and tell its publisher."""
