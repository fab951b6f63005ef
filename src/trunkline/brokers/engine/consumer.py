"""A consumer: a subscription whose place the engine keeps. The engine counts entries; messages are settled one by one.

An entry is acknowledged at the engine when all of its messages are settled. Until then its lease is renewed. When the
subscriber leaves, unsettled messages go to others: the engine redelivers whole entries, and parts of an entry are
stored as a new entry for the same place. Notes record which messages of an entry are settled, in case the process is
killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline import columns
from trunkline.brokers.engine.batches import (
    FOREIGN,
    MAX_COUNT,
    BatchHead,
    EngineArrival,
    decode,
    encode_part,
    entry_of,
    number_of,
)
from trunkline.brokers.engine.driver import ConsumerSpec, Entry
from trunkline.brokers.engine.held import HeldEntry
from trunkline.brokers.engine.notes import EntryNotes, Open
from trunkline.brokers.remote.adapter import ENDLESS, SubscribeRequest, SubscriptionTerms
from trunkline.brokers.remote.member import ranges as ranges_of
from trunkline.errors import EngineUnavailable, InvalidPayload, TrunklineError
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.brokers.engine.adapter import EngineAdapter

log = logging.getLogger("trunkline.connection")

MAX_ENTRIES = 64
"""The most entries requested at once."""
LAST = "last"
Opened = Callable[[SubscriptionTerms | Exception], None]


class EngineSubscription(msgspec.Struct, frozen=True):
    """How a subscription was opened."""

    role: str = ""
    report_s: float | None = None


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
        """Entries that are not acknowledged, by the number of their first message."""
        self._queue: deque[tuple[HeldEntry, int, int]] = deque()
        """Messages that wait for credit: the entry, and the first and last number."""
        self._start: int | str = request.start
        self._opened_ns = 0
        self._seen: set[str] = set()
        """With `start="last"`: the topics of which an entry has arrived."""
        self._asked = 0
        """Entries that were requested and have not arrived."""
        self._open = False
        self._stopped = False
        self._acks: list[str] = []
        """Tokens to acknowledge on the next connection."""
        self._timer: asyncio.TimerHandle | None = None
        self.burials: set[asyncio.Task[None]] = set()
        """Dead letters and notes that are being stored. Their messages are settled after that."""
        self._undelivered = float("inf")
        """From this number on, messages may be undelivered. The engine has a note of that."""
        self._unnoted: list[int] = []
        """Undelivered messages that wait until the engine has the note."""
        self._notes = EntryNotes(adapter, self.role) if self.role else None
        self._open_before: dict[str, Open] = {}
        """By entry that an earlier subscriber had settled in part: the messages that are still open."""

    # Opening and closing

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
            if self._notes is not None and not self._shared:
                # Read after the place was taken: its previous subscriber may have written notes a moment ago.
                self._open_before = await self._notes.all()
        except TrunklineError as error:
            done(error)
            return
        self._opened_ns = terms.opened_ns
        self._open = True
        done(EngineSubscription(self.role))
        self._pump()

    def connected(self) -> None:
        acks, self._acks = self._acks, []
        for token in acks:
            self._driver.ack(self.number, token)
        if self._notes is not None:
            self._notes.connected()

    def disconnected(self) -> None:
        self._open = False
        self._asked = 0
        # The next connection may be to a new store.
        self._undelivered = float("inf")

    def stop(self) -> None:
        """Accept no new entries. Waiting messages go to other members, or are delivered again later."""
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
        if self._notes is not None:
            self._notes.close()
        if not self._adapter.live:
            self._held.clear()
        elif self._held:
            self._adapter.leave(self.role, self._leaving())
        else:
            self._driver.leave_place(self.number)
            if self._notes is not None:
                self._adapter.start(self._notes.write(), f"the notes of {self.role} were not removed")

    async def _leaving(self) -> None:
        while self.burials:
            # An entry that is redelivered must not contain messages that became dead letters.
            await asyncio.wait(self.burials)
        held, self._held = self._held, OrderedDict()
        back: list[str] = []
        for entry in held.values():
            if entry.open.total < entry.head.count and self._shared:
                await self._storing_part(entry, list(entry.open))
                continue
            if entry.open.total < entry.head.count and self._notes is not None:
                # The entry is redelivered at its position in the order. The note then shows which messages were
                # settled.
                self._notes.changed(entry)
            back.append(entry.token)
        await self.write_notes()
        self._driver.refuse(self.number, back)
        self._driver.leave_place(self.number)

    async def write_notes(self) -> None:
        """Return when the engine has a record of everything that was settled so far."""
        if self._notes is not None:
            await self._notes.write()

    # Entries

    def arrived(self, entry: Entry) -> None:
        self._asked = max(0, self._asked - 1)
        try:
            head, body = decode(entry.data)
        except InvalidPayload as error:
            self._arrived_unreadable(entry, error)
            return
        first = head.first or number_of(entry.number)
        if not head.first:
            self._adapter.known.stored(head.key, head.count, first, entry.topic)
        before = self._held.get(first)
        if before is not None and before.last == first + head.count - 1:
            # The entry is already here: its lease ended, and the engine delivered it again.
            before.token = entry.token
            return
        if self._stopped:
            self._driver.refuse(self.number, [entry.token])
            return
        held = self._held[first] = HeldEntry(entry.token, entry.topic, head, first, body)
        self._watch()
        if (note := self._open_before.pop(held.key, None)) is not None:
            self._resume(held, note)
        elif entry.again and self._shared and self._notes is not None:
            self._adapter.start(
                self._look_up(self._notes, entry, held), f"an entry for {self.role} is redelivered later"
            )
        else:
            self._start_at_first(entry, held)
        self._pump()

    def _arrived_unreadable(self, entry: Entry, error: InvalidPayload) -> None:
        """Hold an entry that is not a batch until its dead letter is stored."""
        first = _number_of_unreadable(entry)
        if first in self._held:
            self._held[first].token = entry.token
        elif self._stopped:
            self._driver.refuse(self.number, [entry.token])
        else:
            held = HeldEntry(entry.token, entry.topic, BatchHead(0, 0, 0, 1), first, memoryview(entry.data))
            self._held[first] = held
            self._watch()
            self._report_unreadable(held, error)

    def _report_unreadable(self, held: HeldEntry, error: InvalidPayload) -> None:
        head = EngineArrival(self.number, held.first, held.topic, held.head.count, 0, 0, held.head.priority)
        self._adapter.unreadable(head, held.body, error)

    async def _look_up(self, notes: EntryNotes, entry: Entry, held: HeldEntry) -> None:
        """Read the note on an entry that another subscriber had, so that settled messages are not handed out again."""
        note: Open | None = None

        async def read() -> None:
            nonlocal note
            note = await notes.read(held.key)

        try:
            await self._adapter.insist(read)
        except EngineUnavailable:
            raise
        except TrunklineError as error:
            log.warning(
                "%s: the whole of entry %s is redelivered, handled messages included: %s", self.role, held.key, error
            )
        if self._held.get(held.first) is not held:
            return
        if note is not None:
            self._resume(held, note)
        elif not self._stopped:
            self._start_at_first(entry, held)
        if self._stopped:
            self._give_back(held, list(held.open))
        self._pump()

    def _resume(self, held: HeldEntry, note: Open) -> None:
        """Continue with the messages of an entry that were open when its last subscriber left or was killed."""
        held.noted = True
        held.open.clear()
        for begin, end in note:
            held.open.add(begin, end)
            if not self._stopped:
                self._queue.append((held, begin, end))
        if not note:
            self._acknowledge(held)

    def _start_at_first(self, entry: Entry, held: HeldEntry) -> None:
        begin = self._begin(entry, held)
        if begin > held.first:
            self.settle([(held.first, begin - 1)])
        if begin <= held.last:
            self._take_in(held, begin)

    def _begin(self, entry: Entry, held: HeldEntry) -> int:
        """The number of the first message of an entry that this subscription gets."""
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
            # The entry is larger than the inbox. The rest goes to members with room.
            try:
                held.opened()
            except InvalidPayload as error:
                self._discard(held, error)
                return
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
                self._discard(entry, error)
                return
        self._credit -= count
        self._credit_bytes -= len(body)
        self._adapter.deliver(EngineArrival(self.number, first, entry.topic, count, 0, 0, head.priority), body)

    def _discard(self, entry: HeldEntry, error: InvalidPayload) -> None:
        """Remove an entry whose messages cannot be read from the queue, and report it."""
        self._queue = deque(each for each in self._queue if each[0] is not entry)
        self._report_unreadable(entry, error)

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

    def settle_undelivered(self, seq: int) -> None:
        """Settle a message that was filtered or dropped. Before the first one, a note is stored."""
        if self._notes is None or seq >= self._undelivered:
            self.settle([(seq, seq)])
            return
        self._unnoted.append(seq)
        if len(self._unnoted) == 1:
            self.settle_after(self._note_undelivered(self._notes), f"the note on filtered messages of {self.role}")

    def settle_after(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Store something in the background, after which messages are settled."""
        storing = self._adapter.start(work, f"{what} was not stored")
        self.burials.add(storing)
        storing.add_done_callback(self.burials.discard)

    async def _note_undelivered(self, notes: EntryNotes) -> None:
        first = min(self._unnoted)
        try:
            await self._adapter.insist(lambda: notes.note_undelivered(first))
            self._undelivered = first
        finally:
            waiting, self._unnoted = self._unnoted, []
        for seq in waiting:
            self.settle_undelivered(seq)

    def _finish(self, entry: HeldEntry) -> None:
        """Acknowledge an entry if all of its messages are settled."""
        if entry.open.total:
            if self._notes is not None:
                self._notes.changed(entry)
        elif self._held.get(entry.first) is entry:
            self._acknowledge(entry)

    def _acknowledge(self, entry: HeldEntry) -> None:
        self._held.pop(entry.first, None)
        if self._adapter.live:
            self._driver.ack(self.number, entry.token)
        else:
            self._acks.append(entry.token)
        if self._notes is not None:
            self._notes.finished(entry)

    def _entries(self, first: int, last: int) -> list[HeldEntry]:
        entry = self._held.get(first)
        if entry is not None and entry.last >= last:
            return [entry]
        return [each for each in self._held.values() if each.first <= last and first <= each.last]

    def give_back(self, numbers: list[int]) -> None:
        """Give messages to other members."""
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
            # The place is not shared. The entry is delivered again when the consumer is opened again.
            return
        self._adapter.start(self._storing_part(entry, parts), f"the unread messages of {self.role} were not given back")

    async def _storing_part(self, entry: HeldEntry, parts: list[tuple[int, int]]) -> None:
        for first, last in parts:
            data = encode_part(entry.head, self._messages(entry, [(first, last)]))
            await self._driver.give_back(self.role, entry.topic, data)
            entry.open.take(first, last)
        if not entry.open.total:
            self._acknowledge(entry)
        elif self._notes is not None:
            self._notes.changed(entry)

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


def _number_of_unreadable(entry: Entry) -> int:
    """The number of data that is not a message: the same each time, and different from those of all messages.

    It is not the number of the entry: another program may have given that number to its entry, in this stream or in
    another.
    """
    digest = sha256(f"{entry.topic} {entry.number} {entry.minor} ".encode() + entry.data).digest()
    return FOREIGN + int.from_bytes(digest[:7])
