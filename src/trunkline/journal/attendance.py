"""Attendance: which plain subscribers of a hub are connected. After a crash it shows which subscribers missed messages.

A message that was stored, matched a subscriber and has no fate when the next run begins was lost with the hub. Only the
subscriber itself can correct this, if it reconnects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.delivery.fates import Fate
from trunkline.delivery.ranges import Ranges
from trunkline.topic import matches

if TYPE_CHECKING:
    from trunkline.journal.ledger import JournalLedger
    from trunkline.journal.reader import Reader

TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS attendance"
    " (subscriber TEXT PRIMARY KEY, pattern TEXT NOT NULL, since INTEGER NOT NULL) WITHOUT ROWID"
)
COMES: Final = "INSERT OR REPLACE INTO attendance VALUES (?, ?, ?)"
LEAVES: Final = "DELETE FROM attendance WHERE subscriber = ?"
LOST: Final = "lost with the hub"
WINDOW: Final = 1_000_000
"""The number of messages at the end of the journal that may have been in flight."""


class Loss(NamedTuple):
    subscriber: str
    pattern: str
    first: int
    last: int


def losses(reader: Reader) -> list[Loss]:
    """Stored messages that connected subscribers were to get, and that have no recorded fate."""
    found: list[Loss] = []
    high = reader.last()
    for subscriber, pattern, since in reader.query("SELECT subscriber, pattern, since FROM attendance"):
        low = max(since, high - WINDOW)
        open_ones = Ranges()
        for first, last, topic in reader.query(
            "SELECT first, last, topic FROM batches WHERE last > ? AND first <= ? ORDER BY first", (low, high)
        ):
            if matches(pattern, topic):
                open_ones.add(max(first, low + 1), min(last, high))
        for first, last in reader.query(
            "SELECT first, last FROM fates WHERE subscriber = ? AND last > ?", (subscriber, low)
        ):
            open_ones.take(first, last)
        found += [Loss(subscriber, pattern, first, last) for first, last in open_ones]
    return found


def settle(reader: Reader, ledger: JournalLedger, now_ns: int) -> int:
    """Record what was lost with the last run. Returns the number of deliveries."""
    lost = 0
    for loss in losses(reader):
        count = loss.last - loss.first + 1
        ledger.fate(loss.subscriber, loss.pattern, Fate.DROPPED, loss.first, loss.last, count, LOST, now_ns)
        lost += count
    for (subscriber,) in reader.query("SELECT subscriber FROM attendance"):
        ledger.deed(LEAVES, (subscriber,))
    return lost
