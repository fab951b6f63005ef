"""Durable subscriptions: feeds the messages of a cursor from the journal into the inboxes of its subscribers.

While the subscribers keep up, committed messages go directly to them. When they have no room, the cursor falls behind,
and reads from the journal when there is room again. Publishers never wait for it. `backlog.py` decides what is read and
offered, and when; `members.py` decides which subscriber gets it. This module carries out the decisions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from trunkline.clock import World
from trunkline.delivery.dead_letters import Attempt, DeadLetter
from trunkline.delivery.fates import Fate
from trunkline.delivery.inbox import Inbox
from trunkline.delivery.ledger import Ledger
from trunkline.journal.backlog import Backlog, KeptMessage, ReadNumbers
from trunkline.journal.cursor import Cursor, pack
from trunkline.journal.kept import kept_for
from trunkline.journal.ledger import JournalLedger
from trunkline.journal.members import FeederMembers
from trunkline.journal.reader import STEP_BYTES, Reader
from trunkline.journal.retry_timer import RetryTimer
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


class Feeder(Ledger):
    """One cursor and the inboxes that share it. It is also their ledger: settled messages move the cursor."""

    def __init__(
        self, cursor: Cursor, journal: Journal, world: World, start: Start | None = None, *, durable: bool = True
    ) -> None:
        self.cursor = cursor
        self.durable = durable
        """Whether the cursor is stored. If not, the subscription ends with its only subscriber."""
        self._members = FeederMembers(cursor.name)
        self._journal = journal
        self._ledger = journal.ledger
        self._world = world
        self._start = start
        self._backlog = Backlog(cursor)
        self.pauses: dict[int, float] = {}
        """Delays of messages that a leaving member returns."""
        self._delivered: list[int] = []
        self._delivered_ns = 0
        self._ready: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._retries = RetryTimer(self._backlog, self.feed)
        self._again: asyncio.TimerHandle | None = None
        """The timer for the next attempt to open it."""
        self._paused = False
        self._gone = 0
        """Messages settled since the last check for room."""
        self._looking = False
        self._recalled = False
        self._rested = False
        """Whether it had no subscribers for a while, and dropped the messages it had read."""
        self._kept_safe = True
        self._quiet: list[asyncio.Future[None]] = []

    @property
    def members(self) -> Sequence[Inbox]:
        """Its subscribers."""
        return self._members.all

    def register(self) -> None:
        """Register with the journal, which asks it for entries to write and keeps its unread messages."""
        self._ledger.scribes.add(self)
        if self.durable:
            self._journal.cursors[self.cursor.name] = self.cursor

    # Subscribers

    def join(self, inbox: Inbox) -> asyncio.Future[None]:
        """Add a subscriber. Returns when the cursor is on disk and the subscriber receives its share."""
        inbox.ledger = self
        if self.durable:
            inbox.back = self._take_back
        inbox.role = self.cursor.name
        inbox.successor_of = self._members.successor_of(inbox)
        self._members.add(inbox)
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
        # A handler does not wait for this task, so the error is logged and the next attempt scheduled here.
        if not ready.cancelled() and (error := ready.exception()) is not None and self._members:
            log.error("%s could not be opened, next attempt in %g s: %s", self.cursor.name, AGAIN_S, error)
            self._again = asyncio.get_running_loop().call_later(AGAIN_S, self._open_again)

    def _open_again(self) -> None:
        if self._has_failed and self._members and not self._paused:
            self._open()

    async def _prepare(self) -> None:
        """Find the start, and load the messages that were in flight when the journal was last closed."""
        if not self._recalled:
            await self._recall()
            self._recalled = True
        if self.durable and (self.cursor.changed or not self._kept_safe):
            # Before the cursor is on disk, a restart would begin at another position.
            self._kept_safe = False
            await self._journal.flush()
            self._kept_safe = True
        self.feed()

    async def _recall(self) -> None:
        if self._start is not None:
            self._backlog.start_at(*await self._journal.in_thread(self._start))
            self._start = None
        if self._rested:
            # Failures of its last subscribers may not be written yet.
            await self._journal.flush()
        name = self.cursor.name
        kept = await self._journal.in_thread(lambda reader: kept_for(reader, name))
        counts = self._backlog.recalled(kept)
        if isinstance(action := self._backlog.next_read(self._members.room), ReadNumbers):
            await self._read_numbers(action)
        for each in self._backlog.place(counts):
            self._schedule_retry(each)

    async def _read_numbers(self, action: ReadNumbers) -> None:
        found, left = await self._journal.in_thread(lambda reader: reader.some_within(action.seqs, STEP_BYTES))
        for seq in self._backlog.numbers_read(action, found, left):
            # Retention removed it, or it is damaged: it cannot be delivered.
            self._settle(seq, Fate.DROPPED, "it is no longer in the journal")

    def part(self, inbox: Inbox) -> None:
        self._members.remove(inbox)
        self._note_idle()

    def _forget_messages(self) -> None:
        """Without subscribers, drop the messages that were read. They are read again for the next subscriber."""
        ready = self._ready is not None and self._ready.done() and not self._has_failed
        if self._members or not self.durable or self._paused or not ready or self._reading is not None:
            return
        self._backlog.forget(self._delivered)
        self.pauses.clear()
        self._cancel_timers()
        self._ready = None
        self._recalled = False
        self._rested = True

    def part_from_abandoned(self) -> None:
        """Remove streams that were garbage-collected. Their messages go to other members."""
        for member in self._members.abandoned:
            if member.leave is not None:
                member.leave(member)

    def _take_back(self, message: Message, story: list[Attempt]) -> None:
        self._members.take(message.seq)
        if (pause_s := self.pauses.pop(message.seq, 0.0)) > 0:
            self._schedule_retry(KeptMessage(message, story, self._world.time_ns() + int(pause_s * 1e9)))
        else:
            self._backlog.hand_back(message, story)

    def pause(self) -> None:
        """Offer nothing more. Messages that were not taken stay in the journal."""
        self._paused = True
        self._note_idle()

    async def stop(self) -> None:
        """Deliver nothing more, and end all waiting."""
        await asyncio.gather(*self.stop_soon(), return_exceptions=True)

    def _cancel_timers(self) -> None:
        self._retries.cancel()
        if self._again is not None:
            self._again.cancel()

    def stop_soon(self) -> list[asyncio.Task[None]]:
        """Like `stop`, but returns the running task instead of waiting for it."""
        self.pause()
        self._cancel_timers()
        tasks = [task for task in (self._ready, self._reading) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks

    def let_go(self) -> None:
        """Release the cursor, after everything was written."""
        self._ledger.scribes.discard(self)
        if self.durable:
            self._journal.cursors.pop(self.cursor.name, None)

    # Messages in

    def _schedule_retry(self, kept: KeptMessage) -> None:
        self._retries.postpone(kept, self._world.time_ns())

    def give_again(self, message: Message) -> None:
        """Redeliver a dead letter."""
        self._backlog.give_again(message, recalled=self._ready is not None and self._ready.done())
        self.feed()

    def live(self, messages: Sequence[Message]) -> None:
        """Offer messages that were just committed.

        They go directly to a subscriber with room; without one, they are read later.
        """
        backlog = self._backlog
        if backlog.behind or self._paused:
            backlog.behind = True
            return
        self.part_from_abandoned()
        for message in messages:
            if not backlog.committed(message.seq):
                continue
            inbox = self._members.free()
            if inbox is None:
                backlog.behind = True
                return
            self._offer(message, inbox)

    def _offer(self, message: Message, inbox: Inbox) -> None:
        """Offer a message to this subscription for the first time in this process."""
        if (kept := self._backlog.offer(message.seq)) is not None:
            self._schedule_retry(kept)
            self._offer_waiting()
        else:
            self._members.hand(message, inbox)
            inbox.offer(message)

    def feed(self) -> None:
        """Offer waiting messages, and read more if there is room."""
        self._looking = False
        self._gone = 0
        if self._paused or self._ready is None:
            return
        self.part_from_abandoned()
        self._forget_messages()
        self._offer_waiting()
        if self._backlog.behind and self._reading is None and self._members.room > 0:
            self._reading = asyncio.get_running_loop().create_task(self._catch_up(), name=f"feed {self.cursor.name}")

    def _offer_waiting(self) -> None:
        waiting = self._backlog.waiting
        while waiting and (inbox := self._members.free()) is not None:
            message, story = waiting.popleft()
            if story and inbox.custody is not None:
                inbox.custody.take_over(message.seq, story)
            self._members.hand(message, inbox)
            inbox.readmit(message)

    async def _catch_up(self) -> None:
        backlog = self._backlog
        try:
            while not self._paused and self._members.room > 0:
                action = backlog.next_read(self._members.room)
                if isinstance(action, ReadNumbers):
                    await self._read_numbers(action)
                    if self._paused:
                        return
                    self._offer_waiting()
                    continue
                if action is not None:
                    committed = self._journal.intake.committed
                    found, upto = await self._journal.in_thread(partial(self._read_on, limit=action.limit))
                    backlog.read_on(found, upto, committed)
                    if self._paused:
                        return
                while backlog.ahead and (inbox := self._members.free()) is not None:
                    self._offer(backlog.ahead.popleft(), inbox)
                if backlog.ahead:
                    return
                for kept in backlog.all_offered():
                    self._schedule_retry(kept)
                self._offer_waiting()
                if backlog.caught_up(self._journal.intake.committed):
                    return
        except Exception as error:
            log.error("%s cannot read the journal, next attempt in %g s: %s", self.cursor.name, AGAIN_S, error)
            asyncio.get_running_loop().call_later(AGAIN_S, self.feed)
        finally:
            self._reading = None
            self._note_idle()
            self._forget_messages()

    def _read_on(self, reader: Reader, limit: int) -> tuple[list[Message], int]:
        """Read messages in the reading thread.

        Retention waits for this, so that it takes into account what was read.
        """
        cursor = self.cursor
        with self._journal.removing:
            found, upto = reader.some_after(cursor.pattern, cursor.read, limit)
            cursor.ahead = found[-1].seq if found else cursor.read
        return found, upto

    # Fates: the ledger of its members

    def delivered(self, inbox: Inbox, first: int, last: int, count: int, at_ns: int) -> None:
        raise AssertionError("a durable subscription acknowledges each message by itself")

    def delivered_one(self, inbox: Inbox, message: Message, at_ns: int) -> None:
        again = self.cursor.is_again(message.seq)
        if self.cursor.settle(message.seq):
            if again:
                # It may have an earlier fate: a separate row shows which one is valid.
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
        """Whether the journal has no messages for it, or no more will be read."""
        ready = self._ready is not None and self._ready.done()
        return (
            self._paused
            or not self._members
            or (ready and not (self._backlog.behind or self._backlog.waiting or self.cursor.out))
        )

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
        self._members.take(seq)
        if self._quiet:
            self._note_idle()
        self._ledger.schedule()
        backlog = self._backlog
        if backlog.behind or backlog.waiting:
            # Checked when many messages were settled, or when the inboxes are empty.
            self._gone += 1
            if (self._gone >= self._members.enough or not inbox.depth or backlog.waiting) and not self._looking:
                self._looking = True
                asyncio.get_running_loop().call_soon(self.feed)

    def retrying(self, inbox: Inbox, message: Message, story: Sequence[Attempt], pause_s: float) -> None:
        self._ledger.retrying(inbox, message, story, pause_s)

    def passed_on(self, inbox: Inbox, successor: Inbox, message: Message, story: Sequence[Attempt]) -> None:
        """Nothing is written: the message stays in the same subscription."""
        self._members.pass_on(message, successor)

    def died(self, letter: DeadLetter, inbox: Inbox | None) -> None:
        self._ledger.died(letter, inbox)

    def write_down(self, ledger: JournalLedger) -> None:
        """The fates since the last call and the new position of the cursor, for one transaction."""
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
