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
"""A publish that has waited this long for room is logged."""


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
    """Whether a new item evicts only one other item, even if the queue exceeds its capacity by more."""

    def __init__(
        self, name: str, pattern: str, time_ns: Callable[[], int], capacity: int, overflow: Overflow, books: Books
    ) -> None:
        self.name = name
        self.pattern = pattern
        self.time_ns = time_ns
        self.capacity = capacity
        """The maximum number of waiting messages."""
        self.overflow = overflow
        self.books = books
        self.ledger: Ledger | None = None
        """Records its fates."""
        self.closed = False
        self.times_full = 0
        """How often the queue became full: a publisher had to wait, and at least `capacity` messages had been accepted
        without waiting since the last wait.
        """
        self._waited_at = 0
        """The number of accepted messages at the last one that had to wait."""
        self._warned = 0
        self._lanes: Lanes[Item] = Lanes()

    def _overflow(self, policy: Overflow, item: Item) -> Waiting | None:
        """Apply the policy to an item that does not fit, or fits only in part."""
        if policy is Overflow.BLOCK:
            return self._wait_for_room(item)
        if policy is Overflow.DROP_OLDEST:
            # The oldest item of the lowest priority is evicted. It may be the new one.
            self._enqueue(item)
            while (why := self._overfull()) is not None:
                victim = self._lanes.pop_lowest(HIGHEST)
                assert victim is not None
                self._evict(
                    victim, f"drop_oldest: {why}" + (" of messages with a higher priority" if victim is item else "")
                )
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
        """Must be called when `count` messages, already counted as accepted, begin to wait for room."""
        accepted = self.books.accepted
        if not self.times_full or accepted - count - self._waited_at >= self.capacity:
            self.times_full += 1
        self._waited_at = accepted

    def warn_of_waiting(self, topic: str) -> None:
        """Log that a publish has waited for WARN_AFTER_S. Logged once, until the queue becomes full again."""
        if self._warned != self.times_full:
            self._warned = self.times_full
            warn_of_waiting(log, topic, self.name)

    def _begin_to_lose(self, policy: Overflow) -> None:
        """Log the first loss. Must be called before a message is dropped."""
        if not self.books.settled[Fate.DROPPED]:
            log.warning(
                "the inbox of %s is full (%d), and messages are lost: %s", self.name, self.capacity, policy.value
            )

    # Implemented by the two kinds of queue

    @abc.abstractmethod
    def _wait_for_room(self, item: Item) -> Waiting | None:
        """Let the publisher wait until there is room."""

    @abc.abstractmethod
    def _enqueue(self, item: Item) -> None: ...

    @abc.abstractmethod
    def _overfull(self) -> str | None:
        """The reason why an item must be evicted, if the queue exceeds a limit; otherwise None."""

    @abc.abstractmethod
    def _evict(self, item: Item, why: str) -> None:
        """Drop an item that was removed from the queue, or as much of it as necessary."""

    @abc.abstractmethod
    def _take_what_fits(self, policy: Overflow, item: Item) -> tuple[Item | None, str]:
        """Take as much of an item as there is room for. Returns the rest, and why there is no room for it."""

    @abc.abstractmethod
    def _drop(self, item: Item, why: str) -> None: ...

    @abc.abstractmethod
    def _refuse(self, item: Item, why: str) -> None:
        """Drop an item, and report an error to its publisher."""
