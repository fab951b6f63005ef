"""Durable subscriptions: the journal feeds a cursor's messages into the inboxes of whoever works on it.

While the subscribers keep up, what is committed goes straight to them. When they have no room, the cursor falls behind,
and reads from the journal when there is room again. Nobody's publish waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from trunkline.clock import World
from trunkline.delivery.dead_letters import Attempt, DeadLetter
from trunkline.delivery.fates import Fate
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.ledger import Ledger
from trunkline.delivery.route import SubscriberGroup
from trunkline.journal.cursor import Cursor, pack
from trunkline.journal.ledger import JournalLedger, decode_message, decode_story, readable
from trunkline.journal.reader import STEP_BYTES, Reader
from trunkline.journal.start import Start
from trunkline.message import Message

if TYPE_CHECKING:
    from trunkline.journal.journal import Journal

log = logging.getLogger("trunkline.journal")

SAVE = (
    "INSERT INTO cursors VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE SET"
    " high = excluded.high, pending = excluded.pending, updated_ns = excluded.updated_ns"
)
AGAIN_S = 1.0
READ_AHEAD = 1000
LARGE_BYTES = 4096
MAX_LARGE_BYTES = 64 * 1024 * 1024
"""Of large messages that one subscriber holds. Of small ones there are few enough: its inbox has a capacity."""
MAX_PAUSE_S = 3600.0
"""A clock that was set back must not keep a retry waiting for ever."""


class KeptMessage(msgspec.Struct, frozen=True):
    """A message in a state that its topic does not show: it has failed before, or was given back."""

    message: Message
    story: list[Attempt]
    due_ns: int


def kept_for(reader: Reader, subscriber: str) -> list[KeptMessage]:
    rows = reader.query("SELECT message, story, due_ns FROM retries WHERE subscriber = ? ORDER BY seq", (subscriber,))
    found = []
    for data, past, due_ns in rows:
        message = readable(decode_message, data, "a message that waits for its next attempt")
        if message is not None:
            found.append(KeptMessage(message, readable(decode_story, past, "the story of a message") or [], due_ns))
    return found


class Feeder(Ledger):
    """One cursor and the inboxes that share it. It is their ledger, too: what they settle moves the cursor."""

    def __init__(
        self, cursor: Cursor, journal: Journal, world: World, start: Start | None = None, *, durable: bool = True
    ) -> None:
        self.cursor = cursor
        self.durable = durable
        """Whether the cursor is kept. If not, the subscription ends with its one subscriber, and what that had."""
        self.members: list[Inbox] = []
        self._journal = journal
        self._ledger = journal.ledger
        self._world = world
        self._start = start
        self._group = SubscriberGroup(cursor.name)
        self._waiting: deque[tuple[Message, list[Attempt]]] = deque()
        """Out of order: to be offered before anything new."""
        self._unread: list[int] = []
        """The numbers of what is to be read and offered before anything new: it was out, or it is where to start."""
        self._ahead: deque[Message] = deque()
        """Read, and not offered yet."""
        self._ahead_upto = cursor.read
        self.pauses: dict[int, float] = {}
        """Of what a leaving member hands back: how long it is to wait."""
        self._given: set[int] = set()
        """Given back by a person before it was ready."""
        self._kept: dict[int, KeptMessage] = {}
        """Failed before the last restart, and not read again yet."""
        self._large: dict[int, tuple[Inbox, int]] = {}
        """Large messages by number: who has them, and how many bytes they are."""
        self._large_bytes: dict[Inbox, int] = {}
        self._delivered: list[int] = []
        self._delivered_ns = 0
        self._behind = True
        self._ready: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._timers: set[asyncio.TimerHandle] = set()
        self._paused = False
        self._gone = 0
        """Settled since the last look for room."""
        self._enough = 1
        self._looking = False
        self._recalled = False
        self._rested = False
        """Whether it was without subscribers before, and has forgotten what it had read."""
        self._kept_safe = True
        self._quiet: list[asyncio.Future[None]] = []

    def register(self) -> None:
        """From now on the journal asks it what to write, and keeps what a durable one has not read."""
        self._ledger.scribes.add(self)
        if self.durable:
            self._journal.cursors[self.cursor.name] = self.cursor

    # Who works on it

    def join(self, inbox: Inbox) -> asyncio.Future[None]:
        """A subscriber that takes part; done when the cursor is on disk and the subscriber gets its share."""
        inbox.ledger = self
        if self.durable:
            inbox.back = self._take_back
        inbox.role = self.cursor.name
        inbox.successor_of = self._successor_of(inbox)
        self.members.append(inbox)
        self._measure()
        if self._ready is None or self._has_failed:
            self._open()
        elif self._ready.done():
            self.feed()
        assert self._ready is not None
        return self._ready

    def _open(self) -> None:
        self._ready = asyncio.get_running_loop().create_task(self._prepare(), name=f"open {self.cursor.name}")
        self._ready.add_done_callback(self._opened)

    @property
    def _has_failed(self) -> bool:
        ready = self._ready
        return ready is not None and ready.done() and (ready.cancelled() or ready.exception() is not None)

    def _opened(self, ready: asyncio.Task[None]) -> None:
        self._note_idle()
        self._forget_messages()
        # A handler does not wait for it: without this, nobody would hear, and nobody would try again.
        if not ready.cancelled() and (error := ready.exception()) is not None and self.members:
            name = self.cursor.name
            log.error("the durable subscription %s is not open yet, next try in %g s: %s", name, AGAIN_S, error)
            self._timers.add(asyncio.get_running_loop().call_later(AGAIN_S, self._open_again))

    def _open_again(self) -> None:
        if self._has_failed and self.members and not self._paused:
            self._open()

    async def _prepare(self) -> None:
        """Find where to begin, and take up what was out when the journal was last closed."""
        if not self._recalled:
            await self._recall()
            self._recalled = True
        if self.durable and (self.cursor.changed or not self._kept_safe):
            # As long as the cursor is not on disk, it would begin elsewhere after a restart.
            self._kept_safe = False
            await self._journal.flush()
            self._kept_safe = True
        self.feed()

    async def _recall(self) -> None:
        if self._start is not None:
            self.cursor.start_at(*await self._journal.in_thread(self._start))
            self._ahead_upto = self.cursor.read
            self._start = None
        if self._rested:
            # What its last subscribers failed on may not be written yet.
            await self._journal.flush()
        name = self.cursor.name
        kept = await self._journal.in_thread(lambda reader: kept_for(reader, name))
        # What a person gave back while this was on its way is here already.
        kept = [each for each in kept if each.message.seq not in self._given]
        known = self._given | {each.message.seq for each in kept}
        self._unread = [seq for seq in self.cursor.pending() if seq not in known]
        await self._read_pending()
        for each in kept:
            if each.message.seq > self.cursor.read:
                # At its place in the order: were it settled before those that come first, they would be passed over.
                self._kept[each.message.seq] = each
            else:
                self.cursor.give_again(each.message.seq)
                self._schedule_retry(each)

    async def _read_pending(self) -> None:
        """Read some of what is to be offered before anything new."""
        if not self._unread:
            return
        wanted = self._unread[: max(self.room, READ_AHEAD)]
        found, left = await self._journal.in_thread(lambda reader: reader.some_within(wanted, STEP_BYTES))
        self._unread = [*left, *self._unread[len(wanted) :]]
        self._waiting.extend((message, []) for message in found)
        for seq in set(wanted) - set(left) - {message.seq for message in found}:
            # Retention took it, or it is damaged: nobody can have it any more.
            self.cursor.settle(seq)
            self._settle(seq, Fate.DROPPED, "it is not in the journal any more")

    def part(self, inbox: Inbox) -> None:
        self.members.remove(inbox)
        self._note_idle()
        self._measure()

    def _forget_messages(self) -> None:
        """Nobody works on it: what it has read is in the journal, and is read again when somebody comes.

        What is left is its place: the numbers that are out below the highest one that has its fate.
        """
        ready = self._ready is not None and self._ready.done() and not self._has_failed
        if self.members or not self.durable or self._paused or not ready or self._reading is not None:
            return
        self.cursor.rewind(self._delivered)
        self._ahead_upto = self.cursor.read
        for some in (self._waiting, self._unread, self._ahead, self._kept, self._given, self.pauses):
            some.clear()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._behind = True
        self._ready = None
        self._recalled = False
        self._rested = True

    def part_from_abandoned(self) -> None:
        """Streams that nobody holds any more: what they had goes to the others."""
        for member in [member for member in self.members if member.abandoned]:
            if member.leave is not None:
                member.leave(member)

    def _measure(self) -> None:
        self._enough = max(1, sum(member.capacity for member in self.members) // 2)

    def _successor_of(self, leaver: Inbox) -> Callable[[Message], Inbox | None]:
        def choose(message: Message) -> Inbox | None:
            stay = [member for member in self.members if member is not leaver and not member.closed]
            return self._group.pick(stay) if stay else None

        return choose

    def _take_back(self, message: Message, story: list[Attempt]) -> None:
        if self._large:
            self._take(message.seq)
        if (pause_s := self.pauses.pop(message.seq, 0.0)) > 0:
            self._schedule_retry(KeptMessage(message, story, self._world.time_ns() + int(pause_s * 1e9)))
        else:
            # Those that come last were first in line.
            self._waiting.appendleft((message, story))

    def pause(self) -> None:
        """Offer nothing more: what is not taken stays in the journal."""
        self._paused = True
        self._note_idle()

    async def stop(self) -> None:
        """Hand out nothing more, and wait for nothing more."""
        await asyncio.gather(*self.stop_soon(), return_exceptions=True)

    def stop_soon(self) -> list[asyncio.Task[None]]:
        """The same without waiting for what is under way: it is returned."""
        self.pause()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        tasks = [task for task in (self._ready, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    def let_go(self) -> None:
        """Everything is written: the journal need not ask any more."""
        self._ledger.scribes.discard(self)
        if self.durable:
            self._journal.cursors.pop(self.cursor.name, None)

    # What it gets

    def _schedule_retry(self, kept: KeptMessage) -> None:
        pause_s = (kept.due_ns - self._world.time_ns()) / 1e9
        if pause_s <= 0:
            self._waiting.append((kept.message, kept.story))
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(min(pause_s, MAX_PAUSE_S), self._due, kept)
        self._timers.add(timer)

    def _due(self, kept: KeptMessage) -> None:
        self._timers = {timer for timer in self._timers if timer.when() > asyncio.get_running_loop().time()}
        self._waiting.append((kept.message, kept.story))
        self.feed()

    def give_again(self, message: Message) -> None:
        """A dead letter is to be handled once more."""
        self.cursor.give_again(message.seq)
        if self._ready is None or not self._ready.done():
            self._given.add(message.seq)
        self._waiting.appendleft((message, []))
        self.feed()

    def live(self, messages: Sequence[Message]) -> None:
        """Messages that were just committed. They go straight to who has room; if nobody has, they are read later."""
        if self._behind or self._paused:
            self._behind = True
            return
        self.part_from_abandoned()
        cursor = self.cursor
        for message in messages:
            if message.seq <= cursor.read:
                continue
            inbox = self._free_member()
            if inbox is None:
                self._behind = True
                return
            self._offer(message, inbox)

    def _offer(self, message: Message, inbox: Inbox) -> None:
        """Something that this subscription was not offered before, in this process."""
        self.cursor.offer(message.seq)
        if self._kept and (kept := self._kept.pop(message.seq, None)) is not None:
            self._schedule_retry(kept)
            self._offer_waiting()
        else:
            if len(message.payload) > LARGE_BYTES:
                self._hand(message, inbox)
            inbox.offer(message)

    def _hand(self, message: Message, inbox: Inbox) -> None:
        """A large message goes to a subscriber."""
        self._take(message.seq)
        size = len(message.payload)
        self._large[message.seq] = inbox, size
        self._large_bytes[inbox] = self._large_bytes.get(inbox, 0) + size

    def _take(self, seq: int) -> None:
        """No subscriber has this one now."""
        if (known := self._large.pop(seq, None)) is not None:
            inbox, size = known
            self._large_bytes[inbox] -= size
            if not self._large_bytes[inbox]:
                del self._large_bytes[inbox]

    def _is_heavy(self, inbox: Inbox) -> bool:
        return self._large_bytes.get(inbox, 0) >= MAX_LARGE_BYTES

    def feed(self) -> None:
        """Offer what waits, and read on if there is room."""
        self._looking = False
        self._gone = 0
        if self._paused or self._ready is None:
            return
        self.part_from_abandoned()
        self._forget_messages()
        self._offer_waiting()
        if self._behind and self._reading is None and self.room > 0:
            self._reading = asyncio.get_running_loop().create_task(self._catch_up(), name=f"feed {self.cursor.name}")

    def _take_over_passed(self) -> None:
        """Messages that failed before, and are in the journal only as such: retention took them from their topic."""
        for seq in [seq for seq in self._kept if seq <= self.cursor.read]:
            kept = self._kept.pop(seq)
            self.cursor.give_again(seq)
            self._schedule_retry(kept)
        self._offer_waiting()

    def _offer_waiting(self) -> None:
        while self._waiting and (inbox := self._free_member()) is not None:
            message, story = self._waiting.popleft()
            if story and inbox.custody is not None:
                inbox.custody.take_over(message.seq, story)
            if len(message.payload) > LARGE_BYTES:
                self._hand(message, inbox)
            inbox.readmit(message)

    @property
    def room(self) -> int:
        light = (member for member in self.members if not (self._large and self._is_heavy(member)))
        return sum(member.free for member in light if not member.closed)

    def _free_member(self) -> Inbox | None:
        members = self.members
        if self._large:
            members = [member for member in members if not self._is_heavy(member)]
        if len(members) == 1:
            only = members[0]
            return only if only.free > 0 and not only.closed and not only.abandoned else None
        free = [member for member in members if member.free > 0 and not member.closed and not member.abandoned]
        if len(free) <= 1:
            return free[0] if free else None
        return self._group.pick(free)

    async def _catch_up(self) -> None:
        cursor = self.cursor
        try:
            while not self._paused and self.room > 0:
                if self._unread:
                    await self._read_pending()
                    if self._paused:
                        return
                    self._offer_waiting()
                    continue
                if not self._ahead:
                    wanted = max(self.room, READ_AHEAD)
                    committed = self._journal.intake.committed
                    found, self._ahead_upto = await self._journal.in_thread(partial(self._read_on, limit=wanted))
                    self._ahead.extend(found)
                    # Never beyond what was committed: a damaged row may claim any end.
                    self._ahead_upto = min(self._ahead_upto, max(committed, found[-1].seq if found else 0))
                    if self._ahead_upto <= cursor.read:
                        # There is nothing beyond, so this far everything was seen: numbers may be missing at the end.
                        self._ahead_upto = committed
                    if self._paused:
                        return
                while self._ahead and (inbox := self._free_member()) is not None:
                    message = self._ahead.popleft()
                    self._offer(message, inbox)
                if self._ahead:
                    return
                cursor.skip_to(self._ahead_upto)
                self._take_over_passed()
                if cursor.read >= self._journal.intake.committed:
                    self._behind = False
                    return
        except Exception as error:
            log.error("%s cannot read on in the journal, and tries again in %g s: %s", self.cursor.name, AGAIN_S, error)
            asyncio.get_running_loop().call_later(AGAIN_S, self.feed)
        finally:
            self._reading = None
            self._note_idle()
            self._forget_messages()

    def _read_on(self, reader: Reader, limit: int) -> tuple[list[Message], int]:
        """Called in the thread that reads. Retention waits, and knows then what was read."""
        cursor = self.cursor
        with self._journal.removing:
            found, upto = reader.some_after(cursor.pattern, cursor.read, limit)
            cursor.ahead = found[-1].seq if found else cursor.read
        return found, upto

    # What becomes of it: the ledger of its members

    def delivered(self, inbox: Inbox, first: int, last: int, count: int, at_ns: int) -> None:
        raise AssertionError("a durable subscription acknowledges one by one")

    def delivered_one(self, inbox: Inbox, message: Message, at_ns: int) -> None:
        again = self.cursor.is_again(message.seq)
        if self.cursor.settle(message.seq):
            if again:
                # It may have another fate from before: a row of its own says which counts.
                self._settle(message.seq, Fate.DELIVERED, "")
            else:
                self._delivered.append(message.seq)
                self._delivered_ns = at_ns
            self._ledger.done_with(self.cursor.name, message.seq)
        self._room_again(inbox, message.seq)

    def settled(self, inbox: Inbox, message: Message, fate: Fate, reason: str, at_ns: int) -> None:
        if self.cursor.settle(message.seq):
            self.cursor.forget_place(message.seq)
            self._ledger.done_with(self.cursor.name, message.seq)
            self._settle(message.seq, fate, reason)
        self._room_again(inbox, message.seq)

    def _settle(self, seq: int, fate: Fate, reason: str) -> None:
        self._ledger.fate(self.cursor.name, self.cursor.pattern, fate, seq, seq, 1, reason, self._world.time_ns())

    @property
    def idle(self) -> bool:
        """Whether nothing waits for it in the journal, or nothing more will be taken from there."""
        ready = self._ready is not None and self._ready.done()
        return self._paused or not self.members or (ready and not (self._behind or self._waiting or self.cursor.out))

    async def quiet(self) -> None:
        """Return when it is idle."""
        while not self.idle:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._quiet.append(waiter)
            await waiter

    def _note_idle(self) -> None:
        if self._quiet and self.idle:
            waiters, self._quiet = self._quiet, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def _room_again(self, inbox: Inbox, seq: int) -> None:
        if self._large:
            self._take(seq)
        if self._quiet:
            self._note_idle()
        self._ledger.schedule()
        if self._behind or self._waiting:
            # Worth a look when a good part of what was in is out again, or there is nothing left to take.
            self._gone += 1
            if (self._gone >= self._enough or not inbox.depth or self._waiting) and not self._looking:
                self._looking = True
                asyncio.get_running_loop().call_soon(self.feed)

    def retrying(self, inbox: Inbox, message: Message, story: Sequence[Attempt], pause_s: float) -> None:
        self._ledger.retrying(inbox, message, story, pause_s)

    def passed_on(self, inbox: Inbox, successor: Inbox, message: Message, story: Sequence[Attempt]) -> None:
        """Nothing to write: it is the same subscription's."""
        if message.seq in self._large:
            self._hand(message, successor)

    def died(self, letter: DeadLetter, inbox: Inbox | None) -> None:
        self._ledger.died(letter, inbox)

    def write_down(self, ledger: JournalLedger) -> None:
        """The fates since the last time, and where the cursor stands after them: one transaction."""
        cursor = self.cursor
        if cursor.changed:
            cursor.catch_up()
        for first, last, count in cursor.ranges(self._delivered):
            ledger.fate(cursor.name, cursor.pattern, Fate.DELIVERED, first, last, count, "", self._delivered_ns)
        self._delivered = []
        if cursor.changed and self.durable:
            cursor.changed = False
            now_ns = self._world.time_ns()
            ledger.deed(SAVE, (cursor.name, cursor.pattern, cursor.high, pack(cursor.pending()), now_ns, now_ns))
