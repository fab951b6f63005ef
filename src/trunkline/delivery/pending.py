"""A pending batch: messages published on one topic since the last flush, and the publishers that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Batch
from typing import TYPE_CHECKING, Protocol

from trunkline.delivery.plain_run import PlainRun
from trunkline.errors import Refused
from trunkline.message import Message
from trunkline.unchecked import number, number_all

if TYPE_CHECKING:
    from trunkline.delivery.batch import Batch as RoutedBatch

Failures = list[tuple[Message, Exception]]
"""Messages that a subscriber refused. One without a number was offered to nobody: its broker has not accepted it."""


class Owner(Protocol):
    """Who published many messages, and is told of them together."""

    gone: bool
    """Whether it has given up: nobody waits for room on its behalf any more."""

    def when_gone(self, callback: Callable[[], object]) -> None: ...

    def settled(self, messages: Batch[Message], failures: Failures) -> None: ...

    def failed(self, messages: Batch[Message], error: Refused) -> None: ...


class Waiter:
    """Who published the messages from `start` to where the next waiter begins: one that awaits, or an owner of many."""

    __slots__ = ("future", "owner", "start")

    def __init__(self, future: asyncio.Future[Failures] | None, owner: Owner | None, start: int) -> None:
        self.future = future
        self.owner = owner
        self.start = start

    @property
    def gone(self) -> bool:
        """Whether nobody waits any more: the publisher was cancelled."""
        return self.owner.gone if self.owner is not None else self.future is None or self.future.cancelled()

    def when_gone(self, callback: Callable[[], object]) -> None:
        if self.owner is not None:
            self.owner.when_gone(callback)
        elif self.future is not None:
            self.future.add_done_callback(lambda future: callback() if future.cancelled() else None)

    def settled(self, messages: Batch[Message], failures: Failures) -> None:
        if self.owner is not None:
            self.owner.settled(messages, failures)
        elif self.future is not None and not self.future.done():
            self.future.set_result(failures)

    def failed(self, messages: Batch[Message], why: Callable[[], Refused]) -> None:
        # An error for each: raised in several places at once, one would grow a traceback of all of them.
        if self.owner is not None:
            self.owner.failed(messages, why())
        elif self.future is not None and not self.future.done():
            self.future.set_exception(why())


class PendingBatch:
    """While the last of it is an owner's, the owner may append plain messages itself."""

    __slots__ = ("alike", "messages", "owner", "plain", "plain_tail", "run", "size", "topic", "waiters")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.messages: list[Message] = []
        self.run: PlainRun | None = None
        """What comes after the messages, and is alike with them. `open` turns it into messages."""
        self.waiters: list[Waiter] = []
        """Who published them, in order."""
        self.owner: Owner | None = None
        """If the last waiter is an owner: it may append plain messages directly."""
        self.plain = True
        """Whether all were published without a field of their own."""
        self.alike = False
        """Whether all are plain, and have one sender and one format."""
        self.plain_tail = 0
        """If not all are plain: how many plain ones have come since the last other one."""
        self.size = 0
        """Bytes of payload, as far as whoever sends it has counted them."""

    def open(self) -> None:
        if self.run is not None:
            self.messages += self.run.messages
            self.run = None

    @property
    def count(self) -> int:
        return len(self.messages) if self.run is None else len(self.messages) + len(self.run)

    def begin_run(self, run: PlainRun) -> bool:
        """Whether the run can come after what there is: a few messages like its own."""
        for message in self.messages:
            if message.content_type != run.content_type or message.sender != run.sender:
                return False
        self.run = run
        return True

    def columns(self, run: PlainRun) -> tuple[list[str], list[int], list[bytes]]:
        """Ids, times and payloads, with those of its run."""
        head = self.messages
        if not head:
            return run.ids, run.times, run.payloads
        return (
            [message.id for message in head] + run.ids,
            [message.timestamp_ns for message in head] + run.times,
            [message.payload for message in head] + run.payloads,
        )

    def number(self, first: int) -> None:
        """Give its messages consecutive numbers."""
        if len(self.messages) == 1:
            # Most often, and in a quarter of the time.
            number(self.messages[0], first)
        else:
            number_all(self.messages, first)
        if self.run is not None:
            self.run.number(first + len(self.messages))

    def leave(self, messages: Batch[Message]) -> None:
        """Some whose publisher does not wait, after some whose publishers do."""
        self.waiters.append(Waiter(None, None, len(self.messages)))
        self.owner = None
        self.messages.extend(messages)

    def add(self, message: Message, future: asyncio.Future[Failures] | None) -> None:
        """One plain message."""
        self.waiters.append(Waiter(future, None, len(self.messages)))
        self.owner = None
        self.alike = False
        self.messages.append(message)

    def post(self, message: Message, owner: Owner) -> None:
        """As `add`, for an owner."""
        if self.owner is not owner:
            self.waiters.append(Waiter(None, owner, len(self.messages)))
            self.owner = owner
            self.alike = False
        self.messages.append(message)

    def extend(self, messages: Batch[Message], future: asyncio.Future[Failures] | None, *, alike: bool) -> None:
        """Several at once; `alike` if all are plain, of one sender and format."""
        self.waiters.append(Waiter(future, None, len(self.messages)))
        self.owner = None
        self.alike = alike and not self.messages
        self.plain = self.plain and alike
        self.messages.extend(messages)

    def waiter_of(self, index: int) -> Waiter:
        """Who published the message at this place."""
        return next(waiter for waiter in reversed(self.waiters) if waiter.start <= index)

    def shares(self) -> Iterator[tuple[Waiter, list[Message]]]:
        """Each waiter with its messages."""
        ends = [*(waiter.start for waiter in self.waiters[1:]), len(self.messages)]
        for waiter, end in zip(self.waiters, ends, strict=True):
            yield waiter, self.messages[waiter.start : end]

    def part(self, start: int, end: int) -> PendingBatch:
        """Some of it, as a batch of its own. Only owners, who are told of many, may be told in parts."""
        part = PendingBatch(self.topic)
        part.plain, part.alike = self.plain, self.alike
        part.messages = self.messages[start:end]
        for waiter in self.waiters:
            assert waiter.future is None
            if waiter.start <= start:
                part.waiters = [Waiter(None, waiter.owner, 0)]
            elif waiter.start < end:
                part.waiters.append(Waiter(None, waiter.owner, waiter.start - start))
        return part

    def unclaimed(self) -> list[Message]:
        """Messages whose publisher does not wait."""
        if not self.waiters:
            return self.messages
        found = self.messages[: self.waiters[0].start]
        for waiter, messages in self.shares():
            if waiter.future is None and waiter.owner is None:
                found += messages
        return found

    def settle(self, failures: Failures) -> None:
        """It is with everybody who listens: tell those who published it, each of its own failures."""
        if not failures:
            for waiter, messages in self.shares():
                waiter.settled(messages, [])
            return
        failed = {id(message): (message, error) for message, error in failures}
        for waiter, messages in self.shares():
            waiter.settled(messages, [failed[id(message)] for message in messages if id(message) in failed])

    def fail(self, why: Callable[[], Refused]) -> None:
        """Nobody has seen it."""
        for waiter, messages in self.shares():
            waiter.failed(messages, why)


class HandedBatch(PendingBatch):
    """A batch on its way to subscribers, and what some of them refused."""

    __slots__ = ("batches", "failures")

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.failures: Failures = []
        self.batches: Batch[tuple[int, RoutedBatch]] = ()
        """Those that came as batches of publishers elsewhere, and where each begins."""

    def own(self, messages: Batch[Message], batch: RoutedBatch) -> None:
        """As `extend`, of a batch that was opened."""
        self.batches = [*self.batches, (len(self.messages), batch)]
        self.waiters.append(Waiter(None, batch, len(self.messages)))
        self.owner = None
        self.alike = self.plain = False
        self.messages.extend(messages)
