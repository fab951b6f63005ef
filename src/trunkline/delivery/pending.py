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
"""Messages that a subscriber refused. A message without a number was not offered: its broker did not accept it."""


class Owner(Protocol):
    """The publisher of many messages, which is notified about them together."""

    gone: bool
    """Whether it has given up. Then its messages no longer wait for room."""

    def when_gone(self, callback: Callable[[], object]) -> None: ...

    def settled(self, messages: Batch[Message], failures: Failures) -> None: ...

    def failed(self, messages: Batch[Message], error: Refused) -> None: ...


class RunOwner(Owner, Protocol):
    """An owner that appends its messages to a run."""

    def settled_run(self, run: PlainRun) -> None:
        """As `settled`, for a run that no subscriber refused a message of."""


class Waiter:
    """The publisher of the messages from `start` up to the next waiter.

    It is a task that awaits a future, or an owner of many messages. It has neither if it does not wait."""

    __slots__ = ("future", "owner", "start")

    def __init__(self, future: asyncio.Future[Failures] | None, owner: Owner | None, start: int) -> None:
        self.future = future
        self.owner = owner
        self.start = start

    @property
    def gone(self) -> bool:
        """Whether the publisher does not wait, for example because it was cancelled."""
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
        # Each waiter gets its own exception: one that is raised in several places would collect the tracebacks of all.
        if self.owner is not None:
            self.owner.failed(messages, why())
        elif self.future is not None and not self.future.done():
            self.future.set_exception(why())


class PendingBatch:
    """Messages of one topic, with their publishers. While the last waiter is an owner, that owner may append plain
    messages directly.
    """

    __slots__ = ("alike", "messages", "owner", "plain", "plain_tail", "run", "size", "topic", "waiters")

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.messages: list[Message] = []
        self.run: PlainRun | None = None
        """Messages that follow `messages`, as columns, with the same sender and format. `open` builds them."""
        self.waiters: list[Waiter] = []
        """The publishers of the messages, in order."""
        self.owner: Owner | None = None
        """The owner of the last waiter, if that has one: it may append plain messages directly."""
        self.plain = True
        """Whether all messages were published without additional fields."""
        self.alike = False
        """Whether all messages are plain, and have the same sender and format."""
        self.plain_tail = 0
        """If not all are plain: the number of plain messages after the last one that is not plain."""
        self.size = 0
        """The size of the payloads in bytes, as far as the sender has counted it."""

    def open(self) -> None:
        if self.run is not None:
            self.messages += self.run.messages
            self.run = None

    @property
    def count(self) -> int:
        return len(self.messages) if self.run is None else len(self.messages) + len(self.run)

    @property
    def last(self) -> int:
        """The number of the last message."""
        return self.messages[-1].seq if self.run is None else self.run.last

    def begin_run(self, run: PlainRun) -> bool:
        """Append a run. False if it cannot follow the messages, because they differ from it in sender or format."""
        for message in self.messages:
            if message.content_type != run.content_type or message.sender != run.sender:
                return False
        self.run = run
        return True

    def columns(self, run: PlainRun) -> tuple[list[str], list[int], list[bytes]]:
        """The ids, times and payloads of the messages and of the run."""
        head = self.messages
        if not head:
            return run.ids, run.times, run.payloads
        return (
            [message.id for message in head] + run.ids,
            [message.timestamp_ns for message in head] + run.times,
            [message.payload for message in head] + run.payloads,
        )

    def traces(self, run: PlainRun) -> list[str | None] | None:
        """The column of traces; None if no message has one. Only messages of the run can have one."""
        if not run.traces:
            return None
        column: list[str | None] = [None] * self.count
        for index, trace in run.traces.items():
            column[len(self.messages) + index] = trace
        return column

    def number(self, first: int) -> None:
        """Give its messages consecutive numbers."""
        if len(self.messages) == 1:
            # The most frequent case, in a quarter of the time.
            number(self.messages[0], first)
        else:
            number_all(self.messages, first)
        if self.run is not None:
            self.run.number(first + len(self.messages))

    def leave(self, messages: Batch[Message]) -> None:
        """Append messages whose publisher does not wait, after messages whose publishers do."""
        self.waiters.append(Waiter(None, None, len(self.messages)))
        self.owner = None
        self.messages.extend(messages)

    def add(self, message: Message, future: asyncio.Future[Failures] | None) -> None:
        """Append one plain message."""
        self.waiters.append(Waiter(future, None, len(self.messages)))
        self.owner = None
        self.alike = False
        self.messages.append(message)

    def post(self, message: Message, owner: Owner) -> None:
        """Like `add`, for an owner."""
        if self.owner is not owner:
            self.waiters.append(Waiter(None, owner, len(self.messages)))
            self.owner = owner
            self.alike = False
        self.messages.append(message)

    def extend(self, messages: Batch[Message], future: asyncio.Future[Failures] | None, *, alike: bool) -> None:
        """Append several messages; `alike` if all are plain, and of the same sender and format."""
        if future is not None or self.waiters or not alike:
            # Otherwise a run may follow. Messages before the first waiter have a publisher that does not wait.
            self.waiters.append(Waiter(future, None, len(self.messages)))
        self.owner = None
        self.alike = alike and not self.messages
        self.plain = self.plain and alike
        self.messages.extend(messages)

    def waiter_of(self, index: int) -> Waiter:
        """The publisher of the message at this index."""
        return next(waiter for waiter in reversed(self.waiters) if waiter.start <= index)

    def shares(self) -> Iterator[tuple[Waiter, list[Message]]]:
        """Each waiter with its messages."""
        ends = [*(waiter.start for waiter in self.waiters[1:]), len(self.messages)]
        for waiter, end in zip(self.waiters, ends, strict=True):
            yield waiter, self.messages[waiter.start : end]

    def part(self, start: int, end: int) -> PendingBatch:
        """The messages from `start` to `end`, as a separate batch.

        No waiter may have a future: only owners can be notified in parts.
        """
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
        """Notify each publisher of its failures, after all messages were offered."""
        if not failures:
            for waiter, messages in self.shares():
                waiter.settled(messages, [])
            return
        failed = {id(message): (message, error) for message, error in failures}
        for waiter, messages in self.shares():
            waiter.settled(messages, [failed[id(message)] for message in messages if id(message) in failed])

    def fail(self, why: Callable[[], Refused]) -> None:
        """Notify the publishers of an error, because no message was delivered."""
        for waiter, messages in self.shares():
            waiter.failed(messages, why)


class HandedBatch(PendingBatch):
    """A batch that is being handed out, and the messages that subscribers refused."""

    __slots__ = ("batches", "failures")

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.failures: Failures = []
        self.batches: Batch[tuple[int, RoutedBatch]] = ()
        """The batches of remote publishers that it contains, each with the index of its first message."""

    def own(self, messages: Batch[Message], batch: RoutedBatch) -> None:
        """Like `extend`, for the messages of a batch that was opened."""
        self.batches = [*self.batches, (len(self.messages), batch)]
        self.waiters.append(Waiter(None, batch, len(self.messages)))
        self.owner = None
        self.alike = self.plain = False
        self.messages.extend(messages)
