"""Counts the messages that each durable subscription still has to get, for the status of a hub.

The journal is read in its reading thread, never in the event loop. Each count is kept. The next one only adds what was
stored since then, and subtracts what was offered since then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from trunkline.brokers.store import DurablePlace
from trunkline.journal.cursor import unpack
from trunkline.journal.lookup import StoredCounts, count_within, stored_counts
from trunkline.journal.reader import Reader
from trunkline.topic import matches

if TYPE_CHECKING:
    from trunkline.journal.journal import Journal

LONG = 100_000
"""After this many numbers, the reading thread is released for other readers before the counting continues."""
CURSORS = "SELECT name, pattern, high, pending FROM cursors ORDER BY name"


class CursorPosition(NamedTuple):
    """A durable subscription was offered all matches up to `after`; the messages in `out` have no fate yet."""

    name: str
    pattern: str
    after: int
    out: int


class UnreadCount(NamedTuple):
    """The number of matching messages after `after`, up to `upto`."""

    pattern: str
    after: int
    upto: int
    messages: int


class UnreadCounts:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._turn = asyncio.Lock()
        self._counted: dict[str, UnreadCount] = {}
        self._removals = 0
        """The last row of `removals` that the counts include."""
        self._quarantined = 0

    async def places(self) -> list[DurablePlace]:
        """Each durable subscription and its backlog at the time of the call."""
        async with self._turn:
            journal = self._journal
            upto = journal.intake.committed
            positions = {
                each.name: CursorPosition(each.name, each.pattern, each.read, each.out)
                for each in journal.cursors.values()
            }
            for written in await journal.in_thread(self._written):
                positions.setdefault(written.name, written)
            self._counted = {name: known for name, known in self._counted.items() if name in positions}
            places: list[DurablePlace] = []
            left = deque(positions[name] for name in sorted(positions))
            stored: dict[tuple[int, int], StoredCounts] = {}
            while left:
                places += await journal.in_thread(partial(self._count_some, left, upto, stored))
            return places

    def _written(self, reader: Reader) -> list[CursorPosition]:
        """The cursors on disk. Drops counts that include messages removed since."""
        for number, topic, last in reader.query(
            "SELECT number, topic, last FROM removals WHERE number > ? ORDER BY number", (self._removals,)
        ):
            self._removals = number
            self._counted = {
                name: known
                for name, known in self._counted.items()
                if known.after >= last or not matches(known.pattern, topic)
            }
        ((quarantined,),) = reader.query("SELECT count(*) FROM quarantine")
        if quarantined != self._quarantined:
            self._quarantined = quarantined
            self._counted.clear()
        return [
            CursorPosition(name, pattern, high, len(without_fate(reader, name, high, pending)))
            for name, pattern, high, pending in reader.query(CURSORS)
        ]

    def _count_some(
        self, left: deque[CursorPosition], upto: int, stored: dict[tuple[int, int], StoredCounts], reader: Reader
    ) -> list[DurablePlace]:
        """Count for the remaining subscriptions, up to a limit, and then let other readers run."""
        looked_at = 0

        def between(pattern: str, after: int, upto: int) -> int:
            nonlocal looked_at
            if (after, upto) not in stored:
                # Most subscriptions need the same count: messages since the last time.
                with reader.snapshot():
                    stored[after, upto] = stored_counts(reader, after, upto)
                looked_at += upto - after
            return count_within(reader, stored[after, upto], pattern)

        places = []
        while left and looked_at < LONG:
            name, pattern, after, out = left.popleft()
            known = self._counted.get(name)
            messages = 0
            if (
                known is not None
                and known.pattern == pattern
                and known.after <= after <= known.upto <= upto
                and after - known.after + upto - known.upto < upto - after
            ):
                messages = known.messages - between(pattern, known.after, after) + between(pattern, known.upto, upto)
            elif after < upto:
                messages = between(pattern, after, upto)
            self._counted[name] = UnreadCount(pattern, after, max(after, upto), messages)
            places.append(DurablePlace(name, pattern, out + messages))
        return places


def without_fate(reader: Reader, name: str, high: int, pending: bytes) -> set[int]:
    """The messages up to `high` without a fate: in flight, or waiting for a retry."""
    again = reader.query("SELECT seq FROM retries WHERE subscriber = ? AND seq <= ?", (name, high))
    return {*unpack(pending), *(seq for (seq,) in again)}
