"""The reporter: tells a hub with a journal what became of what a plain subscription got, to be on record there."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import TYPE_CHECKING

from trunkline.brokers.hub.connection import Connection
from trunkline.delivery.fates import Fate
from trunkline.delivery.ledger import QuietLedger
from trunkline.wire import control

if TYPE_CHECKING:
    from trunkline.delivery.deadletters import DeadLetter
    from trunkline.delivery.inbox import Inbox
    from trunkline.message import Message

REPORT_S = 0.02
"""Fates wait so long for others to travel with."""
MAX_ROWS = 1000
ENDS = frozenset({Fate.DELIVERED, Fate.FILTERED, Fate.EXPIRED})
"""Fates after which a dead letter that was replayed is none any more. One that is dropped stays one."""


class Reporter(QuietLedger):
    """The ledger of one inbox. Deliveries that follow each other are one row."""

    def __init__(self, connection: Connection, subscription: int) -> None:
        self._connection = connection
        self._subscription = subscription
        self._rows: list[control.FateRow] = []
        self._letters: list[str] = []
        self.replayed: set[int] = set()
        """Dead letters that are in the inbox again."""
        self.handled: Callable[[Inbox, int], None] = lambda inbox, seq: None
        """Told when one of those has its fate."""
        self._first = self._last = self._count = 0
        self._timer: asyncio.TimerHandle | None = None

    def delivered(self, inbox: Inbox, first: int, last: int, count: int, at_ns: int) -> None:
        if self.replayed:
            for seq in [seq for seq in self.replayed if first <= seq <= last]:
                self._end_replay(inbox, seq, Fate.DELIVERED)
        if self._count and first == self._last + 1:
            self._last = last
            self._count += count
            return
        self._end_run()
        self._first, self._last, self._count = first, last, count
        self._schedule()

    def delivered_one(self, inbox: Inbox, message: Message, at_ns: int) -> None:
        self.delivered(inbox, message.seq, message.seq, 1, at_ns)

    def settled(self, inbox: Inbox, message: Message, fate: Fate, reason: str, at_ns: int) -> None:
        self._end_run()
        self._rows.append(control.FateRow(fate=fate.value, first=message.seq, last=message.seq, count=1, reason=reason))
        self._end_replay(inbox, message.seq, fate)
        self._schedule()

    def _end_replay(self, inbox: Inbox, seq: int, fate: Fate) -> None:
        if seq in self.replayed:
            self.replayed.remove(seq)
            if fate in ENDS:
                self.handled(inbox, seq)

    def died(self, letter: DeadLetter, inbox: Inbox | None) -> None:
        self._letters.append(base64.b64encode(letter.to_bytes()).decode())
        self._schedule()

    def _end_run(self) -> None:
        if self._count:
            self._rows.append(
                control.FateRow(fate=Fate.DELIVERED.value, first=self._first, last=self._last, count=self._count)
            )
            self._count = 0

    def _schedule(self) -> None:
        if len(self._rows) >= MAX_ROWS:
            self.report()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(REPORT_S, self.report)

    def report(self) -> None:
        """Say what there is to say."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._end_run()
        if self._rows or self._letters:
            rows, self._rows = self._rows, []
            letters, self._letters = self._letters, []
            self._connection.say(control.Fates(subscription=self._subscription, rows=rows, letters=letters))
