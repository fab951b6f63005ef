"""A consumer: a subscription that the engine keeps a place for, by entries, while messages are settled one by one.

An entry is acknowledged at the engine when all of its messages are. Until then its lease is renewed. What was not
settled when the subscriber leaves goes to others: whole entries by the engine, parts of one as a new entry for the same
place.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

from trunkline import columns
from trunkline.brokers.engine.batches import (
    MAX_COUNT,
    BatchHead,
    EngineArrival,
    decode,
    encode_part,
    entry_of,
    number_of,
)
from trunkline.brokers.engine.driver import ConsumerSpec, Entry
from trunkline.brokers.remote.adapter import ENDLESS, SubscribeRequest, SubscriptionTerms
from trunkline.brokers.remote.member import ranges as ranges_of
from trunkline.delivery.ranges import Ranges
from trunkline.errors import InvalidPayload, TrunklineError
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.brokers.engine.adapter import EngineAdapter

MAX_ENTRIES = 64
"""Entries that are asked for at once."""
LAST = "last"
Opened = Callable[[SubscriptionTerms | Exception], None]


class EngineSubscription(msgspec.Struct, frozen=True):
    """How a subscription was opened."""

    role: str = ""
    report_s: float | None = None


class HeldEntry:
    """An entry that is here, and not acknowledged."""

    __slots__ = ("_columns", "body", "first", "head", "noted", "open", "token", "topic")

    def __init__(self, token: str, topic: str, head: BatchHead, first: int, body: memoryview) -> None:
        self.token = token
        self.topic = topic
        self.head = head
        self.first = first
        """The number of its first message."""
        self.body = body
        self._columns: columns.Body | None = None
        self.open = Ranges()
        """The numbers of its messages that are not settled."""
        self.open.add(first, first + head.count - 1)
        self.noted = False
        """Whether the engine keeps a note of which were settled before."""

    @property
    def last(self) -> int:
        return self.first + self.head.count - 1

    def opened(self) -> columns.Body:
        """Its columns, to be taken apart; raises InvalidPayload."""
        if self._columns is None:
            self._columns = columns.open_batch(self.body, self.head.count)
        return self._columns


class EngineConsumer:
    def __init__(self, adapter: EngineAdapter, request: SubscribeRequest) -> None:
        self._adapter = adapter
        self._driver = adapter.driver
        self.number = request.subscription
        self.pattern = request.pattern
        self.name = request.name
        self.role = (request.group or request.name) if request.durable or request.group is not None else ""
        self._shared = request.group is not None
        self._capacity = request.capacity
        self._credit = 0.0
        self._credit_bytes = 0.0
        self._held: OrderedDict[int, HeldEntry] = OrderedDict()
        """By the number of the first message."""
        self._queue: deque[tuple[HeldEntry, int, int]] = deque()
        """What waits for credit: the entry, and from which number to which."""
        self._start: int | str = request.start
        self._opened_ns = 0
        self._seen: set[str] = set()
        """With "last": the topics of which something came."""
        self._asked = 0
        """Entries that were asked for and have not come."""
        self._open = False
        self._stopped = False
        self._acks: list[str] = []
        """Tokens to acknowledge with the next connection."""
        self._timer: asyncio.TimerHandle | None = None
        self.burials: set[asyncio.Task[None]] = set()
        """Dead letters that are being stored. Their messages are settled after that."""
        self._notes: dict[int, list[tuple[int, int]]] = {}
        """Of entries that an earlier subscriber had settled in part: what it had not."""

    # Life

    def open(self, request: SubscribeRequest, done: Opened) -> None:
        self._credit = float("inf") if request.credit == ENDLESS else request.credit
        self._credit_bytes = float("inf") if request.credit_bytes == ENDLESS else request.credit_bytes
        self._start = request.start
        work = self._begin_at_engine(request, done)
        self._adapter.start(work, f"the subscription to {self.pattern} was not opened")

    async def _begin_at_engine(
        self, request: SubscribeRequest, done: Callable[[SubscriptionTerms | Exception], None]
    ) -> None:
        start = request.start
        try:
            await self._adapter.left(self.role)
            await self._adapter.cover(self.pattern)
            terms = await self._driver.open_consumer(
                ConsumerSpec(
                    subscription=self.number,
                    role=self.role,
                    pattern=self.pattern,
                    durable=request.durable,
                    shared=self._shared,
                    start=entry_of(start)[0] if isinstance(start, int) else start,
                    lease_s=self._adapter.settings.lease_s,
                )
            )
            if self.role and not self._shared:
                # Now that the place is its own: whoever had it before may have left notes a moment ago.
                await self._read_notes()
        except TrunklineError as error:
            done(error)
            return
        self._opened_ns = terms.opened_ns
        self._open = True
        done(EngineSubscription(self.role))
        self._pump()

    async def _read_notes(self) -> None:
        after = ""
        while True:
            page, after = await self._driver.page(self._table, after)
            for key, value in page:
                self._notes[int(key)] = _decode_ranges(value)
            if not after:
                return

    @property
    def _table(self) -> str:
        return f"open-{sha256(self.role.encode()).hexdigest()[:16]}"

    def connected(self) -> None:
        acks, self._acks = self._acks, []
        for token in acks:
            self._driver.ack(self.number, token)

    def disconnected(self) -> None:
        self._open = False
        self._asked = 0

    def stop(self) -> None:
        """It takes in nothing new: what waits here goes to others, or comes again."""
        if not self._stopped:
            self._stopped = True
            if self._adapter.live:
                self._driver.close_consumer(self.number)
            queued, self._queue = self._queue, deque()
            if self._shared:
                for entry, first, last in queued:
                    self._give_back(entry, [(first, last)])

    def close(self) -> None:
        self.stop()
        if self._timer is not None:
            self._timer.cancel()
        if not self._adapter.live:
            self._held.clear()
        elif self._held:
            self._adapter.leave(self.role, self._leaving())
        else:
            self._driver.leave_place(self.number)

    async def _leaving(self) -> None:
        while self.burials:
            # An entry that comes again must not have what is a dead letter.
            await asyncio.wait(self.burials)
        held, self._held = self._held, OrderedDict()
        back: list[str] = []
        for entry in held.values():
            if entry.open.total < entry.head.count and self._shared:
                await self._storing_part(entry, list(entry.open))
                continue
            if entry.open.total < entry.head.count and self.role:
                # The entry comes again, in its place, and what was settled of it is known then.
                await self._driver.keep(self._table, str(entry.first), _encode_ranges(list(entry.open)))
            back.append(entry.token)
        self._driver.refuse(self.number, back)
        self._driver.leave_place(self.number)

    # Entries

    def arrived(self, entry: Entry) -> None:
        self._asked = max(0, self._asked - 1)
        try:
            head, body = decode(entry.data)
        except InvalidPayload as error:
            self._adapter.unreadable(entry.topic, error)
            self._driver.ack(self.number, entry.token)
            return
        first = head.first or number_of(entry.number)
        if not head.first:
            self._adapter.known.stored(head.key, head.count, first, entry.topic)
        before = self._held.get(first)
        if before is not None and before.last == first + head.count - 1:
            # It is here, and its lease had ended.
            before.token = entry.token
            return
        if self._stopped:
            self._driver.refuse(self.number, [entry.token])
            return
        held = self._held[first] = HeldEntry(entry.token, entry.topic, head, first, body)
        self._watch()
        if (note := self._notes.pop(first, None)) is not None:
            held.noted = True
            held.open.clear()
            for begin, end in note:
                held.open.add(begin, end)
                self._queue.append((held, begin, end))
            self._finish(held)
        else:
            begin = self._begin(entry, held)
            if begin > first:
                self.settle([(first, begin - 1)])
            if begin <= held.last:
                self._take_in(held, begin)
        self._pump()

    def _begin(self, entry: Entry, held: HeldEntry) -> int:
        """The number from which on this subscription gets the messages of an entry."""
        start = self._start
        if isinstance(start, int):
            return max(held.first, start)
        if start == LAST and entry.topic not in self._seen:
            self._seen.add(entry.topic)
            if entry.stored_ns <= self._opened_ns and not held.head.first:
                return held.last
        return held.first

    def _take_in(self, held: HeldEntry, begin: int) -> None:
        keep = begin + self._capacity - 1
        if self._shared and held.last > keep:
            # More than its inbox can hold: the rest is for whoever has room.
            rest = [
                (at, min(at + self._capacity - 1, held.last)) for at in range(keep + 1, held.last + 1, self._capacity)
            ]
            self._queue.append((held, begin, keep))
            self._give_back(held, rest)
        else:
            self._queue.append((held, begin, held.last))

    # Handing out

    def grant(self, messages: int, size: int) -> None:
        self._credit += messages
        self._credit_bytes += size
        self._pump()

    def _pump(self) -> None:
        while self._queue and self._credit > 0 and self._credit_bytes > 0:
            entry, first, end = self._queue.popleft()
            last = min(end, first + int(min(self._credit, MAX_COUNT)) - 1)
            if last < end:
                self._queue.appendleft((entry, last + 1, end))
            self._hand(entry, first, last)
        if self._open and not self._stopped and not self._queue and not self._asked and self._credit > 0:
            size = self._adapter.max_inbox_bytes if self._credit_bytes == float("inf") else int(self._credit_bytes)
            if size > 0:
                self._asked = int(min(MAX_ENTRIES, self._credit))
                self._driver.pull(self.number, self._asked, size)

    def _hand(self, entry: HeldEntry, first: int, last: int) -> None:
        count, head = last - first + 1, entry.head
        body: bytes | memoryview = entry.body
        if count < head.count:
            try:
                body = columns.pack_part(entry.opened(), first - entry.first, last - entry.first + 1)
            except InvalidPayload as error:
                self._adapter.unreadable(entry.topic, error)
                self.settle([(first, last)])
                return
        self._credit -= count
        self._credit_bytes -= len(body)
        self._adapter.deliver(EngineArrival(self.number, first, entry.topic, count, 0, 0, head.priority), body)

    def _messages(self, entry: HeldEntry, wanted: list[tuple[int, int]]) -> list[Message]:
        messages = columns.read(entry.topic, entry.body, range(entry.first, entry.last + 1))
        return [messages[seq - entry.first] for first, last in wanted for seq in range(first, last + 1)]

    def pull_ended(self) -> None:
        self._asked = 0
        self._pump()

    # Settling

    def settle(self, ranges: list[tuple[int, int]]) -> None:
        for first, last in ranges:
            for entry in self._entries(first, last):
                entry.open.take(first, last)
                self._finish(entry)

    def _finish(self, entry: HeldEntry) -> None:
        """Acknowledge an entry if nothing of it is open."""
        if not entry.open.total and self._held.get(entry.first) is entry:
            del self._held[entry.first]
            if entry.noted:
                self._adapter.start(self._driver.discard(self._table, str(entry.first)), "a note was not removed")
            if self._adapter.live:
                self._driver.ack(self.number, entry.token)
            else:
                self._acks.append(entry.token)

    def _entries(self, first: int, last: int) -> list[HeldEntry]:
        entry = self._held.get(first)
        if entry is not None and entry.last >= last:
            return [entry]
        return [each for each in self._held.values() if each.first <= last and first <= each.last]

    def give_back(self, numbers: list[int]) -> None:
        """Others are to get these."""
        for first, last in ranges_of(numbers):
            for entry in self._entries(first, last):
                self._give_back(entry, [(max(first, entry.first), min(last, entry.last))])

    def _give_back(self, entry: HeldEntry, parts: list[tuple[int, int]]) -> None:
        if sum(last - first + 1 for first, last in parts) == entry.head.count and len(parts) == 1:
            self._held.pop(entry.first, None)
            if self._adapter.live:
                self._driver.refuse(self.number, [entry.token])
        else:
            self._store_part(entry, parts)

    def _store_part(self, entry: HeldEntry, parts: list[tuple[int, int]]) -> None:
        if not self._shared:
            # Nobody shares its place: it comes again when it is opened again.
            return
        self._adapter.start(self._storing_part(entry, parts), f"what {self.role} had not read was not given back")

    async def _storing_part(self, entry: HeldEntry, parts: list[tuple[int, int]]) -> None:
        for first, last in parts:
            data = encode_part(entry.head, self._messages(entry, [(first, last)]))
            await self._driver.give_back(self.role, entry.topic, data)
            entry.open.take(first, last)
        if not entry.open.total:
            self._held.pop(entry.first, None)
            self._driver.ack(self.number, entry.token)

    # Leases

    def _watch(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._adapter.settings.lease_s / 3, self._renew)

    def _renew(self) -> None:
        self._timer = None
        if self._held:
            if self._adapter.live:
                for entry in self._held.values():
                    self._driver.touch(self.number, entry.token)
            self._watch()


_encode_ranges = msgspec.msgpack.Encoder().encode
_decode_ranges = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode
