"""The stream: a subscriber takes its messages from it one by one, in batches, with or without waiting."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing

from trunkline.delivery.custody import Custody
from trunkline.delivery.dead_letters import Cause
from trunkline.delivery.fates import Account
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.unopened import MessageBatch
from trunkline.errors import Nacked, Reject, StreamClosed, StreamEmpty
from trunkline.message import Message


class Stream:
    """An independent stream of the messages that match a pattern. Several tasks may take from it.

    Without `ack`, a message counts as delivered when it is taken. With `ack`, and for messages that require it, a
    message counts as delivered when it is acknowledged.
    """

    def __init__(self, inbox: Inbox, custody: Custody, *, ack: bool) -> None:
        self._inbox = inbox
        self.custody = custody
        self._ack = ack
        self._simple = not ack and not inbox.books.exact
        """Whether the fast paths can be used: taking is delivery, and ranges are enough to record it."""
        self._read: Callable[[Message], Message] | None = None
        self.on_ack: Callable[[Message], None] | None = None
        """Called with each message that requires an acknowledgement and got it, by `ack` or `ack_many`."""

    def read_with(self, read: Callable[[Message], Message]) -> None:
        """Convert each message with `read` before it is returned.

        The lease and the dead letter keep the original message.
        """
        self._read = read
        self._simple = False

    @property
    def inbox(self) -> Inbox:
        return self._inbox

    def keep_exact(self) -> None:
        """Keep a row for each delivery, because numbers may not ascend here, or other subscribers get some of the
        messages.
        """
        self._inbox.books.exact = True
        self._simple = False

    @property
    def name(self) -> str:
        return self._inbox.name

    @property
    def pattern(self) -> str:
        return self._inbox.pattern

    @property
    def durable(self) -> bool:
        """Whether unacknowledged messages are delivered again, also after a restart."""
        return self._inbox.back is not None

    @property
    def depth(self) -> int:
        """The number of waiting messages."""
        return self._inbox.depth

    @property
    def closed(self) -> bool:
        return self._inbox.closed

    def account(self) -> Account:
        return self._inbox.account()

    async def opened(self) -> None:
        """Return when the broker has confirmed the subscription; in memory that is at once."""

    async def recv(self, timeout_s: float | None = None) -> Message | None:
        """The next message, or None when the stream is closed and empty. A cancelled call takes no message.

        Raises StreamEmpty if none arrives within `timeout_s`.
        """
        if timeout_s is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self.recv()
            except TimeoutError as error:
                raise StreamEmpty(self.name) from error
        while True:
            if (message := self.take()) is not None:
                return message
            if not await self.more():
                return None

    def try_recv(self) -> Message:
        """The next message, without waiting. Raises StreamEmpty if there is none now, StreamClosed if there will be
        none.
        """
        if (message := self.take()) is not None:
            return message
        if self._ended:
            raise StreamClosed(self.name)
        raise StreamEmpty(self.name)

    async def __aiter__(self) -> AsyncIterator[Message]:
        # The hot loop: a plain message in a simple inbox costs one popleft and one increment.
        inbox = self._inbox
        queue = inbox.queue
        books = inbox.books
        simple = self._simple
        inbox.read_by(1)
        try:
            while True:
                if simple and not inbox.needs_pull and (queue or (not inbox.room and inbox.open())):
                    before = books.delivered - books.covered
                    first = queue[0].seq
                    books.running.append(first)
                    message = None
                    try:
                        while (queue or (not inbox.room and inbox.open())) and not inbox.needs_pull:
                            message = queue.popleft()
                            books.delivered += 1
                            yield message
                    finally:
                        books.running.remove(first)
                        if message is not None:
                            now_ns = inbox.time_ns()
                            books.cover(first, message.seq, now_ns)
                            count = books.delivered - books.covered - before
                            books.covered += count
                            if inbox.ledger is not None:
                                inbox.ledger.delivered(inbox, first, message.seq, count, now_ns)
                        inbox.check_idle()
                elif (message := self.take()) is not None:
                    yield message
                elif not await self.more():
                    return
        finally:
            inbox.read_by(-1)

    async def batches(self, max_size: int = 1000) -> AsyncGenerator[Sequence[Message], None]:
        """The waiting messages, up to `max_size` at a time, as soon as there is one.

        A batch from a hub is a sequence that builds its messages at the first access to one of them.
        """
        inbox = self._inbox
        simple = self._simple
        inbox.batch_readers += simple
        try:
            while True:
                if batch := self._take_many(max_size):
                    yield batch
                elif not await self.more():
                    return
        finally:
            inbox.batch_readers -= simple

    async def payloads(self, max_size: int = 1000) -> AsyncGenerator[list[bytes], None]:
        """Like `batches`, but only the payloads, as bytes: from a hub, no messages are built for them."""
        async with aclosing(self.batches(max_size)) as batches:
            async for batch in batches:
                yield bytes_of(batch)

    def take(self) -> Message | None:
        """The next message, without waiting, or None. At the end of the stream, `more` returns False."""
        if self.custody.full:
            return None
        message = self._inbox.pull()
        if message is None:
            return None
        if self._ack or message.requires_ack:
            self.custody.hold(message)
        else:
            self._inbox.count_delivered(message)
        return message if self._read is None else self._read(message)

    def _take_many(self, max_size: int) -> Sequence[Message]:
        inbox = self._inbox
        if inbox.run is not None:
            inbox.run.close()
        if inbox.unopened is not None and inbox.unopened.count:
            if self._simple and (unopened := inbox.take_unopened(max_size)):
                return MessageBatch(unopened)
            if inbox.queue:
                # The messages in the queue come first. The unopened ones are opened and follow them.
                inbox.open_all()
        batch: list[Message] = []
        if self._ack and self._read is None and not inbox.needs_pull:
            return self._hold_many(max_size)
        if inbox.needs_pull or not self._simple:
            while len(batch) < max_size and (message := self.take()) is not None:
                batch.append(message)
                if self._simple and not inbox.needs_pull:
                    break
            return batch
        queue = inbox.queue
        if len(queue) <= max_size:
            batch = list(queue)
            queue.clear()
        else:
            batch = [queue.popleft() for _ in range(max_size)]
        if batch:
            inbox.count_delivered_many(batch[0].seq, batch[-1].seq, len(batch))
        return batch

    def _hold_many(self, max_size: int) -> list[Message]:
        """Take plain messages into custody together."""
        inbox = self._inbox
        queue = inbox.queue
        if not queue:
            inbox.open()
        batch = [queue.popleft() for _ in range(min(max_size, len(queue), inbox.capacity - inbox.held))]
        if batch:
            self.custody.hold_many(batch)
            if len(queue) <= inbox.refill_at and inbox.refill is not None:
                inbox.refill()
        return batch

    @property
    def _ended(self) -> bool:
        """Whether the stream is closed, and no message is left or can return."""
        inbox = self._inbox
        return inbox.closed and not inbox.depth and not inbox.held and not inbox.delayed

    async def more(self, *, eager: bool = False) -> bool:
        """Wait until there may be a message to take; False at the end. For `eager` see `Inbox.sleep`."""
        inbox = self._inbox
        if inbox.depth and not self.custody.full:
            return True
        if not self._ended:
            # Also when closed: a held or delayed message may return, and wakes the sleeper.
            await inbox.sleep(eager=eager)
        # A wake-up reaches one sleeper. It wakes the next one if more than one message waits, or if the stream has
        # ended.
        if inbox.sleepers and ((inbox.depth > 1 and not self.custody.full) or self._ended):
            inbox.wake()
        return not self._ended

    # Acknowledgement

    def ack(self, message: Message) -> bool:
        """Acknowledge a handled message. False if its lease had ended: it may have been delivered again."""
        done = self.custody.ack(message)
        if done and message.requires_ack and self.on_ack is not None:
            self.on_ack(message)
        return done

    def ack_many(self, messages: Sequence[Message]) -> int:
        """Acknowledge handled messages: like `ack` for each, but faster. Returns how many leases had not ended."""
        done = self.custody.ack_many(messages)
        if self.on_ack is not None:
            for message in done:
                if message.requires_ack:
                    self.on_ack(message)
        return len(done)

    def nack(self, message: Message, reason: str = "not handled") -> float | None:
        """Report that a message was not handled. It is tried again after the returned pause.

        Returns None if this was the last attempt and the message is now a dead letter, or if its lease had ended
        before."""
        return self.custody.fail(self.custody.leases.original(message), Nacked(reason), Cause.HANDLER_FAILED)

    def reject(self, message: Message, reason: str) -> None:
        """Make a message that cannot be handled a dead letter at once."""
        self.custody.fail(self.custody.leases.original(message), Reject(reason), Cause.REJECTED)

    def extend(self, message: Message) -> bool:
        """Renew the lease of a message. False if the lease had ended."""
        return self.custody.renew(message)

    # The end

    def stop(self) -> None:
        """Accept no new messages; the waiting ones can still be taken, and iteration ends after them."""
        self._inbox.close()

    def unfinished(self) -> list[Message]:
        """Everything that has no fate yet."""
        return self._inbox.unfinished()

    async def quiet(self) -> None:
        """Return when nothing is in flight here: all messages so far were taken and handled."""
        await self._inbox.quiet()

    @property
    def busy(self) -> bool:
        """Whether messages are in flight here, or in transit to this stream."""
        return bool(self._inbox.in_flight)

    async def drained(self) -> None:
        """After `stop`: return when all messages were taken and handled, or at once if no task takes from it."""
        inbox = self._inbox
        if inbox.books.delivered or inbox.held or inbox.sleepers:
            await self.quiet()

    async def aclose(self) -> None:
        """End the subscription. Messages that were not taken go to another member of the group, or are dropped."""
        if self._inbox.leave is not None:
            self._inbox.leave(self._inbox)

    async def __aenter__(self) -> Stream:
        await self.opened()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        inbox = self._inbox
        if not inbox.gone:
            # No task can take from it any more. The next publish removes it; waiting publishers are released now.
            warnings.warn(
                f"{inbox.name} was never closed: use `async with`, or aclose()", ResourceWarning, stacklevel=2
            )
            inbox.abandoned = True
            inbox.room = 0
            if inbox.run is not None:
                # Closed by the next publish, not now: this may be called in the middle of one.
                inbox.run.room = inbox.run.reserved = 0
            if inbox.parked:
                parked = inbox.parked[0].entered
                parked.get_loop().call_soon_threadsafe(inbox.leave or Inbox.close, inbox)


def bytes_of(messages: Sequence[Message]) -> list[bytes]:
    """The payloads of the messages. A payload in shared memory is copied."""
    if isinstance(messages, MessageBatch):
        return messages.payloads()
    payloads = [message.payload for message in messages]
    return payloads if set(map(type, payloads)) == {bytes} else list(map(bytes, payloads))
