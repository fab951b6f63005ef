"""The lane of one topic. A publish that need not wait adds its message directly to the pending batch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from trunkline.brokers.remote.adapter import TopicTerms
from trunkline.delivery.pending import Failures, Owner, RunOwner
from trunkline.delivery.plain_run import PlainRun
from trunkline.delivery.route import DONE, is_plain
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.brokers.remote.outbox import Outbox

SOON = 256
"""When this many messages wait on one topic, they are sent without waiting for the end of the turn."""
LONG = 8
"""This many consecutive plain messages are sent as a separate batch.

In a batch with a message of another kind, none of them could be encoded as columns.
"""
FEW = 4
"""A run can follow at most this many messages that were added to the batch one by one."""
LARGE_BYTES = 64 * 1024
"""A larger message is counted when it is added, so that the window in bytes also holds within a turn."""


class RemoteLane:
    """The publishing path of one topic."""

    __slots__ = (
        "asks_who_is_full",
        "confirm",
        "durable",
        "has_subscribers",
        "immediate",
        "in_flight",
        "outbox",
        "published",
        "terms",
        "topic",
        "waiting",
    )

    plain = None
    stored = True
    unserved = False

    def __init__(self, outbox: Outbox, topic: str) -> None:
        self.outbox = outbox
        self.topic = topic
        self.terms: TopicTerms | None = None
        self.has_subscribers = True
        self.confirm = True
        self.durable = False
        self.asks_who_is_full = False
        """Whether a publish waits, and the broker was asked which subscribers are full."""
        self.immediate = False
        """Whether a publish need not wait: the terms are known, need no confirmation or check, and no other publish
        waits."""
        self.in_flight = 0
        """Messages that the broker has not confirmed."""
        self.published: dict[int, int] = {}
        """Messages published so far, by priority."""
        self.waiting: list[asyncio.Future[None]] = []
        """Publishers that wait for room."""

    def learn(self, terms: TopicTerms) -> None:
        self.terms = terms
        self.has_subscribers = terms.heard
        self.confirm = terms.confirm
        self.durable = terms.durable
        self.measure()

    def measure(self) -> None:
        self.immediate = self.terms is not None and not self.confirm and not self.waiting and self.terms.schema is None
        # The next publish may take another path.
        self.close_run()

    def close_run(self) -> None:
        pending = self.outbox.pending.get(self.topic)
        if pending is not None and pending.run is not None:
            pending.run.close()

    def count_run(self, run: PlainRun) -> None:
        self.in_flight += len(run)

    def send_run(self, *, full: bool) -> None:
        """Send the pending run. With `full`, send it only if nothing more fits into it."""
        pending = self.outbox.pending.get(self.topic)
        if pending is not None and pending.run is not None and not (full and len(pending.run) < pending.run.room):
            self.outbox.send_now(pending)

    def begin_run(self, sender: str, content_type: str, *, several: bool = False) -> PlainRun | None:
        """Begin a run to which the bus can append. None if that is not possible now."""
        outbox = self.outbox
        self.send_run(full=not several)
        if self.in_flight >= outbox.window or not self.immediate or outbox.full:
            return None
        pending = outbox.pending.get(self.topic)
        if pending is not None and not pending.plain and not pending.waiters:
            pending.plain_tail += 1
            if pending.plain_tail > LONG:
                outbox.send_pending(pending)
                pending = None
        if pending is None:
            pending = outbox.begin(self)
        elif pending.run is not None or pending.waiters or not pending.plain or len(pending.messages) > FEW:
            return None
        run = PlainRun(self, sender, content_type, min(SOON - len(pending.messages), outbox.window - self.in_flight))
        return run if pending.begin_run(run) else None

    def reserve(self, count: int) -> int:
        return 0

    def put_now(self, message: Message) -> bool:
        outbox = self.outbox
        if self.in_flight >= outbox.window or not self.immediate or outbox.full:
            return False
        if outbox.idle:
            outbox.send_lone(self, message, plain=True)
            return True
        pending = outbox.pending.get(self.topic)
        if pending is None:
            pending = outbox.begin(self)
        elif pending.run is not None:
            pending.open()
        messages = pending.messages
        if pending.waiters:
            pending.leave([message])
        else:
            messages.append(message)
        self.in_flight += 1
        if len(messages) >= SOON:
            outbox.send_now(pending)
        return True

    def put(self, message: Message, *, alike: bool) -> Awaitable[Failures]:
        outbox = self.outbox
        if (
            outbox.idle
            and self.immediate
            and len(message.payload) <= outbox.small_bytes
            and self.in_flight < outbox.window
            and not outbox.full
        ):
            if outbox.pending:
                outbox.send_topic(self.topic)
            outbox.send_lone(self, message, plain=alike)
            return DONE
        if alike and len(message.payload) <= LARGE_BYTES and self.put_now(message):
            return DONE
        return self.put_many((message,), alike=alike)

    def owned_run(self, sender: str, content_type: str, owner: RunOwner) -> None:
        """None: a run that is sent again after a reconnection is not built yet."""

    def post(self, message: Message, owner: Owner) -> bool:
        outbox = self.outbox
        if self.terms is None or (outbox.checks_alone and self.terms.schema is not None):
            # The terms decide whether the message is sent again after a reconnection, and whether it must be checked
            # here.
            return False
        pending = outbox.opened(self.topic)
        if pending is None:
            pending = outbox.begin(self)
        pending.post(message, owner)
        return True

    def put_many(self, messages: Sequence[Message], *, alike: bool) -> Awaitable[Failures]:
        outbox = self.outbox
        size = 0
        if not alike and (len(messages) > 1 or len(messages[0].payload) > outbox.small_bytes):
            # Otherwise the messages are known to be small.
            size = outbox.weigh(messages)
        apart = not alike and not is_plain(messages[0])
        if size <= LARGE_BYTES and self.immediate and self.in_flight < outbox.window and not outbox.full:
            if apart or (outbox.idle and len(messages) == 1):
                # Messages of another kind than the rest of the topic always need a separate frame.
                outbox.send_topic(self.topic)
                outbox.send_first(self, list(messages), plain=alike)
                return DONE
            cut = not alike and self._cut_run()
            pending = outbox.opened(self.topic)
            if pending is None:
                pending = outbox.begin(self)
            pending.plain_tail = LONG if cut else 0
            pending.alike = alike and not pending.messages
            pending.plain = pending.plain and alike
            if pending.waiters:
                pending.leave(messages)
            else:
                pending.messages.extend(messages)
            self.in_flight += len(messages)
            if len(pending.messages) >= SOON:
                outbox.send_now(pending)
            return DONE
        return self._put_apart(messages) if apart else outbox.put_slowly(self, messages, alike=alike)

    def _cut_run(self) -> bool:
        """Send the pending run, if it is long."""
        pending = self.outbox.pending.get(self.topic)
        if pending is None or pending.run is None or pending.waiters or len(pending.run) < LONG:
            return False
        self.outbox.send_pending(pending)
        return True

    async def _put_apart(self, messages: Sequence[Message]) -> Failures:
        """Send messages of another kind than the rest, in a separate frame."""
        outbox = self.outbox
        outbox.send_topic(self.topic)
        try:
            return await outbox.put_slowly(self, messages, alike=False)
        finally:
            outbox.send_topic(self.topic)

    def put_alone(self, messages: Sequence[Message], *, again: bool) -> Awaitable[Failures]:
        """Send the messages as one batch, and wait for confirmation. `again`: the broker may have them already."""
        return self.outbox.put_alone(self, messages, again=again)
