"""A member: a subscriber in another process that shares messages with others, or whose cursor is in the journal.

Inside the hub it is a stream of the engine that acknowledges. A message that was sent stays in its custody until the
client reports on it. If the client is gone, the message goes to another member, or waits in the journal for the next
subscriber of that name.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Protocol

from msgspec.structs import replace

from trunkline import columns
from trunkline.delivery.batch import BatchBody
from trunkline.delivery.dead_letters import DeadLetter, DeadLetters
from trunkline.delivery.fates import Fate
from trunkline.delivery.shared_body import body_of
from trunkline.delivery.stream import Stream
from trunkline.hub.access import reaches
from trunkline.hub.member_bytes import MemberBytes
from trunkline.message import Message
from trunkline.topic import REPLY_PREFIX
from trunkline.wire.frames import MIN_SHARED_BYTES

log = logging.getLogger("trunkline.hub")

MAX_BATCH = 1000
BATCH_BYTES = 1024 * 1024
"""The size of a frame, unless it is one larger message."""
ENDLESS = 2**62
MAX_DEAD = 1000
"""The number of dead letters of a member that a hub without a journal remembers. Its client may replay them."""


class MemberClient(Protocol):
    @property
    def full(self) -> bool: ...

    async def drained(self) -> None:
        """Wait until the connection can take more output."""

    def end(self, reason: str) -> None: ...

    max_body_bytes: int
    """The largest frame that the client accepts."""
    max_waiting_bytes: int
    """The number of bytes that it may hold without reporting on them."""

    def deliver_some(self, subscription: int, topic: str, seqs: list[int], body: BatchBody) -> None: ...


class Member:
    def __init__(
        self,
        client: MemberClient,
        subscription: int,
        stream: Stream,
        credit: int,
        private_replies: bool = False,
        credit_bytes: int = -1,
        letters: DeadLetters | None = None,
    ) -> None:
        self._client = client
        self.subscription = subscription
        self.stream = stream
        self.group = ""
        """The group it is a member of, if any."""
        self._credit = credit if credit >= 0 else ENDLESS
        self._credit_bytes = credit_bytes if credit_bytes >= 0 else ENDLESS
        self._private_replies = private_replies
        self._held: dict[int, Message] = {}
        self._held_bytes = 0
        self._letters = letters
        """The dead letters of a hub without a journal. The client replays them itself, and reports their fates."""
        self._dead: dict[int, DeadLetter] = {}
        self._room = asyncio.Event()
        self._bytes: MemberBytes | None = None
        self._task = asyncio.ensure_future(self._feed())
        self._task.add_done_callback(self._fed)

    @property
    def name(self) -> str:
        return self.stream.name

    def bound_bytes(self) -> None:
        """Limit the bytes that wait for this member in the hub. Messages fed from a journal have a separate limit."""
        self._bytes = MemberBytes(self.stream.inbox, self._client.max_waiting_bytes)

    @property
    def held(self) -> int:
        """The number of messages that the client has and has not reported on."""
        return len(self._held)

    async def _feed(self) -> None:
        while await self.stream.more():
            if self._client.full:
                await self._client.drained()
            batch: list[Message] = []
            size = 0
            room = self._client.max_waiting_bytes - self._held_bytes if self._held else BATCH_BYTES
            room = min(room, self._credit_bytes)
            while (
                len(batch) < min(self._credit, MAX_BATCH)
                and size < min(room, BATCH_BYTES)
                and (message := self.stream.take()) is not None
            ):
                if self._private_replies and not self._may_get(message):
                    self.stream.custody.end(message, Fate.FILTERED, "an answer goes only to its requester")
                else:
                    batch.append(message)
                    size += len(message.payload)
            if batch and self._bytes is not None:
                self._bytes.taken()
            if batch:
                self._credit -= len(batch)
                self._send(batch, large=size >= MIN_SHARED_BYTES)
                # Otherwise an acknowledged message would be kept in memory until the next one arrives.
                batch, message = [], None
            elif self._credit <= 0 or room <= 0:
                self._room.clear()
                await self._room.wait()

    def _may_get(self, message: Message) -> bool:
        return not message.topic.startswith(REPLY_PREFIX) or reaches(self.stream.pattern, message.topic)

    def _fed(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            # Ending the connection makes the client reconnect. Otherwise it would wait for ever.
            log.error("the hub failed to deliver messages to %s", self.name, exc_info=error)
            self._client.end(f"the hub failed to deliver messages to {self.name}: read its log for the cause")

    def _send(self, batch: list[Message], *, large: bool) -> None:
        runs = list(_apart(batch) if large else _by_topic(batch))
        while runs:
            run = runs.pop(0)
            body = body_of(run[0]) if large and len(run) == 1 else columns.pack_batch(run)
            if len(body) <= self._client.max_body_bytes:
                self._hold(run)
                self._credit_bytes -= len(body)
                self._client.deliver_some(self.subscription, run[0].topic, [message.seq for message in run], body)
            elif len(run) > 1:
                # Headers count as well: they may be larger than the payload.
                half = len(run) // 2
                runs[:0] = [run[:half], run[half:]]
            else:
                self._credit += 1
                self.stream.custody.end(
                    run[0],
                    Fate.DROPPED,
                    f"a frame of {len(body):,} bytes: its subscriber accepts at most {self._client.max_body_bytes:,}",
                )

    def _hold(self, run: list[Message]) -> None:
        for message in run:
            self._held[message.seq] = message
            self._held_bytes += len(message.payload)

    def _release(self, seq: int) -> Message | None:
        """Release a message that the client has reported on. None if it was not held."""
        message = self._held.pop(seq, None)
        if message is not None:
            self._held_bytes -= len(message.payload)
            self._room.set()
        return message

    def grant(self, messages: int, size: int = 0) -> None:
        self._credit += messages
        self._credit_bytes += size
        self._room.set()

    # Reports of the client

    def ack(self, ranges: Sequence[tuple[int, int]]) -> None:
        held, dead = self._held, self._dead
        claimed = max(len(ranges), sum(last - first + 1 for first, last in ranges if last >= first))
        # Processing an invalid report must not take longer than processing a valid one.
        exact = claimed <= 2 * (len(held) + len(dead))
        seqs = [seq for first, last in ranges for seq in range(first, last + 1)] if exact else _within(held, ranges)
        for seq in seqs:
            if (message := self._release(seq)) is not None:
                self.stream.ack(message)
            elif dead and exact:
                # A range that is larger than what the client holds does not include dead letters.
                self._end_again(seq, Fate.DELIVERED, "")

    def settle(self, seq: int, fate: Fate, reason: str) -> None:
        if (message := self._release(seq)) is not None:
            self.stream.custody.end(message, fate, reason)
        else:
            self._end_again(seq, fate, reason)

    def bury(self, seq: int, letter: DeadLetter) -> None:
        message = self._release(seq)
        before = self._dead.get(seq)
        given = message if message is not None or before is None else before.message
        if given is None:
            return
        # The cause and the attempts come from the client. The message is the one that it was sent.
        inbox, tried = self.stream.inbox, replace(given, attempts=letter.message.attempts)
        letter = replace(letter, message=tried, subscriber=inbox.role)
        if message is not None:
            self.stream.custody.bury(message, letter)
        elif self._end_again(seq, Fate.DEAD, f"{letter.cause}: {letter.reason}") and self._letters is not None:
            self._letters.add(letter, inbox)
        if self._letters is not None:
            self._dead[seq] = letter
            if len(self._dead) > MAX_DEAD:
                del self._dead[next(iter(self._dead))]

    def _end_again(self, seq: int, fate: Fate, reason: str) -> bool:
        """Record the new fate of a dead letter that the client has replayed."""
        letter = self._dead.pop(seq, None)
        if letter is None or self._letters is None:
            return False
        self._letters.remove(letter)
        inbox = self.stream.inbox
        inbox.books.reopen()
        if fate is Fate.DELIVERED:
            inbox.books.deliver_one(seq, inbox.time_ns())
        else:
            inbox.settle(letter.message, fate, reason)
        return True

    def give_back(self, seq: int) -> None:
        """Take a message back from the client, and pass it to another member."""
        if (message := self._release(seq)) is not None and self.stream.custody.give_back(message):
            self._pass_on()

    def stop(self) -> None:
        """Accept nothing new. Messages that were not sent go to other members."""
        self.stream.stop()
        self._pass_on()

    def _pass_on(self) -> None:
        inbox = self.stream.inbox
        if inbox.closed:
            # From the last to the first: each is put in front of the one before, so the order is kept.
            for message in reversed(inbox.discard()):
                if not inbox.pass_on(message):
                    inbox.settle(message, Fate.DROPPED, "its subscriber was closed, and the group has no other member")

    async def aclose(self) -> None:
        """Remove the member. Its messages, held and waiting, go to other members."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.stream.aclose()
        self._held.clear()


def _within(seqs: Iterable[int], ranges: Sequence[tuple[int, int]]) -> list[int]:
    """The numbers that are in one of the ranges."""
    begins: list[int] = []
    ends: list[int] = []
    for first, last in sorted(ranges):
        if ends and first <= ends[-1]:
            ends[-1] = max(ends[-1], last)
        else:
            begins.append(first)
            ends.append(last)
    return [seq for seq in seqs if (place := bisect_right(begins, seq)) and seq <= ends[place - 1]]


def _apart(batch: list[Message]) -> Iterable[list[Message]]:
    """As `_by_topic`, but each message in shared memory is a separate run."""
    for run in _by_topic(batch):
        for is_shared, same in groupby(run, key=lambda message: type(message.payload) is memoryview):
            messages = list(same)
            yield from ([message] for message in messages) if is_shared else [messages]


def _by_topic(batch: list[Message]) -> Iterable[list[Message]]:
    """Split a batch into runs of consecutive messages on one topic."""
    run: list[Message] = []
    for message in batch:
        if run and message.topic != run[0].topic:
            yield run
            run = []
        run.append(message)
    if run:
        yield run
