"""The reporter sends the fates of messages of a plain subscription to the broker, which keeps them."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING

from trunkline.brokers.remote.adapter import Adapter, FateRange
from trunkline.delivery.fates import Fate
from trunkline.delivery.ledger import Ledger
from trunkline.delivery.ranges import Ranges

if TYPE_CHECKING:
    from trunkline.delivery.dead_letters import DeadLetter
    from trunkline.delivery.inbox import Inbox
    from trunkline.message import Message

MAX_WAIT_S = 0.1
"""The longest interval between two checks of what was delivered, unless the broker asks for a longer one."""
MAX_ROWS = 1000
ENDS = frozenset({Fate.DELIVERED, Fate.FILTERED, Fate.EXPIRED})
"""Fates with which a replayed message stops being a dead letter. If it is dropped, it remains one."""


class Reporter(Ledger):
    """The ledger of one inbox. Consecutive deliveries are reported as one row."""

    def __init__(self, adapter: Adapter, subscription: int, inbox: Inbox, pause_s: float) -> None:
        self._adapter = adapter
        self._inbox = inbox
        self._subscription = subscription
        self._pause_s = self._wait_s = pause_s
        """How long fates are collected before they are reported, unless the broker asks."""
        self._highest = 0
        self._mixed = False
        """Whether messages have arrived out of the order of their numbers. A range of deliveries is then not
        reliable."""
        self._open = Ranges()
        """Messages that had arrived by the last `_fold`, and have no fate yet."""
        self._arrived_from = 0
        """The first message of the range without a gap that arrived since then and ends at `_highest`; 0 if there is
        none."""
        self._taken_from = self._taken_to = 0
        """The last range of deliveries without a gap; 0 if nothing was delivered since the last `_fold`."""
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        """The ranges of deliveries before that, since the last `_fold`."""
        self._rows: list[FateRange] = []
        self._reported: deque[FateRange] = deque(maxlen=MAX_ROWS)
        """The last rows that were reported. They are reported again after a reconnection, because they may not have
        arrived."""
        self._letters: list[DeadLetter] = []
        self.replayed: set[int] = set()
        """Dead letters that were replayed, and have no other fate yet."""
        self.handled: Callable[[Inbox, int], None] = lambda inbox, seq: None
        """Called when a replayed message has reached a fate in ENDS."""
        self._timer: asyncio.TimerHandle | None = None

    def delivered(self, inbox: Inbox, first: int, last: int, count: int, at_ns: int) -> None:
        if self.replayed:
            for seq in [seq for seq in self.replayed if first <= seq <= last]:
                self._end_replay(inbox, seq, Fate.DELIVERED)
        if self._mixed:
            self._count_what_is_gone()
        else:
            self._taken(first, last)

    def _taken(self, first: int, last: int) -> None:
        if first != self._taken_to + 1 or not self._taken_from:
            if self._taken_from:
                self._firsts.append(self._taken_from)
                self._lasts.append(self._taken_to)
                if len(self._firsts) >= MAX_ROWS:
                    self._fold()
            self._taken_from = first
        self._taken_to = last

    def _fold(self) -> None:
        """Record arrivals and deliveries in the ranges.

        This is done rarely, so that a message costs little, and consecutive messages cost nothing.
        """
        if self._arrived_from:
            self._open.add(self._arrived_from, self._highest)
            self._arrived_from = 0
        if self._taken_from:
            firsts, lasts = [*self._firsts, self._taken_from], [*self._lasts, self._taken_to]
            self._firsts, self._lasts, self._taken_from = [], [], 0
            if self._open.take_lowest(firsts, lasts):
                # The usual case: what has arrived was delivered, in order.
                self._rows += map(FateRange, repeat(Fate.DELIVERED), firsts, lasts, repeat(""))
            else:
                for first, last in zip(firsts, lasts, strict=True):
                    self._deliver(first, last)
            if self._rows:
                self._schedule()

    def _deliver(self, first: int, last: int) -> None:
        if self._open.take_first(first, last):
            # Deliveries are nearly always in order, and this takes a tenth of the time.
            self._rows.append(FateRange(Fate.DELIVERED, first, last, ""))
            return
        for begin, end in self._open.take(first, last):
            self._row(Fate.DELIVERED, begin, end, "")

    def _count_what_is_gone(self) -> None:
        """Count as delivered the messages that arrived, are no longer in the inbox, and have no other fate."""
        self._fold()
        waiting = sorted(message.seq for message in self._inbox.unfinished())
        for first, last in list(self._open):
            start = first
            for seq in [*waiting[bisect_left(waiting, first) : bisect_right(waiting, last)], last + 1]:
                for begin, end in self._open.take(start, seq - 1):
                    self._row(Fate.DELIVERED, begin, end, "")
                start = seq + 1

    def delivered_one(self, inbox: Inbox, message: Message, at_ns: int) -> None:
        seq = message.seq
        if self.replayed:
            self._end(inbox, seq, Fate.DELIVERED, "")
        else:
            self._taken(seq, seq)

    def settled(self, inbox: Inbox, message: Message, fate: Fate, reason: str, at_ns: int) -> None:
        self._end(inbox, message.seq, fate, reason)

    def arrived(self, first: int, last: int) -> None:
        if first <= self._highest:
            # Happens with several topics at a broker with a journal, or with channels of different rank.
            self._fold()
            self._mixed = True
            self._open.add(first, last)
        elif first != self._highest + 1 or not self._arrived_from:
            if self._arrived_from:
                self._open.add(self._arrived_from, self._highest)
            self._arrived_from = first
        if last > self._highest:
            self._highest = last
        if self._timer is None:
            self._schedule()

    def unreadable(self, first: int, last: int) -> None:
        self._fold()
        for begin, end in self._open.take(first, last):
            self._row(Fate.DROPPED, begin, end, "it could not be read")

    def _end(self, inbox: Inbox, seq: int, fate: Fate, reason: str) -> None:
        self._fold()
        if self._open.take(seq, seq) or seq in self.replayed:
            self._row(fate, seq, seq, reason)
        self._end_replay(inbox, seq, fate)

    def _row(self, fate: Fate, first: int, last: int, reason: str) -> None:
        before = self._rows[-1] if self._rows else None
        if before is not None and (before.last + 1, before.fate, before.reason) == (first, fate, reason):
            first = before.first
            self._rows.pop()
        self._rows.append(FateRange(fate, first, last, reason))
        self._schedule()

    def _end_replay(self, inbox: Inbox, seq: int, fate: Fate) -> None:
        if seq in self.replayed:
            self.replayed.remove(seq)
            if fate in ENDS:
                self.handled(inbox, seq)

    def died(self, letter: DeadLetter, inbox: Inbox | None) -> None:
        self._letters.append(letter)
        self._schedule()

    def _schedule(self) -> None:
        if len(self._rows) >= MAX_ROWS:
            self.report()
        elif self._timer is None:
            self._wait_s = self._pause_s
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.report()
        if self._open.total and self._timer is None:
            # No callback runs when the next of these messages is taken from a batch, so check again. The interval grows
            # while none is taken.
            self._wait_s = min(max(MAX_WAIT_S, self._pause_s), 2 * self._wait_s)
            self._timer = asyncio.get_running_loop().call_later(self._wait_s, self._tick)

    def report(self) -> None:
        """Send the fates and dead letters that were not reported yet."""
        self._count_running()
        if self._rows or self._letters:
            self._send(asked=False)

    def _count_running(self) -> None:
        """Count the delivered messages of batches that are still being handed out one by one.

        The inbox counts such a batch only at its end, which may take long.
        """
        queue = self._inbox.queue
        for first in self._inbox.books.running:
            # The messages are plain and in order, so all before the head of the queue were handed out.
            self.delivered(self._inbox, first, queue[0].seq - 1 if queue else self._highest, 0, 0)
        self._fold()

    def report_now(self) -> None:
        """Answer a request of the broker."""
        self._count_running()
        self._send(asked=True)

    def resume(self) -> None:
        """Continue on a new connection.

        The last rows are reported again. The messages in the inbox are reported as in flight, so that they do not count
        as lost.
        """
        self._fold()
        self._rows[:0] = self._reported
        for first, last in self._open:
            self._row(Fate.IN_FLIGHT, first, last, "")
        self._reported.clear()
        self.report()

    def _send(self, *, asked: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rows, self._rows = self._rows, []
        letters, self._letters = self._letters, []
        self._reported.extend(rows)
        self._adapter.report(self._subscription, rows, letters, asked=asked)
        if self._open.total:
            self._schedule()

    def close(self) -> None:
        self.report()
        if self._timer is not None:
            self._timer.cancel()
