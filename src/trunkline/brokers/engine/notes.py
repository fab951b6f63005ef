"""Notes on entries that are settled in part. The engine keeps them for the process that gets such an entry next.

An engine redelivers an entry as a whole. A note contains the numbers of its messages that are still open. Notes are
written a few times a second, and only on entries that have been settled in part for a while: an entry that is handled
quickly never has one. Messages that were settled after the last note are delivered again if the process is killed.

An engine records acknowledgements, not fates. Another kind of note contains the number from which on messages of a
place may have been filtered or dropped. A place rarely has more than one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha1
from typing import TYPE_CHECKING

import msgspec

from trunkline.errors import TrunklineError

if TYPE_CHECKING:
    from trunkline.brokers.engine.connection import EngineConnection
    from trunkline.brokers.engine.driver import EngineDriver
    from trunkline.brokers.engine.held import HeldEntry

NOTE_S = 0.1
"""A settled message waits for its note at least half of this time, and at most all of it."""
NOTE_BYTES = 16 * 1024
"""The interval grows by NOTE_S for every NOTE_BYTES of the last notes."""

UNDELIVERED = "undelivered-"
"""The key of a note on messages that were not delivered begins with this. The rest is the number of the first one."""

Open = list[tuple[int, int]]
"""Ranges of numbers, both ends included."""


def table_of(role: str) -> str:
    """The table of the notes of a place. Redis computes the same name in `place_scripts`."""
    return f"open-{sha1(role.encode(), usedforsecurity=False).hexdigest()[:16]}"


async def is_settled(driver: EngineDriver, role: str, number: int) -> bool:
    """Whether a note says that a message of an unfinished entry is settled."""
    async for key, still_open in read_all(driver, role):
        first, _, last = key.partition("-")
        if int(first) <= number <= int(last):
            return not any(begin <= number <= end for begin, end in still_open)
    return False


async def read_all(driver: EngineDriver, role: str) -> AsyncIterator[tuple[str, Open]]:
    """The keys and the open messages of all entries with notes."""
    async for key, value in _pages(driver, role):
        if not key.startswith(UNDELIVERED):
            yield key, _decode(value)


async def may_be_undelivered(driver: EngineDriver, role: str, number: int) -> bool:
    """Whether an acknowledged message may have been filtered or dropped."""
    async for key, _ in _pages(driver, role):
        if key.startswith(UNDELIVERED) and int(key.removeprefix(UNDELIVERED)) <= number:
            return True
    return False


async def _pages(driver: EngineDriver, role: str) -> AsyncIterator[tuple[str, bytes]]:
    after = ""
    while True:
        page, after = await driver.page(table_of(role), after)
        for key, value in page:
            yield key, value
        if not after:
            return


class EntryNotes:
    """The notes that one subscriber of a place writes and reads."""

    def __init__(self, connection: EngineConnection, role: str) -> None:
        self._connection = connection
        self._driver = connection.driver
        self._role = role
        self._table = table_of(role)
        self._changed: dict[str, HeldEntry] = {}
        """Entries changed since the last tick. Most of them are acknowledged before the next tick."""
        self._due: dict[str, HeldEntry] = {}
        """Entries changed before the last tick. Their notes are written at the next tick."""
        self._gone: dict[str, None] = {}
        """Notes to remove: their entries are acknowledged."""
        self._pause_s = NOTE_S
        self._timer: asyncio.TimerHandle | None = None
        self._turn = asyncio.Lock()
        """Serialises writes: an older note must not be written after a newer one, nor after its removal."""

    def changed(self, entry: HeldEntry) -> None:
        """Called when some messages of an entry were settled, and others are open."""
        if entry.key not in self._due:
            self._changed[entry.key] = entry
            self._schedule()

    def finished(self, entry: HeldEntry) -> None:
        """Called when an entry was acknowledged."""
        self._changed.pop(entry.key, None)
        self._due.pop(entry.key, None)
        if entry.noted:
            self._gone[entry.key] = None
            self._schedule()

    def connected(self) -> None:
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is None and (self._changed or self._due or self._gone):
            self._timer = asyncio.get_running_loop().call_later(self._pause_s / 2, self._is_time)

    def _is_time(self) -> None:
        self._timer = None
        if not self._connection.live:
            return
        due, self._due, self._changed = self._due, self._changed, {}
        if due or self._gone:
            self._connection.start(self._write(due), "messages that were acknowledged may be delivered again")
        self._schedule()

    async def write(self) -> None:
        """Return when the engine has notes on everything that was settled so far. Raises EngineUnavailable."""
        changed = self._due | self._changed
        self._due, self._changed = {}, {}
        await self._write(changed)

    async def note_undelivered(self, number: int) -> None:
        """Return when the engine has a note that this message, and later ones, may be undelivered."""
        if not await may_be_undelivered(self._driver, self._role, number):
            await self._driver.keep(self._table, f"{UNDELIVERED}{number}", b"")

    async def _write(self, entries: dict[str, HeldEntry]) -> None:
        async with self._turn:
            gone, self._gone = self._gone, {}
            # Some entries may have been acknowledged while earlier notes were written.
            notes = {key: _encode(list(entry.open)) for key, entry in entries.items() if entry.open.total}
            for key in notes:
                # Set before the note is written: if the entry is acknowledged meanwhile, its note must be removed.
                entries[key].noted = True
            keep, discard = self._driver.keep, self._driver.discard
            try:
                await asyncio.gather(*(keep(self._table, key, note) for key, note in notes.items()))
                await asyncio.gather(*(discard(self._table, key) for key in gone if key not in notes))
            except TrunklineError:
                self._due |= {key: entries[key] for key in notes if key not in self._gone}
                self._gone = gone | self._gone
                raise
            self._pause_s = NOTE_S * (1 + sum(map(len, notes.values())) // NOTE_BYTES)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # Reading

    async def all(self) -> dict[str, Open]:
        """The open messages of all entries with notes, by key."""
        return {key: still_open async for key, still_open in read_all(self._driver, self._role)}

    async def read(self, key: str) -> Open | None:
        """The open messages of an entry; None if it has no note."""
        value = await self._driver.kept(self._table, key)
        return None if value is None else _decode(value)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Open).decode
