"""The reserve of a hub: numbers that may be assigned before anything about them is on disk.

Messages on topics that are not stored get numbers, too, and clients report their fates by number. If the hub is killed,
the next run starts after the reserve, so that no number is assigned twice. A journal that is closed stores the exact
number instead.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trunkline.journal.journal import Journal
    from trunkline.journal.writer import Database

log = logging.getLogger("trunkline.journal")

BLOCK: Final = 20_000
MAX_BLOCK: Final = 20_000_000
SOON_S: Final = 1.0
"""If a block is used up sooner than this, the next one is twice as large."""


class NumberReserve:
    """The reserve must be extended when a number above `due` was assigned. Compare after assigning numbers."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._block = BLOCK
        self._extended_at = 0.0
        self._writing = False
        self.due = 0

    async def begin(self) -> None:
        """Reserve the first numbers. Returns when the reserve is on disk. Raises JournalUnusable."""
        upto = self._journal.intake.numbers.last + self._block
        await asyncio.wrap_future(self._journal.writer.call(lambda database: reserve(database, upto)))
        self._extended_at = asyncio.get_running_loop().time()
        self.due = upto - self._block // 2

    def extend(self) -> None:
        """Extend the reserve with the next commit."""
        if self._writing:
            return
        self._writing = True
        now = asyncio.get_running_loop().time()
        if now < self._extended_at + SOON_S:
            self._block = min(2 * self._block, MAX_BLOCK)
        self._extended_at = now
        upto = self._journal.intake.numbers.last + self._block
        written = asyncio.wrap_future(self._journal.writer.call(lambda database: reserve(database, upto)))
        self.due = upto - self._block // 2
        written.add_done_callback(self._written)

    def _written(self, written: asyncio.Future[None]) -> None:
        self._writing = False
        if not written.cancelled() and (error := written.exception()) is not None:
            # The next attempt follows when half a block of numbers was assigned.
            log.error("%s: the next numbers could not be reserved: %s", self._journal.directory, error)


def reserve(database: Database, upto: int) -> None:
    """Mark the numbers up to this one as used, from this commit on."""
    database.execute(
        "INSERT INTO meta VALUES ('last', ?) ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
        (upto,),
    )
