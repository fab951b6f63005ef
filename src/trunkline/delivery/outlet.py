"""An outlet: the queue of batches for one remote subscriber of the hub. It sends no more than it has credit for.

Without credit the subscriber's policy decides: with `block` the batch waits, and so does its publisher; with `reject`
the publisher gets an error. With the other two policies the subscriber's own inbox drops messages, and its credit is
unlimited; the outlet drops messages only if the connection does not drain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from trunkline.delivery.batch import Batch, BatchBody, BatchPart
from trunkline.delivery.books import LOST, MAX_ROWS_ELSEWHERE, Books, reaches
from trunkline.delivery.fates import Account, Fate, Outcome
from trunkline.delivery.ledger import Ledger
from trunkline.delivery.subscriber import Overflow, Subscriber
from trunkline.errors import InvalidPayload
from trunkline.message import Message
from trunkline.wire.control import Dropped, FateRow
from trunkline.wire.frames import DeliverHead, PublishHead

ENDLESS = -1
_DELIVERED = Fate.DELIVERED.value
MAX_EARLIER = 10_000
"""The maximum range of messages from before this run of the hub that one report may add to the books. A larger range is
reported only to the journal."""
MAX_FAILURES = 100_000
"""If more messages of a batch are refused, the whole batch is reported as refused: the report must not exceed the
batch."""


class OutletClient(Protocol):
    """The connection of a subscriber."""

    waiting_bytes: int
    """The bytes that wait in those of its outlets that drop messages. No publisher waits for them."""
    max_waiting_bytes: int
    max_body_bytes: int
    """The maximum size of a body in one frame."""

    @property
    def full(self) -> bool:
        """Whether the connection drains too slowly to send more."""

    def deliver(self, head: DeliverHead, body: BatchBody) -> None: ...

    def count_dropped(self, count: int) -> None: ...

    def send_dropped(self, dropped: Dropped) -> None: ...

    def congested(self, outlet: Outlet) -> None:
        """Register an outlet that waits until the connection drains."""


class Outlet(Subscriber[BatchPart]):
    __slots__ = (
        "_client",
        "_last_lost",
        "_leads",
        "_since_ns",
        "credit",
        "credit_bytes",
        "hears",
        "one_of",
        "reports",
        "subscription",
        "tap",
        "waiting",
        "waiting_bytes",
    )

    def __init__(
        self,
        client: OutletClient,
        subscription: int,
        pattern: str,
        name: str,
        *,
        capacity: int,
        overflow: Overflow,
        credit: int,
        credit_bytes: int = ENDLESS,
        time_ns: Callable[[], int],
        leads: Callable[[str, str], bool] = reaches,
        hears: bool = True,
        reports: bool = False,
        tap: bool = False,
        ledger: Ledger | None = None,
        books: Books | None = None,
        one_of: object = None,
    ) -> None:
        known = Books(MAX_ROWS_ELSEWHERE) if books is None else books
        super().__init__(name, pattern, time_ns, capacity, overflow, known)
        self._client = client
        self._leads = leads
        self.subscription = subscription
        self.credit = credit
        """How many more messages may be sent; ENDLESS if there is no limit."""
        self.credit_bytes: float = inf if credit_bytes == ENDLESS else credit_bytes
        """How many more bytes may be sent. The last batch may exceed it."""
        self.hears = hears
        self._last_lost: BatchPart | None = None
        """The last entry of the queue, if that is the notice of a loss."""
        self.waiting = 0
        """The number of messages that wait here."""
        self.waiting_bytes = 0
        self._since_ns = 0
        self.tap = tap
        """Whether it serves an internal part of a bus. That is not a subscriber, and has no account."""
        self.reports = reports
        """Whether its client reports the fates of messages. If not, messages count as delivered when they are sent."""
        self.ledger = ledger
        self.one_of = one_of
        """Among outlets with the same value, one whose pattern is exactly the topic of a message gets it alone."""

    def offer(self, batch: Batch) -> None:
        self.books.accepted += batch.count
        part = BatchPart(batch, batch.first, batch.count, batch.body)
        if not self._lanes and self._may_send(batch.count):
            self._send(part)
        else:
            self._overflow(self.overflow, part)

    def offer_straight(self, head: PublishHead, body: BatchBody, origin: int, first: int) -> bool:
        """Like `offer`, without building a Batch.

        If the messages cannot be sent now, returns False and changes nothing.
        """
        count, client, lanes, size, credit = head.count, self._client, self._lanes, len(body), self.credit
        if (
            lanes.normal
            or lanes.elsewhere
            or (credit < count and credit != ENDLESS)
            or self.credit_bytes <= 0
            or size > client.max_body_bytes
            or client.full
        ):
            return False
        # Like `_hand`, but it sends first: the subscriber can work while the counters are updated.
        client.deliver(
            DeliverHead(self.subscription, first, head.topic, count, None, origin, head.position, head.priority), body
        )
        books = self.books
        books.accepted += count
        if credit != ENDLESS:
            self.credit = credit - count
        self.credit_bytes -= size
        if self.reports:
            books.hand(first, first + count - 1, self.time_ns())
        else:
            books.delivered += count
        return True

    def _may_send(self, count: int) -> bool:
        return (self.credit == ENDLESS or self.credit >= count) and self.credit_bytes > 0 and not self._client.full

    def _send(self, part: BatchPart) -> None:
        if len(part.body) > self._client.max_body_bytes:
            self._send_in_parts(part)
            return
        batch = part.batch
        place = part.position
        self._hand(
            DeliverHead(
                self.subscription, part.first, batch.topic, part.count, None, batch.origin, place, batch.priority
            ),
            part.body,
        )

    def _hand(self, head: DeliverHead, body: BatchBody) -> None:
        first, count = head.first, head.count
        if self.credit != ENDLESS:
            self.credit -= count
        self.credit_bytes -= len(body)
        if self.reports:
            self.books.hand(first, first + count - 1, self.time_ns())
        else:
            self.books.delivered += count
        self._client.deliver(head, body)

    def _send_in_parts(self, part: BatchPart) -> None:
        """Send a body that is too large for the client in parts. A single message that is too large is dropped."""
        reason = f"a frame of {len(part.body):,} bytes: its subscriber accepts at most {self._client.max_body_bytes:,}"
        try:
            if part.count > 1:
                for half in part.split(part.count // 2):
                    self._send(half)
                return
        except InvalidPayload as error:
            reason = str(error)
        self._lost(part, reason)
        self._report_dropped(part, reason)

    def _enqueue(self, part: BatchPart) -> None:
        if not self._lanes:
            self._since_ns = self.time_ns()
        self._lanes.put(part)
        self._last_lost = None
        self._count(part, 1)
        if self._client.full:
            self._client.congested(self)

    def _wait_for_room(self, part: BatchPart) -> None:
        # The publisher waits until this part is sent.
        part.batch.waiting += 1
        self._count_waiting(part.count)
        self._enqueue(part)
        self.pump()

    def grant(self, messages: int, size: int = 0) -> None:
        if self.credit != ENDLESS:
            self.credit += messages
        self.credit_bytes += size
        self.pump()

    def pump(self, least: int = 0) -> None:
        """Send waiting messages of priority `least` or higher, the highest first, as far as there is credit."""
        while self._lanes and not self.closed:
            if self._client.full:
                self._client.congested(self)
                return
            if least and self._lanes.levels[0] < least:
                return
            part = self._pop()
            if part.why_lost:
                self._report_dropped(part, part.why_lost)
                continue
            if not self.credit or self.credit_bytes <= 0:
                self._push(part)
                return
            if self.credit != ENDLESS and part.count > self.credit:
                if part.count <= self.capacity // 2:
                    # Not worth splitting: it fits when the client has taken more. A client with an empty inbox has
                    # granted credit for at least three quarters of its capacity, and need not grant more before that is
                    # used.
                    self._push(part)
                    return
                try:
                    part, rest = part.split(self.credit)
                except InvalidPayload as error:
                    self._lost(part, str(error))
                    self._report_dropped(part, str(error))
                    self._leave_queue(part)
                    continue
                self._push(rest)
                rest.batch.waiting += 1
            self._send(part)
            self._leave_queue(part)

    def _leave_queue(self, part: BatchPart) -> None:
        if self.overflow is Overflow.BLOCK:
            part.batch.done()

    def _pop(self) -> BatchPart:
        part = self._lanes.pop()
        assert part is not None
        self._count(part, -1)
        return part

    def _push(self, part: BatchPart) -> None:
        self._lanes.put(part, front=True)
        self._count(part, 1)

    def _count(self, part: BatchPart, sign: int) -> None:
        if part.why_lost:
            return
        size = sign * len(part.body)
        self.waiting += sign * part.count
        self.waiting_bytes += size
        if self.overflow is not Overflow.BLOCK:
            self._client.waiting_bytes += size

    # Dropped messages

    def _overfull(self) -> str | None:
        client = self._client
        if self.waiting > self.capacity:
            return f"the connection does not drain, and {self.capacity} wait"
        if self.waiting and client.waiting_bytes > client.max_waiting_bytes:
            return "the connection does not drain, and too many bytes wait"
        return None

    def _evict(self, part: BatchPart, why: str) -> None:
        self._count(part, -1)
        excess = self.waiting + part.count - self.capacity
        if 0 < excess < part.count:
            try:
                part, rest = part.split(excess)
                self._push(rest)
            except InvalidPayload as error:
                why = str(error)
        self._begin_to_lose(Overflow.DROP_OLDEST)
        self._lost(part, why)
        self._report_dropped(part, why)

    def _take_what_fits(self, policy: Overflow, part: BatchPart) -> tuple[BatchPart | None, str]:
        client = self._client
        if policy is Overflow.REJECT:
            room = 0 if client.full or self.credit_bytes <= 0 else max(0, self.credit)
            take, why = self._send, f"rejected: the inbox is full ({self.capacity})"
        else:
            room = self.capacity - self.waiting
            take, why = self._enqueue, f"drop_newest: the connection does not drain, and {self.capacity} wait"
            if client.waiting_bytes + len(part.body) > client.max_waiting_bytes:
                room, why = 0, "drop_newest: the connection does not drain, and too many bytes wait"
        if room >= part.count:
            take(part)
            return None, ""
        try:
            if room > 0:
                first, part = part.split(room)
                take(first)
        except InvalidPayload as error:
            why = str(error)
        self._begin_to_lose(policy)
        return part, why

    def _drop(self, part: BatchPart, why: str) -> None:
        self._lost(part, why)
        if self._lanes:
            # The notice follows the waiting messages: sent out of order, it would look like missing messages.
            self._lose(part, why)
        else:
            self._report_dropped(part, why)

    def _refuse(self, part: BatchPart, why: str) -> None:
        batch = part.batch
        refused = range(batch.count - part.count, batch.count)
        for index in refused if len(refused) <= MAX_FAILURES else (-1,):
            batch.fail(index, "inbox_full", f"{self.name} is full", name=self.name, capacity=self.capacity)
        self._lost(part, why)
        self._report_dropped(part, why)

    def _lose(self, part: BatchPart, reason: str) -> None:
        """Queue the notice of a loss. It is merged with the last notice if it continues it and nothing was queued in
        between.
        """
        last = self._last_lost
        if last is not None and _follows(last, part, reason):
            last.count += part.count
        else:
            self._last_lost = part.lose(reason)
            self._lanes.put(self._last_lost)

    def _lost(self, part: BatchPart, reason: str) -> None:
        self._client.count_dropped(part.count)
        self._end(part.first, part.last, reason)

    def _end(self, first: int, last: int, reason: str) -> None:
        now_ns = self.time_ns()
        self.books.end(first, last, Fate.DROPPED, reason, now_ns)
        if self.ledger is not None:
            self.ledger.fate(self.name, self.pattern, Fate.DROPPED, first, last, last - first + 1, reason, now_ns)

    def _report_dropped(self, part: BatchPart, reason: str) -> None:
        self._client.send_dropped(
            Dropped(
                subscription=self.subscription,
                ranges=[(part.first, part.last)],
                reason=reason,
                topic=part.batch.topic,
                count=part.count,
                origin=part.batch.origin,
                position=part.position,
                priority=part.batch.priority,
            )
        )

    @property
    def levels(self) -> list[int]:
        """The priorities of the waiting batches, the highest first."""
        return self._lanes.levels

    def holds(self, batch: Batch) -> bool:
        """Whether a part of the batch waits here."""
        return any(part.batch is batch and not part.why_lost for part in self._lanes)

    def withdraw(self, batch: Batch, reason: str) -> None:
        """Drop the messages of the batch that still wait here, because their publisher no longer waits."""
        parts = list(self._lanes)
        found = [part for part in parts if part.batch is batch and not part.why_lost]
        if not found:
            return
        self._lanes.clear()
        for part in parts:
            # The notice of the loss takes the place of the messages: those before it are not sent yet.
            self._lanes.put(part.lose(reason) if part.batch is batch and not part.why_lost else part)
        self._last_lost = None
        for part in found:
            self._count(part, -1)
            self._lost(part, reason)
            begin = part.first - batch.first
            for index in range(begin, begin + min(part.count, MAX_FAILURES)):
                batch.fail(index, "withdrawn", f"{self.name} had no room for it", name=self.name)
            self._leave_queue(part)
        self.pump()

    def close(self) -> int:
        """Record the waiting and unreported messages as lost, because the subscriber is gone. Returns their number."""
        self.closed = True
        before = self.books.settled[Fate.DROPPED]
        for first, last in self.books.lose(self.time_ns()):
            if self.ledger is not None:
                now_ns = self.time_ns()
                self.ledger.fate(self.name, self.pattern, Fate.DROPPED, first, last, last - first + 1, LOST, now_ns)
        while self._lanes:
            part = self._pop()
            if not part.why_lost:
                self._end(part.first, part.last, LOST)
                self._leave_queue(part)
        return self.books.settled[Fate.DROPPED] - before

    # Reports and queries

    def report_next(self, first: int, last: int) -> bool:
        """See `Books.report_next`."""
        now_ns = self.time_ns()
        if not self.books.report_next(first, last, now_ns):
            return False
        if self.ledger is not None:
            count = last - first + 1
            self.ledger.fate(self.name, self.pattern, Fate.DELIVERED, first, last, count, "", now_ns)
        return True

    def report_in_order(self, rows: Sequence[FateRow]) -> bool:
        """Record all rows with `Books.report_in_order`. False if that is not possible, which is rare."""
        if self.ledger is not None:
            return False
        delivered = [
            row for row in rows if row.fate == _DELIVERED and not row.reason and row.count == row.last - row.first + 1
        ]
        return len(delivered) == len(rows) and self.books.report_in_order(
            [row.first for row in rows], [row.last for row in rows], self.time_ns()
        )

    def report(self, first: int, last: int, fate: Fate, reason: str) -> int:
        """Record the fate that the client reports for these messages. Returns how many were not reported before."""
        now_ns = self.time_ns()
        found = self.books.report(first, last, fate, reason, now_ns)
        for begin, end in found:
            if self.ledger is not None and fate is not Fate.IN_FLIGHT:
                self.ledger.fate(self.name, self.pattern, fate, begin, end, end - begin + 1, reason, now_ns)
        return sum(end - begin + 1 for begin, end in found)

    def report_earlier(self, first: int, last: int, fate: Fate, reason: str) -> None:
        """Like `report`, for messages that the client got before this run of the hub.

        Only a journal has a record of them.
        """
        if self.ledger is None:
            return
        if last - first < MAX_EARLIER:
            self.books.add_handed(first, last)
            self.report(first, last, fate, reason)
        elif fate is not Fate.IN_FLIGHT:
            count, now_ns = last - first + 1, self.time_ns()
            self.ledger.fate(self.name, self.pattern, fate, first, last, count, reason, now_ns)

    @property
    def waiting_since_ns(self) -> int:
        """The time since which messages have been waiting without interruption; 0 if none wait."""
        return self._since_ns if self.waiting else 0

    def account(self) -> Account:
        return self.books.account(self.waiting)

    def outcome_of(self, message: Message) -> Outcome | None:
        if not self._leads(message.topic, self.pattern):
            return None
        for part in self._lanes:
            if not part.why_lost and part.first <= message.seq <= part.last:
                return Outcome(self.name, Fate.IN_FLIGHT, "waits at the hub for room")
        return self.books.outcome_of(self.name, message.seq)


def _follows(last: BatchPart, part: BatchPart, reason: str) -> bool:
    one, other = last.batch, part.batch
    return (
        last.why_lost == reason
        and (one.topic, one.origin, one.priority) == (other.topic, other.origin, other.priority)
        and last.last + 1 == part.first
        and last.position + last.count == part.position
    )
