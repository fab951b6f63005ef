"""A feed: one subscription at a remote broker, and the local inbox or tap that it fills."""

from __future__ import annotations

import abc
import asyncio
import logging
from math import inf
from typing import Any

from trunkline import columns
from trunkline.brokers.remote.adapter import (
    ENDLESS,
    Adapter,
    Arrival,
    ArrivedBody,
    DeadLetterKeeper,
    DropNotice,
    Origin,
    SubscribeRequest,
    SubscriptionTerms,
)
from trunkline.brokers.remote.places import Gap, Places
from trunkline.brokers.remote.reporter import Reporter
from trunkline.delivery.books import reaches
from trunkline.delivery.fates import Fate, Outcome
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.options import Delivery
from trunkline.delivery.route import Take
from trunkline.delivery.shared_body import SharedBody
from trunkline.delivery.subscriber import Overflow
from trunkline.delivery.unopened import UnopenedBatch
from trunkline.errors import HubUnavailable, InvalidPayload, Refused
from trunkline.message import Message
from trunkline.plural import counted

log = logging.getLogger("trunkline.connection")

DOWN = "the broker or the connection was down"
NO_RECORD = "no record of it here: it is on its way, was lost, or arrived longer ago than is remembered"
CHECK_S = 0.02
"""How often a full inbox is checked. An iterator takes messages out of it without a call that could be noticed."""


class Feed(abc.ABC):
    """The common part of all feeds: opening, opening again after a reconnection, closing."""

    def __init__(self, adapter: Adapter, number: int, pattern: str) -> None:
        self.adapter = adapter
        self.number = number
        self.pattern = pattern
        self.closed = False
        self.woken: list[Inbox] = []
        """Inboxes that received messages while a worker was waiting."""
        self.missed = 0
        """Messages that were published during the subscription and never arrived: the broker or the connection was
        down."""
        self.why_missing = DOWN
        self._opening: asyncio.Future[None] | None = None

    @property
    def opening(self) -> asyncio.Future[None]:
        """Done when the broker has confirmed the subscription for the first time."""
        if self._opening is None:
            # Created on first use: a bus may be created before its event loop runs.
            self._opening = asyncio.get_running_loop().create_future()
            self._opening.add_done_callback(_retrieve)
        return self._opening

    @abc.abstractmethod
    def request(self) -> SubscribeRequest:
        """The request to the broker."""

    @abc.abstractmethod
    def take(self, head: Arrival, body: ArrivedBody) -> None:
        """Process a batch that has arrived."""

    def open(self) -> None:
        """Request the subscription if there is a connection. Otherwise it is requested when there is one."""
        if self.adapter.live and not self.closed:
            self.adapter.subscribe(self.request(), self._opened)

    def _opened(self, answer: SubscriptionTerms | Exception) -> None:
        if self.closed or isinstance(answer, HubUnavailable):
            # If the connection ended, the subscription is opened on the next one.
            return
        if not isinstance(answer, Exception):
            self.subscribed(answer)
            if not self.opening.done():
                self.opening.set_result(None)
        elif not self.opening.done():
            self.opening.set_exception(answer)
            log.debug("%s refused the subscription to %s: %s", self.adapter.url, self.pattern, answer)
        elif self.opening.exception() is None:
            log.error("%s did not resume the subscription to %s: %s", self.adapter.url, self.pattern, answer)

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
        self.adapter.unsubscribe(self.number, self.pattern)

    def subscribed(self, terms: SubscriptionTerms) -> None:
        return

    def dropped(self, notice: DropNotice) -> None:
        return

    def stop(self) -> None:
        return

    def report_now(self) -> None:
        """Answer the broker's request for the fates of delivered messages."""
        return

    def read(self, head: Arrival, body: ArrivedBody) -> tuple[list[Message], bool]:
        """The messages of a batch, and whether all are plain.

        A batch that cannot be read is counted, and returns none.
        """
        try:
            if type(body) is memoryview:
                if head.count == 1 and head.seqs is None:
                    return columns.read_one(head.topic, body, head.first)
                seqs = range(head.first, head.first + head.count) if head.seqs is None else head.seqs
                return columns.read_batch(head.topic, body, seqs)
            message, plain = body.read(head.topic, head.first)
            return [message], plain
        except InvalidPayload as error:
            self.unreadable(head, body, error)
            return [], True

    def unreadable(self, head: Arrival, body: ArrivedBody, error: InvalidPayload) -> None:
        """Called when a batch cannot be read."""
        self.adapter.malformed += 1
        log.error("%s on %s could not be read: %s", counted(head.count, "message"), head.topic, error)


class TapFeed(Feed):
    """A feed for the bus itself: replies to requests, routing rules."""

    def __init__(self, adapter: Adapter, number: int, pattern: str, take: Take, hears: bool) -> None:
        super().__init__(adapter, number, pattern)
        self._take = take
        self._hears = hears

    def request(self) -> SubscribeRequest:
        return SubscribeRequest(
            subscription=self.number,
            pattern=self.pattern,
            name=f"tap {self.number}",
            credit=ENDLESS,
            overflow=Overflow.DROP_OLDEST.value,
            tap=True,
            hears=self._hears,
        )

    def take(self, head: Arrival, body: ArrivedBody) -> None:
        for message in self.read(head, body)[0]:
            for sink in self._take(message) or ():
                try:
                    sink.offer(message)
                except Refused as error:
                    log.warning("%s refused a message on %s that was routed to it: %s", sink, message.id, error)


class InboxFeed(Feed):
    """Fills an inbox, and gives the broker credit, in messages and in bytes, as it is emptied."""

    def __init__(self, adapter: Adapter, number: int, inbox: Inbox, delivery: Delivery) -> None:
        super().__init__(adapter, number, inbox.pattern)
        self.inbox = inbox
        self._delivery = delivery
        self._endless = delivery.overflow in (Overflow.DROP_OLDEST, Overflow.DROP_NEWEST)
        self._credit = 0
        """Messages that the broker may still deliver."""
        self._worth = max(1, inbox.capacity // 4)
        """The least credit, in messages, that is sent to the broker while it still has some."""
        self._enough = -inf if self._endless else inbox.capacity - self._worth
        """While the broker has more credit than this, the room in the inbox is too small to send more."""
        self._max_bytes = adapter.max_inbox_bytes
        self._half = self._max_bytes // 2
        self._credit_bytes = 0
        """Bytes that the broker may still deliver. Below 0 if the last batch was larger than that."""
        self._check: asyncio.TimerHandle | None = None
        self._places = Places()
        self._opened_ns = 0
        """When the broker confirmed the subscription for the first time."""
        self._reporter: Reporter | None = None
        self.dead_letters: DeadLetterKeeper | None = None
        inbox.refill = self.give_credit

    def open(self) -> None:
        self.adapter.open()
        super().open()

    def request(self) -> SubscribeRequest:
        inbox, delivery = self.inbox, self._delivery
        self._credit = max(0, inbox.free)
        self._credit_bytes = max(1, self._max_bytes - self._bytes_here())
        inbox.refill_at = -1
        return SubscribeRequest(
            subscription=self.number,
            pattern=self.pattern,
            name=inbox.name,
            credit=ENDLESS if self._endless else self._credit,
            credit_bytes=self._credit_bytes,
            capacity=inbox.capacity,
            overflow=inbox.overflow.value,
            group=delivery.group,
            durable=delivery.durable,
            start=delivery.start,
            reports=True,
            one_of=delivery.one_of,
        )

    def subscribed(self, terms: SubscriptionTerms) -> None:
        self._opened_ns = self._opened_ns or self.inbox.time_ns()
        if terms.role:
            self.inbox.role = terms.role
        if self._reporter is not None:
            self._reporter.resume()
        elif terms.report_s is not None:
            self.inbox.ledger = self._reporter = Reporter(self.adapter, self.number, self.inbox, terms.report_s)
            if self.dead_letters is not None:
                self._reporter.handled = self.dead_letters.handled

    def replayed(self, seq: int) -> None:
        """Note that a dead letter of this subscription is in its inbox again."""
        if self._reporter is not None:
            self._reporter.replayed.add(seq)

    def has_replayed(self, seq: int) -> bool:
        """Whether a dead letter was replayed here, and has no other fate yet."""
        return self._reporter is not None and seq in self._reporter.replayed

    def report(self) -> None:
        """Send the fates that were not reported yet."""
        if self._reporter is not None:
            self._reporter.report()

    def report_now(self) -> None:
        if self._reporter is not None:
            self._reporter.report_now()

    def take(self, head: Arrival, body: ArrivedBody) -> None:
        if self.closed:
            return
        if missing := self._places.passed(head.origin, head.topic, head.priority, head.position, head.count):
            self._miss_before(head, missing)
        count, first, inbox = head.count, head.first, self.inbox
        if self._reporter is not None:
            self._reporter.arrived(first, first + count - 1)
        kept = inbox.batch_readers > 0 and self._keep(head, body)
        if not kept and inbox.unopened is not None:
            # To keep the order, unopened batches are opened first.
            inbox.open_all()
        messages, plain = ([], True) if kept else self.read(head, body)
        self._credit -= count
        self._credit_bytes -= len(body)
        if messages:
            self.fill(messages, plain)
        if self._credit <= self._enough or self._credit_bytes <= self._half:
            self.give_credit()

    def _keep(self, head: Arrival, body: ArrivedBody) -> bool:
        """Keep plain messages as columns, if there is room."""
        if type(body) is not memoryview or head.seqs is not None:
            return False
        inbox, count = self.inbox, head.count
        found = columns.read_plain(body, count)
        if found is None or not inbox.keep(UnopenedBatch(head.topic, head.first, count, found, len(body))):
            return False
        if inbox.sleepers:
            self.woken.append(inbox)
        return True

    def unreadable(self, head: Arrival, body: ArrivedBody, error: InvalidPayload) -> None:
        super().unreadable(head, body, error)
        if self._reporter is not None:
            self._reporter.unreadable(head.first, head.first + head.count - 1)
        if type(body) is SharedBody:
            # The broker ended before the shared memory could be opened here.
            self._miss(head.count, head.topic)

    def fill(self, messages: list[Message], plain: bool) -> None:
        inbox = self.inbox
        if plain and inbox.gate is None and len(inbox.queue) + len(messages) <= inbox.room:
            inbox.books.accepted += len(messages)
            inbox.queue.extend(messages)
            if inbox.sleepers:
                self.woken.append(inbox)
            return
        for message in messages:
            try:
                inbox.offer(message)
            except Refused as error:
                # The inbox has already counted it.
                log.debug("%s refused %s: %s", inbox.name, message.id, error)

    def give_credit(self) -> None:
        """Give the broker credit for the room in the inbox, if there is enough to be worth a message."""
        if self._credit > self._enough and self._credit_bytes > self._half:
            return
        inbox = self.inbox
        if self.closed or inbox.closed:
            return
        spare = 0 if self._endless else inbox.free - self._credit - len(inbox.parked)
        room = spare if spare >= self._worth or (spare > 0 and not self._credit) else 0
        size = 0
        if self._credit_bytes <= self._half:
            # The bytes in the inbox are counted only when half of the credit is used up. That is rare, unless the inbox
            # is full.
            size = self._max_bytes - self._bytes_here() - self._credit_bytes
            size = size if size >= self._half // 2 else 0
        self._credit += room
        self._credit_bytes += size
        short = not self._endless and self._credit < self._worth
        # Also while the broker has credit: a batch that needs more than that may be waiting there.
        inbox.refill_at = -1 if self._endless else len(inbox.queue) + spare - room - self._worth
        if self._credit_bytes <= self._half:
            short = True
            inbox.refill_at = max(inbox.refill_at, len(inbox.queue) // 2)
        if short and self._check is None:
            self._check = asyncio.get_running_loop().call_later(CHECK_S, self._look)
        if room or size:
            # Last, because new messages may arrive before this call returns.
            self.adapter.credit(self.number, room, size)

    def _bytes_here(self) -> int:
        return self.inbox.bytes_waiting()

    def _look(self) -> None:
        self._check = None
        self.give_credit()

    def _miss_before(self, head: Origin, count: int) -> None:
        """Record that `count` messages of the same publisher before these never arrived."""
        reason = self.why_missing
        first = head.position - count
        gap = Gap(head.origin, head.topic, head.priority, first, head.position, reason, self.inbox.time_ns())
        self._places.miss(gap)
        self._miss(count, head.topic, reason)

    def _miss(self, count: int, topic: str, reason: str = DOWN) -> None:
        log.warning("%s misses %s on %s: %s", self.inbox.name, counted(count, "message"), topic, reason)
        self.missed += count
        self.inbox.books.miss(count)

    def without_record(self, topic: str, place: tuple[int, int, int], at_ns: int) -> Outcome | None:
        """The outcome of a message on a topic that has no number here: it never arrived, or it was forgotten.

        `place` is its publisher, priority and position. None if it was published before the subscription was made.
        """
        origin, priority, position = place
        if not reaches(topic, self.pattern):
            return None
        if (gap := self._places.gap(origin, topic, priority, position)) is not None:
            return Outcome(self.inbox.role, Fate.DROPPED, f"it never arrived: {gap.reason}", gap.at_ns)
        return Outcome(self.inbox.role, Fate.UNKNOWN, NO_RECORD) if 0 < self._opened_ns < at_ns else None

    def dropped(self, notice: DropNotice) -> None:
        place = (notice.origin, notice.topic, notice.priority, notice.position, notice.count)
        count = notice.count - (self._places.overlap(*place) if notice.origin else 0)
        if missing := self._places.passed(*place):
            self._miss_before(notice, missing)
        inbox = self.inbox
        inbox.books.drop_elsewhere(count, notice.ranges, notice.reason, inbox.time_ns())

    def close(self) -> None:
        if self._reporter is not None:
            self._reporter.close()
        super().close()
        if self._check is not None:
            self._check.cancel()


def _retrieve(future: asyncio.Future[Any]) -> None:
    # Retrieves the error, so that asyncio does not report it as unretrieved if no task awaits the future.
    if not future.cancelled():
        future.exception()
