"""Attendance: which plain subscribers of a hub are connected. After a crash it shows which subscribers missed messages.

A message that was stored, matched a subscriber and has no fate when the next run begins was lost with the hub. Only the
subscriber itself can correct this, if it reconnects.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import merge
from typing import TYPE_CHECKING, Final, NamedTuple

from trunkline.delivery.fates import Fate
from trunkline.delivery.ranges import Ranges
from trunkline.journal import explain, lookup
from trunkline.topic import matches

if TYPE_CHECKING:
    from trunkline.journal.explain import RecordedFate
    from trunkline.journal.ledger import JournalLedger
    from trunkline.journal.reader import Reader

TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS attendance"
    " (subscriber TEXT PRIMARY KEY, pattern TEXT NOT NULL, since INTEGER NOT NULL) WITHOUT ROWID"
)
COMES: Final = "INSERT OR REPLACE INTO attendance VALUES (?, ?, ?)"
LEAVES: Final = "DELETE FROM attendance WHERE subscriber = ?"
ATTENDED: Final = "SELECT subscriber, pattern FROM attendance"
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
    attending = reader.query("SELECT subscriber, pattern, since FROM attendance")
    if not attending:
        return []
    high = reader.last()
    low = max(high - WINDOW, min(since for _, _, since in attending))
    numbers = lookup.numbers(reader, low + 1, high)
    reported: defaultdict[str, list[RecordedFate]] = defaultdict(list)
    for each in explain.fates_about(reader, low + 1, high):
        reported[each.subscriber].append(each)
    found: list[Loss] = []
    for subscriber, pattern, since in attending:
        open_ones = Ranges()
        for first, last in merge(*(numbers[topic] for topic in numbers if matches(pattern, topic))):
            if last > since:
                open_ones.add(max(first, since + 1), last)
        for each in reported[subscriber]:
            open_ones.take(each.first, each.last)
        found += [Loss(subscriber, pattern, first, last) for first, last in open_ones]
    return found


def settle(reader: Reader, ledger: JournalLedger, now_ns: int) -> tuple[int, set[tuple[str, str]]]:
    """Record what was lost with the last run. Returns the number of deliveries, and who was connected at its end."""
    lost = 0
    for loss in losses(reader):
        count = loss.last - loss.first + 1
        ledger.fate(loss.subscriber, loss.pattern, Fate.DROPPED, loss.first, loss.last, count, LOST, now_ns)
        lost += count
    attended = {(subscriber, pattern) for subscriber, pattern in reader.query(ATTENDED)}
    for subscriber, _ in attended:
        ledger.deed(LEAVES, (subscriber,))
    return lost, attended
