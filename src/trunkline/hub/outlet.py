"""An outlet: where the hub hands batches to one subscriber. It sends no more than it has credit for.

What happens without credit is the subscriber's policy: `block` lets the batch wait, and with it its publisher; `reject`
tells the publisher no. With the other two the subscriber itself has the inbox that drops, and gives credit without end;
here they drop only what a connection that does not drain cannot take.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from trunkline.delivery.books import LOST, Books, reaches
from trunkline.delivery.fates import Account, Fate, Outcome
from trunkline.delivery.inbox import Overflow
from trunkline.delivery.lanes import Lanes
from trunkline.delivery.ledger import Ledger
from trunkline.errors import InvalidPayload
from trunkline.hub.parcel import Parcel, Piece
from trunkline.message import Message
from trunkline.wire.control import Dropped

ENDLESS = -1
MAX_EARLIER = 10_000
"""Of more messages of before this run that a client reports on at once, the journal alone is told."""
MAX_FAILURES = 100_000
"""Of a batch of which more is refused, all counts as refused: what there is to say must not exceed what was sent."""


class Client(Protocol):
    """The connection of a subscriber."""

    waiting_bytes: int
    """Of what waits in those of its outlets that drop: no publisher is held up by it."""
    max_waiting_bytes: int
    max_body_bytes: int
    """What it takes in one frame."""

    @property
    def full(self) -> bool:
        """Whether it drains too slowly to be given more."""

    def deliver(self, subscription: int, piece: Piece) -> None: ...

    def count_dropped(self, count: int) -> None: ...

    def tell_dropped(self, dropped: Dropped) -> None: ...

    def congested(self, outlet: Outlet) -> None:
        """This outlet waits until the connection drains."""


class Outlet:
    __slots__ = (
        "_client",
        "_last_lost",
        "_leads",
        "_time_ns",
        "_waiting",
        "books",
        "capacity",
        "closed",
        "credit",
        "hears",
        "ledger",
        "name",
        "overflow",
        "pattern",
        "reports",
        "subscription",
        "tap",
        "waiting",
        "waiting_bytes",
    )

    def __init__(
        self,
        client: Client,
        subscription: int,
        pattern: str,
        name: str,
        *,
        capacity: int,
        overflow: Overflow,
        credit: int,
        time_ns: Callable[[], int],
        leads: Callable[[str, str], bool] = reaches,
        hears: bool = True,
        reports: bool = False,
        tap: bool = False,
        ledger: Ledger | None = None,
        books: Books | None = None,
    ) -> None:
        self._client = client
        self._time_ns = time_ns
        self._leads = leads
        self.subscription = subscription
        self.pattern = pattern
        self.name = name
        self.capacity = capacity
        self.overflow = overflow
        self.credit = credit
        """How many messages more may be sent; ENDLESS if there is no limit."""
        self.hears = hears
        self._waiting: Lanes[Piece] = Lanes()
        self._last_lost: Piece | None = None
        """The word of a loss that is the last of those that wait."""
        self.waiting = 0
        """Messages that wait here."""
        self.waiting_bytes = 0
        self.closed = False
        self.tap = tap
        """A part of a bus, which is no subscriber: it is on no roster."""
        self.reports = reports
        """Whether its client says what became of what it gets. If not, what was sent counts as delivered."""
        self.ledger = ledger
        """Who writes its fates down, if anything of its pattern is kept."""
        self.books = Books() if books is None else books

    def offer(self, parcel: Parcel) -> None:
        self.books.accepted += parcel.count
        if not self._waiting and self._may_send(parcel.count):
            self._send(Piece(parcel, parcel.first, parcel.count, parcel.body))
            return
        piece = Piece(parcel, parcel.first, parcel.count, parcel.body)
        match self.overflow:
            case Overflow.BLOCK:
                self._wait(piece)
                self.pump()
            case Overflow.REJECT:
                self._reject(piece)
            case Overflow.DROP_NEWEST:
                self._drop_newest(piece)
            case Overflow.DROP_OLDEST:
                self._wait(piece)
                self._drop_oldest()

    def _may_send(self, count: int) -> bool:
        return (self.credit == ENDLESS or self.credit >= count) and not self._client.full

    def _send(self, piece: Piece) -> None:
        if len(piece.body) > self._client.max_body_bytes:
            self._send_in_parts(piece)
            return
        if self.credit != ENDLESS:
            self.credit -= piece.count
        if self.reports:
            self.books.hand(piece.first, piece.last, self._time_ns())
        else:
            self.books.delivered += piece.count
        self._client.deliver(self.subscription, piece)

    def _send_in_parts(self, piece: Piece) -> None:
        """Its client takes smaller frames than its publisher sends."""
        reason = f"a frame of {len(piece.body):,} bytes: its subscriber takes {self._client.max_body_bytes:,}"
        try:
            if piece.count > 1:
                for part in piece.split(piece.count // 2):
                    self._send(part)
                return
        except InvalidPayload as error:
            reason = str(error)
        self._lost(piece, reason)
        self._tell(piece, reason)

    def _wait(self, piece: Piece) -> None:
        if self.overflow is Overflow.BLOCK:
            # Its publisher waits with it.
            piece.parcel.waiting += 1
        self._waiting.put(piece)
        self._last_lost = None
        self._count(piece, 1)
        if self._client.full:
            self._client.congested(self)

    def grant(self, messages: int) -> None:
        if self.credit != ENDLESS:
            self.credit += messages
            self.pump()

    def pump(self) -> None:
        """Send what waits, as far as there is credit, the highest priority first."""
        while self._waiting and not self.closed:
            if self._client.full:
                self._client.congested(self)
                return
            piece = self._pop()
            if piece.why_lost:
                self._tell(piece, piece.why_lost)
                continue
            if not self.credit:
                self._push(piece)
                return
            if self.credit != ENDLESS and piece.count > self.credit:
                if piece.count <= self.capacity:
                    # It fits once more was taken: not worth taking it apart.
                    self._push(piece)
                    return
                try:
                    piece, rest = piece.split(self.credit)
                except InvalidPayload as error:
                    self._drop(piece, str(error))
                    continue
                self._push(rest)
                rest.parcel.waiting += 1
            self._send(piece)
            if self.overflow is Overflow.BLOCK:
                piece.parcel.done()

    def _pop(self) -> Piece:
        piece = self._waiting.pop()
        assert piece is not None
        self._count(piece, -1)
        return piece

    def _push(self, piece: Piece) -> None:
        self._waiting.put(piece, front=True)
        self._count(piece, 1)

    def _count(self, piece: Piece, sign: int) -> None:
        if piece.why_lost:
            return
        size = sign * len(piece.body)
        self.waiting += sign * piece.count
        self.waiting_bytes += size
        if self.overflow is not Overflow.BLOCK:
            self._client.waiting_bytes += size

    # What is not sent

    def _reject(self, piece: Piece) -> None:
        parcel = piece.parcel
        room = 0 if self._client.full else max(0, self.credit)
        reason = f"rejected: the inbox is full ({self.capacity})"
        try:
            if room:
                first, piece = piece.split(room)
                self._send(first)
        except InvalidPayload as error:
            reason = str(error)
            room = 0
        refused = range(room, parcel.count)
        for index in refused if len(refused) <= MAX_FAILURES else (-1,):
            parcel.fail(index, "inbox_full", f"{self.name} is full", name=self.name, capacity=self.capacity)
        self._drop(piece, reason, waits=False)

    def _drop_newest(self, piece: Piece) -> None:
        room = self.capacity - self.waiting
        reason = f"drop_newest: the connection does not drain, and {self.capacity} wait"
        if self._client.waiting_bytes + len(piece.body) > self._client.max_waiting_bytes:
            room = 0
            reason = "drop_newest: the connection does not drain, and too many wait"
        if room >= piece.count:
            self._wait(piece)
            return
        try:
            if room > 0:
                first, piece = piece.split(room)
                self._wait(first)
        except InvalidPayload as error:
            reason = str(error)
        self._lost(piece, reason)
        if self._waiting:
            # Behind those that wait: what comes out of its order seems to be missing.
            self._lose(piece, reason)
        else:
            self._tell(piece, reason)

    def _lose(self, piece: Piece, reason: str) -> None:
        """The word of a loss joins the last one, if that is of the same kind and nothing came between."""
        last = self._last_lost
        if last is not None and _follows(last, piece, reason):
            last.count += piece.count
        else:
            self._last_lost = piece.lose(reason)
            self._waiting.put(self._last_lost)

    def _drop_oldest(self) -> None:
        client = self._client
        while self.waiting > self.capacity or (self.waiting and client.waiting_bytes > client.max_waiting_bytes):
            full = self.waiting > self.capacity
            reason = f"drop_oldest: the connection does not drain, and {self.capacity if full else 'too many'} wait"
            piece = self._waiting.pop_lowest(100)
            assert piece is not None
            self._count(piece, -1)
            excess = self.waiting + piece.count - self.capacity
            if 0 < excess < piece.count:
                try:
                    piece, rest = piece.split(excess)
                    self._push(rest)
                except InvalidPayload as error:
                    reason = str(error)
            self._drop(piece, reason)

    def _drop(self, piece: Piece, reason: str, *, waits: bool | None = None) -> None:
        self._lost(piece, reason)
        self._tell(piece, reason)
        if self.overflow is Overflow.BLOCK if waits is None else waits:
            piece.parcel.done()

    def _lost(self, piece: Piece, reason: str) -> None:
        self._client.count_dropped(piece.count)
        self._end(piece.first, piece.last, reason)

    def _end(self, first: int, last: int, reason: str) -> None:
        now_ns = self._time_ns()
        self.books.end(first, last, Fate.DROPPED, reason, now_ns)
        if self.ledger is not None:
            self.ledger.fate(self.name, self.pattern, Fate.DROPPED, first, last, last - first + 1, reason, now_ns)

    def _tell(self, piece: Piece, reason: str) -> None:
        self._client.tell_dropped(
            Dropped(
                subscription=self.subscription,
                ranges=[(piece.first, piece.last)],
                reason=reason,
                topic=piece.parcel.topic,
                count=piece.count,
                origin=piece.parcel.origin,
                position=piece.position,
                priority=piece.parcel.priority,
            )
        )

    def rank(self) -> int:
        """The highest priority that waits here."""
        return max((piece.priority for piece in self._waiting), default=0)

    def withdraw(self, parcel: Parcel, reason: str) -> bool:
        """Its publisher waits no longer; False if it does not wait here."""
        pieces = list(self._waiting)
        found = [piece for piece in pieces if piece.parcel is parcel and not piece.why_lost]
        if not found:
            return False
        self._waiting.clear()
        for piece in pieces:
            # The word of the loss waits at its place: those before it are still to come.
            self._waiting.put(piece.lose(reason) if piece.parcel is parcel and not piece.why_lost else piece)
        self._last_lost = None
        for piece in found:
            self._count(piece, -1)
            self._lost(piece, reason)
            if self.overflow is Overflow.BLOCK:
                piece.parcel.done()
        self.pump()
        return True

    def close(self) -> int:
        """Its subscriber is gone: what waited, and what it had not reported on, is lost with it. How many that is."""
        self.closed = True
        before = self.books.settled[Fate.DROPPED]
        for first, last in self.books.lose(self._time_ns()):
            if self.ledger is not None:
                now_ns = self._time_ns()
                self.ledger.fate(self.name, self.pattern, Fate.DROPPED, first, last, last - first + 1, LOST, now_ns)
        while self._waiting:
            piece = self._pop()
            if not piece.why_lost:
                self._end(piece.first, piece.last, LOST)
                if self.overflow is Overflow.BLOCK:
                    piece.parcel.done()
        return self.books.settled[Fate.DROPPED] - before

    # What it can tell

    def report(self, first: int, last: int, fate: Fate, reason: str) -> int:
        """Its client says how these ended. How many of them it could speak of."""
        now_ns = self._time_ns()
        found = self.books.report(first, last, fate, reason, now_ns)
        for begin, end in found:
            if self.ledger is not None and fate is not Fate.IN_FLIGHT:
                self.ledger.fate(self.name, self.pattern, fate, begin, end, end - begin + 1, reason, now_ns)
        return sum(end - begin + 1 for begin, end in found)

    def report_earlier(self, first: int, last: int, fate: Fate, reason: str) -> None:
        """As `report`, of what its client has from before this run of the hub. Nobody but a journal knows of these."""
        if self.ledger is None:
            return
        if last - first < MAX_EARLIER:
            self.books.take_up(first, last)
            self.report(first, last, fate, reason)
        elif fate is not Fate.IN_FLIGHT:
            count, now_ns = last - first + 1, self._time_ns()
            self.ledger.fate(self.name, self.pattern, fate, first, last, count, reason, now_ns)

    def account(self) -> Account:
        return self.books.account(self.waiting)

    def outcome_of(self, message: Message) -> Outcome | None:
        if not self._leads(message.topic, self.pattern):
            return None
        for piece in self._waiting:
            if not piece.why_lost and piece.first <= message.seq <= piece.last:
                return Outcome(self.name, Fate.IN_FLIGHT, "waits at the hub for room")
        return self.books.outcome_of(self.name, message.seq)


def _follows(last: Piece, piece: Piece, reason: str) -> bool:
    one, other = last.parcel, piece.parcel
    return (
        last.why_lost == reason
        and (one.topic, one.origin, one.priority) == (other.topic, other.origin, other.priority)
        and last.last + 1 == piece.first
        and last.position + last.count == piece.position
    )
