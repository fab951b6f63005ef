"""The reporter: tells the hub what became of what a plain subscription got. There the fate of a message is kept."""

from __future__ import annotations

import asyncio
import base64
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from trunkline.brokers.hub.connection import Connection
from trunkline.delivery.fates import Fate
from trunkline.delivery.ledger import QuietLedger
from trunkline.delivery.ranges import Ranges
from trunkline.wire import control

if TYPE_CHECKING:
    from trunkline.delivery.deadletters import DeadLetter
    from trunkline.delivery.inbox import Inbox
    from trunkline.message import Message

REPORT_S = 0.25
"""Fates wait so long for others to travel with, unless the hub asks."""
KEPT_REPORT_S = 0.02
"""The same where a journal keeps them: whoever reads it asks nobody."""
MAX_ROWS = 1000
ENDS = frozenset({Fate.DELIVERED, Fate.FILTERED, Fate.EXPIRED})
"""Fates after which a dead letter that was replayed is none any more. One that is dropped stays one."""


class Reporter(QuietLedger):
    """The ledger of one inbox. Deliveries that follow each other are one row."""

    def __init__(self, connection: Connection, subscription: int, *, kept: bool) -> None:
        self._connection = connection
        self._subscription = subscription
        self._pause_s = KEPT_REPORT_S if kept else REPORT_S
        self._open = Ranges()
        """What came, and the hub was not told of."""
        self._rows: list[control.FateRow] = []
        self._told: deque[control.FateRow] = deque(maxlen=MAX_ROWS)
        """The last rows that were said: said again after a reconnection, for the hub may not have heard them."""
        self._letters: list[str] = []
        self.replayed: set[int] = set()
        """Dead letters that are in the inbox again."""
        self.handled: Callable[[Inbox, int], None] = lambda inbox, seq: None
        """Told when one of those has its fate."""
        self._timer: asyncio.TimerHandle | None = None

    def delivered(self, inbox: Inbox, first: int, last: int, count: int, at_ns: int) -> None:
        if self.replayed:
            for seq in [seq for seq in self.replayed if first <= seq <= last]:
                self._end_replay(inbox, seq, Fate.DELIVERED)
        for begin, end in self._open.take(first, last):
            self._row(Fate.DELIVERED, begin, end, "")

    def delivered_one(self, inbox: Inbox, message: Message, at_ns: int) -> None:
        self._end(inbox, message.seq, Fate.DELIVERED, "")

    def settled(self, inbox: Inbox, message: Message, fate: Fate, reason: str, at_ns: int) -> None:
        self._end(inbox, message.seq, fate, reason)

    def came(self, first: int, last: int) -> None:
        """These have come."""
        self._open.add(first, last)

    def unreadable(self, first: int, last: int) -> None:
        for begin, end in self._open.take(first, last):
            self._row(Fate.DROPPED, begin, end, "it could not be read")

    def _end(self, inbox: Inbox, seq: int, fate: Fate, reason: str) -> None:
        if self._open.take(seq, seq) or seq in self.replayed:
            self._row(fate, seq, seq, reason)
        self._end_replay(inbox, seq, fate)

    def _row(self, fate: Fate, first: int, last: int, reason: str) -> None:
        before = self._rows[-1] if self._rows else None
        if before is not None and (before.last + 1, before.fate, before.reason) == (first, fate.value, reason):
            first = before.first
            self._rows.pop()
        self._rows.append(
            control.FateRow(fate=fate.value, first=first, last=last, count=last - first + 1, reason=reason)
        )
        self._schedule()

    def _end_replay(self, inbox: Inbox, seq: int, fate: Fate) -> None:
        if seq in self.replayed:
            self.replayed.remove(seq)
            if fate in ENDS:
                self.handled(inbox, seq)

    def died(self, letter: DeadLetter, inbox: Inbox | None) -> None:
        self._letters.append(base64.b64encode(letter.to_bytes()).decode())
        self._schedule()

    def _schedule(self) -> None:
        if len(self._rows) >= MAX_ROWS:
            self.report()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self.report)

    def report(self) -> None:
        """Say what there is to say."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._rows or self._letters:
            self._say(asked=False)

    def report_all(self, inbox: Inbox) -> None:
        """The hub wants to know: also of what is being handed out one by one, which is counted at the end of that."""
        waiting = sorted(message.seq for message in inbox.unfinished())
        for first, last in list(self._open):
            start = first
            for seq in [*waiting[bisect_left(waiting, first) : bisect_right(waiting, last)], last + 1]:
                if start < seq:
                    self.delivered(inbox, start, seq - 1, seq - start, 0)
                start = seq + 1
        self._say(asked=True)

    def again(self) -> None:
        """On another connection: what was said before may not have been heard, and what is still here is not lost."""
        self._rows[:0] = self._told
        for first, last in self._open:
            self._row(Fate.IN_FLIGHT, first, last, "")
        self._told.clear()
        self.report()

    def _say(self, *, asked: bool) -> None:
        rows, self._rows = self._rows, []
        letters, self._letters = self._letters, []
        self._told.extend(rows)
        self._connection.say(control.Fates(subscription=self._subscription, rows=rows, letters=letters, asked=asked))
