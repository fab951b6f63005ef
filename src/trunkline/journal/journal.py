"""The journal: the durable record of messages and fates. One process writes to it, any number may read."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from trunkline.clock import Sequence as Numbers
from trunkline.clock import World
from trunkline.errors import JournalDamaged
from trunkline.hooks.hook import Attachment
from trunkline.journal.cursor import Cursor, unpack
from trunkline.journal.errors import JournalUnusable
from trunkline.journal.intake import Intake
from trunkline.journal.ledger import KEEP, JournalLedger, decode_letter, encode
from trunkline.journal.lock import Lock
from trunkline.journal.reader import Reader
from trunkline.journal.repair.quarantine import put_aside
from trunkline.journal.retention import CursorProgress
from trunkline.journal.settings import JournalSettings, Retention
from trunkline.journal.tender import Tender
from trunkline.journal.writer import Database, Writer
from trunkline.message import Message
from trunkline.topic import EVERYTHING
from trunkline.unchecked import without_numbers

T = TypeVar("T")

log = logging.getLogger("trunkline.journal")

LAST = (
    "SELECT max(n) FROM (SELECT (SELECT last FROM batches ORDER BY first DESC LIMIT 1) AS n"
    " UNION ALL SELECT max(last) FROM quarantine UNION ALL SELECT max(last) FROM removals"
    " UNION ALL SELECT max(last) FROM files WHERE kind = 'messages' UNION ALL SELECT max(last) FROM fates"
    " UNION ALL SELECT max(high) FROM cursors UNION ALL SELECT max(seq) FROM dead_letters"
    " UNION ALL SELECT max(seq) FROM retries UNION ALL SELECT max(seq) FROM orphans"
    " UNION ALL SELECT value FROM meta WHERE key = 'last')"
)
LAST_AT = (
    "SELECT max(n) FROM (SELECT (SELECT at_ns FROM batches ORDER BY first DESC LIMIT 1) AS n"
    " UNION ALL SELECT max(until_at_ns) FROM files)"
)


AGAIN_S = 1.0


class Journal:
    """A directory with a SQLite file and a lake. `open` locks it for this process; use it with `with`, or on a bus.

    Without `threaded` everything runs in the calling thread, for virtual time and for tools.
    """

    def __init__(
        self,
        directory: str | Path,
        settings: JournalSettings | None = None,
        *,
        world: World | None = None,
        threaded: bool = True,
    ) -> None:
        self.directory = Path(directory)
        self.settings = settings or JournalSettings()
        self.world = world or World()
        self.threaded = threaded
        self._lock = Lock(self.directory)
        self._writer: Writer | None = None
        self._reader: Reader | None = None
        self._side_reader: Reader | None = None
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None
        self._intake: Intake | None = None
        self._ledger: JournalLedger | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closing = False
        self.cursors: dict[str, Cursor] = {}
        """The durable subscriptions that have subscribers."""
        self.removing = threading.Lock()
        """Held while retention commits, and while a durable subscription reads, so that their view is consistent."""
        self.tender = Tender(self)
        self.channel_rules: tuple[Retention, ...] = ()
        """The retention of a hub's channels, in addition to the settings. More specific patterns come first.

        Replaced as a whole, because the tender reads it in its own thread."""

    @property
    def retention(self) -> tuple[tuple[Retention, ...], ...]:
        return self.settings.retention, self.channel_rules

    # Opening and closing

    def name_hub(self, address: str) -> None:
        """Store the address of this hub in the lock. JournalLocked then names it to other processes."""
        self._lock.name_owner(address)

    def open(self) -> Self:
        """Lock the journal for this process. Raises JournalLocked if another process has it, JournalUnusable if it
        cannot be opened."""
        if self._writer is not None:
            return self
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise JournalUnusable(str(self.directory), str(error)) from error
        self._lock.take()
        try:
            self._writer = Writer(self.directory, self.settings, self.world, self._after)
            self._writer.open(threaded=self.threaded)
            self._reader = Reader(self.directory, on_damage=self.quarantine)
            numbers = Numbers(self._reader.query(LAST)[0][0] or 0)
            at_ns = self._reader.query(LAST_AT)[0][0] or 0
            self._intake = Intake(self._writer, self.world, numbers, self.settings.max_backlog_bytes, at_ns)
            self._ledger = JournalLedger(self.settings, self.world, self._flush_soon)
            self._ledger.retries = set(self._reader.query("SELECT subscriber, seq FROM retries"))
            self._intake.more = self._ledger.jobs
            self._intake.again = self._flush_later
            self.tender.clear_away()
        except BaseException:
            self._shut()
            raise
        if self.threaded:
            self._threads = concurrent.futures.ThreadPoolExecutor(1, f"read {self.directory.name}")
            self.tender.start()
        return self

    def close(self) -> None:
        """Write everything that waits, and release the lock. Closing twice is allowed."""
        if self._begin_close():
            self._end_close()

    async def aclose(self) -> None:
        """Like `close`, from an event loop and without blocking it."""
        if not self._begin_close():
            return
        if self.threaded:
            await asyncio.get_running_loop().run_in_executor(None, self._end_close)
        else:
            self._end_close()

    def _begin_close(self) -> bool:
        if self._writer is None or self._closing:
            return False
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.intake.flush()
        last = self.intake.numbers.last
        # Also numbers of messages that were not stored: no number is used twice.
        self._writer.call(lambda database: _remember(database, last))
        return True

    def _end_close(self) -> None:
        self.tender.stop()
        self._shut()
        self._closing = False

    def _shut(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        # Before they are closed, so that the event loop starts no further query: this may be another thread.
        readers = self._reader, self._side_reader
        self._reader = self._side_reader = None
        for reader in readers:
            if reader is not None:
                reader.close()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._lock.release()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    # Parts

    @property
    def identity(self) -> str:
        """The UUID of this journal. Stored positions keep it with the number."""
        return self.reader.identity or ""

    @property
    def writer(self) -> Writer:
        if self._writer is None:
            raise JournalUnusable(str(self.directory), "it is not open")
        return self._writer

    @property
    def intake(self) -> Intake:
        if self._intake is None:
            raise JournalUnusable(str(self.directory), "it is not open")
        return self._intake

    @property
    def ledger(self) -> JournalLedger:
        if self._ledger is None:
            raise JournalUnusable(str(self.directory), "it is not open")
        return self._ledger

    @property
    def reader(self) -> Reader:
        """A reader for short queries in this thread. For long reads, open a separate Reader."""
        if self._reader is None:
            raise JournalUnusable(str(self.directory), "it is not open")
        return self._reader

    def _after(self, jobs: Sequence[Any], error: Exception | None) -> None:
        if self._intake is not None:
            self._intake.after(jobs, error)

    # As the store of the persistence hook

    def attach(self, bus: Attachment, pattern: str = EVERYTHING) -> None:
        """Called by the persistence hook: the journal assigns numbers and writes fates."""
        self.open()
        sequence = bus.broker.sequence
        sequence.last = max(sequence.last, self.intake.numbers.last)
        self.intake.numbers = sequence
        # Messages are written first and published later, so numbers do not always ascend in an inbox.
        bus.broker.served.exact = True
        self.ledger.keep_only(pattern)
        bus.record_in(self.ledger)

    async def append(self, batch: Sequence[Message]) -> list[Message]:
        """Write messages of one topic; they are on disk when this returns. Returns them with their numbers."""
        self.open()
        numbered = without_numbers(batch)
        await self.intake.put_many(batch[0].topic, numbered, True, alike=False)
        return numbered

    def _flush_soon(self) -> None:
        """Schedule the writing of fates. They are written with the next commit, after at most `flush_s`."""
        if self._timer is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._timer = loop.call_later(self.settings.flush_s, self._flush)

    def _flush_later(self) -> None:
        """Keep the fates and cursors of a failed commit, and write them again later."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._closing:
            self._timer = asyncio.get_running_loop().call_later(AGAIN_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        if self._writer is not None:
            self.intake.flush()

    async def flush(self) -> None:
        """Return when everything so far, fates and cursors too, is on disk."""
        self.intake.flush()
        await asyncio.wrap_future(self.writer.call(lambda database: None))

    # Reading beside the event loop

    async def in_thread(self, function: Callable[[Reader], T]) -> T:
        """Query the reader without blocking the event loop. Raises JournalUnusable if the journal is being closed."""
        if not self.threaded:
            return function(self.reader)
        try:
            if self._threads is None:
                raise RuntimeError("the thread has ended")
            asked = self._threads.submit(self._ask, function)
        except RuntimeError as error:
            # Not in this thread: another one closes the reader, and a query on a closing connection can crash.
            raise JournalUnusable(str(self.directory), "it is not open") from error
        return await asyncio.wrap_future(asked)

    def _ask(self, function: Callable[[Reader], T]) -> T:
        if self._side_reader is None:
            # A connection of this thread: reads between BEGIN and COMMIT see one snapshot.
            self._side_reader = Reader(self.directory, on_damage=self.quarantine)
        return function(self._side_reader)

    # Durable subscriptions

    def progress(self, query: Callable[[str], Iterable[tuple[Any, ...]]]) -> list[CursorProgress]:
        """The positions of the durable subscriptions: on disk, and in memory since then.

        While `removing` is held, no durable subscription reads further messages.
        """
        found = []
        for name, pattern, high, pending in query("SELECT name, pattern, high, pending FROM cursors"):
            running = self.cursors.get(name)
            low = min([high, *(seq - 1 for seq in unpack(pending))])
            read = high if running is None else max(high, running.read, running.ahead)
            found.append(CursorProgress(name, pattern, low, high, read))
        return found

    async def forget(self, name: str) -> bool:
        """Remove the cursor of a durable subscription and its pending messages; False if there is none."""

        def remove(database: Database) -> bool:
            database.execute("DELETE FROM retries WHERE subscriber = ?", (name,))
            return database.execute("DELETE FROM cursors WHERE name = ?", (name,)).rowcount > 0

        # Entries that are still in memory would create it again.
        await self.flush()
        self.ledger.retries = {key for key in self.ledger.retries if key[0] != name}
        return await asyncio.wrap_future(self.writer.call(remove))

    def replay_dead(self, keys: Sequence[tuple[str, int]]) -> int:
        """Redeliver dead letters, by subscriber and number, when their subscribers start next; return how many.

        For a journal that no bus is using: a running bus has `replay_dead` itself.
        """
        now_ns = self.world.time_ns()

        def revive(database: Database) -> int:
            count = 0
            for key in keys:
                found = database.execute(
                    "DELETE FROM dead_letters WHERE subscriber = ? AND seq = ? RETURNING letter", key
                ).fetchone()
                if found is not None:
                    message = replace(decode_letter(found[0]).message, attempts=0)
                    database.execute(KEEP, (*key, now_ns, encode([]), encode(message)))
                    count += 1
            return count

        return self.writer.call(revive).result()

    # Tending

    def seal(self, *, everything: bool = False) -> int:
        """Move stretches that are due (or `everything`) to the lake; returns the number of messages."""
        return self.tender.seal(everything=everything)

    def quarantine(self, damage: JournalDamaged) -> None:
        """Move a damaged batch aside, so that it is reported only once."""
        log.error("%s: %s", self.directory, damage)
        now_ns = self.world.time_ns()
        with contextlib.suppress(JournalUnusable):
            self.writer.call(lambda database: put_aside(database, damage, now_ns))


def _remember(database: Database, last: int) -> None:
    database.execute("INSERT OR REPLACE INTO meta VALUES ('last', ?)", (last,))
