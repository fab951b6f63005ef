"""The tender: seals stretches that are due, joins small files, applies retention, and removes replaced files.

It works in its own thread, and changes the journal only through the writer's transactions.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from trunkline.errors import JournalDamaged, JournalError, MissingExtra, TrunklineError
from trunkline.journal.database import REPAIR, sync_path
from trunkline.journal.due import Stretch, batches_of, fates_of, next_fates, next_messages, small_runs
from trunkline.journal.errors import JournalUnusable
from trunkline.journal.number_reserve import reserve
from trunkline.journal.reader import Reader
from trunkline.journal.retention import Numbers, Remove, is_free, log_lines, plan, take_away
from trunkline.journal.sealed import File
from trunkline.journal.settings import JournalSettings
from trunkline.plural import counted

if TYPE_CHECKING:
    import pyarrow as pa

    from trunkline.journal.journal import Journal
    from trunkline.journal.lake import Sealed
    from trunkline.journal.writer import Database

log = logging.getLogger("trunkline.journal")

T = TypeVar("T")

NAME = re.compile(r"(\d{20}-\d{20}(-\d+)?\.parquet|\..*\.tmp)")


class Tender:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._turn = threading.Lock()
        self._damaged: set[str] = set()

    def start(self) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name=f"tend {self._journal.directory.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stop.wait(self._journal.settings.tend_s):
            try:
                self.tend()
            except MissingExtra as error:
                log.warning("the journal cannot be sealed to Parquet files: %s", error)
                return
            except JournalError as error:
                # Nothing is lost: the next round tries again.
                log.error("%s", error)
            except TrunklineError as error:
                log.error("maintenance of the journal failed: %s", error)
            except Exception:
                log.exception("maintenance of the journal failed")

    def tend(self) -> None:
        """Do everything that is due."""
        if self._journal.settings.seal:
            self.seal()
            self.join()
        self.retain()
        self.forget_replaced()
        self.trim_orphans()
        if "pyarrow" in sys.modules:
            import pyarrow as pa

            # Sealing and joining use much memory, which is not needed until the next round.
            pa.default_memory_pool().release_unused()

    # Sealing

    def seal(self, *, everything: bool = False) -> int:
        """Move stretches that are due to the lake; returns the number of messages."""
        with self._turn, self._reader() as reader:
            due = (self._journal.settings, self._journal.world.time_ns(), everything)
            sealed = 0
            while (stretch := next_messages(reader, *due)) is not None and not self._stopping:
                sealed += self._seal(reader, stretch)
            while self._seal_fates(reader, *due) and not self._stopping:
                pass
            return sealed

    @property
    def _stopping(self) -> bool:
        return self._stop.is_set() and threading.current_thread() is self._thread

    @contextlib.contextmanager
    def _reader(self) -> Iterator[Reader]:
        with Reader(self._journal.directory, on_damage=self._journal.quarantine) as reader:
            yield reader

    def _seal(self, reader: Reader, stretch: Stretch) -> int:
        from trunkline.journal import lake

        directory = self._journal.directory
        sealed = lake.write(directory, "messages", stretch.day, batches_of(reader, stretch))

        def swap(database: Database) -> int:
            # The deleted rows must be the written ones: quarantined rows are in neither.
            (messages,) = database.execute(
                "SELECT coalesce(sum(last - first + 1), 0) FROM batches WHERE first BETWEEN ? AND ?",
                (stretch.first, stretch.last),
            ).fetchone()
            if messages != (0 if sealed is None else sealed.file.rows):
                raise JournalUnusable(
                    str(directory), f"a stretch changed while it was sealed: {counted(messages, 'message')}"
                )
            if sealed is not None:
                lake.record(database, sealed)
            database.execute("DELETE FROM batches WHERE first BETWEEN ? AND ?", (stretch.first, stretch.last))
            return int(messages)

        return self._commit(reader, sealed, swap)

    def _commit(self, reader: Reader, sealed: Sealed | None, swap: Callable[[Database], T]) -> T:
        """Run a transaction that lists a new file. The file is deleted if it is not listed afterwards.

        After an interrupt the transaction may still follow, so the file stays. The next start removes it if it is not
        listed.
        """
        try:
            result = self._journal.writer.call(swap).result()
        except Exception:
            self._keep_if_listed(reader, sealed)
            raise
        self._keep_if_listed(reader, sealed)
        return result

    def _keep_if_listed(self, reader: Reader, sealed: Sealed | None) -> None:
        if sealed is None:
            return
        file = sealed.file
        if reader.query("SELECT 1 FROM files WHERE path = ?", (file.path,)):
            log.info("sealed %s: %s, %s", file.path, counted(file.rows, "row"), counted(file.bytes, "byte"))
        else:
            (self._journal.directory / file.path).unlink(missing_ok=True)

    def _seal_fates(self, reader: Reader, settings: JournalSettings, now_ns: int, everything: bool) -> bool:
        from trunkline.journal import lake

        stretch = next_fates(reader, settings, now_ns, everything)
        if stretch is None:
            return False
        directory = self._journal.directory
        sealed = lake.write(directory, "fates", stretch.day, fates_of(reader, stretch))
        between = (stretch.first, stretch.last)

        def swap(database: Database) -> None:
            (last,) = database.execute("SELECT max(last) FROM fates WHERE number BETWEEN ? AND ?", between).fetchone()
            dropped = database.execute("DELETE FROM fates WHERE number BETWEEN ? AND ?", between).rowcount
            if sealed is None or dropped != sealed.file.rows:
                raise JournalUnusable(
                    str(directory), f"fates changed while they were sealed: {counted(dropped, 'row')}"
                )
            lake.record(database, sealed)
            # Some numbers occur only in fates. They must still count as used.
            reserve(database, last)

        self._commit(reader, sealed, swap)
        return True

    # Joining

    def join(self) -> int:
        """Join adjacent small files of one day; returns the number of replaced files."""
        with self._turn, self._reader() as reader:
            joined = 0
            settings = self._journal.settings
            for kind in ("messages", "fates"):
                # Read completely before anything is joined. Only the files to join are held in memory.
                for run in list(small_runs(reader.sized_files(kind), settings.seal_rows, settings.seal_bytes)):
                    # Damaged files are not joined: the damage would get a new, valid checksum.
                    for sound, part in groupby(run, self._is_sound):
                        files = list(part)
                        if sound and len(files) > 1 and not self._stopping:
                            joined += self._join(reader, files)
            return joined

    def _join(self, reader: Reader, run: list[File]) -> int:
        from trunkline.journal import lake

        batches = (batch for file in run for batch in lake.read(self._journal.directory, file))
        sealed = self._rewritten(run, batches, sum(file.rows for file in run))
        if sealed is None:
            return 0

        def swap(database: Database) -> int:
            self._replace(database, run, sealed)
            return len(run)

        return self._commit(reader, sealed, swap)

    def _is_sound(self, file: File) -> bool:
        from trunkline.journal import lake

        if file.path in self._damaged:
            return False
        try:
            lake.check(self._journal.directory, file)
        except JournalDamaged as damage:
            log.error("%s: %s", self._journal.directory, damage)
            self._damaged.add(file.path)
            return False
        return True

    def _rewritten(self, run: list[File], batches: Iterable[pa.RecordBatch], rows: int) -> Sealed | None:
        """A new file from these, with the expected number of rows, not listed yet. None if it is empty or differs.

        If the list in the journal is wrong, the file is not changed, for a repair.
        """
        from trunkline.journal import lake

        directory = self._journal.directory
        sealed = lake.write(directory, run[0].kind, run[0].day, batches)
        found = 0 if sealed is None else sealed.file.rows
        if found == rows:
            return sealed
        paths = [file.path for file in run]
        has = counted(found, "row")
        log.error("%s: %s: %s where the journal lists %d: %s", directory, ", ".join(paths), has, rows, REPAIR)
        self._damaged.update(paths)
        if sealed is not None:
            (directory / sealed.file.path).unlink()
        return None

    def _replace(self, database: Database, run: list[File], sealed: Sealed | None) -> None:
        """Replace these files by a new one, in one transaction."""
        from trunkline.journal import lake

        now_ns = self._journal.world.time_ns()
        if sealed is not None:
            lake.record(database, sealed)
        for file in run:
            database.execute("UPDATE files SET replaced_ns = ? WHERE path = ?", (now_ns, file.path))
            database.execute("DELETE FROM file_topics WHERE path = ?", (file.path,))

    # Removing

    def retain(self) -> list[Remove]:
        """Apply retention; returns what was removed.

        There is one transaction for each file, and one for unsealed messages. Each removes messages, records their
        number, and writes the fates of unread ones, so a crash leaves nothing half removed.
        """
        journal = self._journal
        if not any(journal.retention):
            return []
        removed: list[Remove] = []
        with self._turn, self._reader() as reader:
            # First the delivered position, then the state of each subscriber.
            committed = journal.intake.committed
            progress = journal.progress(reader.query)
            removes = plan(reader, journal.retention, journal.world.time_ns(), progress, committed)
            try:
                # The files in order, and then unsealed messages.
                removes.sort(key=lambda remove: (remove.path is None, remove.path))
                for path, part in groupby(removes, lambda remove: remove.path):
                    file = None if path is None else reader.file(path)
                    if (path is None or file is not None) and not self._stopping:
                        removed += self._remove(reader, file, list(part))
            finally:
                for text, unread in log_lines(removed):
                    log.log(logging.WARNING if unread else logging.INFO, "%s", text)
        return removed

    def _remove(self, reader: Reader, file: File | None, removes: list[Remove]) -> list[Remove]:
        """Remove some topics from a file, or unsealed batches; returns what was removed."""
        journal = self._journal
        numbers: Numbers = {}
        sealed: Sealed | None = None
        if file is not None:
            if not self._is_sound(file):
                return []
            rows = file.rows - sum(remove.count for remove in removes)
            batches = _without(journal.directory, file, {remove.topic for remove in removes}, numbers)
            sealed = self._rewritten([file], batches, rows)
            if file.path in self._damaged:
                return []

        def swap(database: Database) -> list[Remove]:
            # Subscriptions may have read on while the file was written.
            progress = journal.progress(database.execute)
            free = [remove for remove in removes if is_free(remove, progress)]
            if file is not None:
                if len(free) < len(removes):
                    return []
                self._replace(database, [file], sealed)
            return take_away(database, free, progress, numbers, journal.world.time_ns())

        with journal.removing:
            return self._commit(reader, sealed, swap)

    def forget_replaced(self) -> int:
        """Delete files that were replaced long enough ago; returns how many."""
        journal = self._journal
        before = journal.world.time_ns() - int(journal.settings.replaced_s * 1e9)
        with self._turn, self._reader() as reader:
            old = [path for (path,) in reader.query("SELECT path FROM files WHERE replaced_ns <= ?", (before,))]
        for path in old:
            (journal.directory / path).unlink(missing_ok=True)
        for folder in {(journal.directory / path).parent for path in old}:
            # Deleted before its row, so that no unlisted file remains.
            sync_path(folder)
        if old:
            journal.writer.call(
                lambda database: database.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in old])
            ).result()
        return len(old)

    def trim_orphans(self) -> int:
        """Remove the oldest orphans beyond `max_orphans`; returns their number."""
        journal = self._journal
        most = journal.settings.max_orphans
        with self._reader() as reader:
            (count,) = reader.query("SELECT count(*) FROM orphans")[0]
        if count <= most:
            return 0
        log.warning("%d unclaimed orphans were removed: there were more than max_orphans (%d)", count - most, most)
        delete = "DELETE FROM orphans WHERE seq IN (SELECT seq FROM orphans ORDER BY seq LIMIT ?)"
        journal.writer.call(lambda database: database.execute(delete, (count - most,))).result()
        return int(count - most)

    def clear_away(self) -> None:
        """At the start, remove unlisted files of a crash whose rows exist elsewhere."""
        journal = self._journal
        known = {path for (path,) in journal.reader.query("SELECT path FROM files")}
        for kind in ("messages", "fates"):
            for path in journal.directory.glob(f"{kind}/date=*/*"):
                if not NAME.fullmatch(path.name) or path.relative_to(journal.directory).as_posix() in known:
                    continue
                if path.suffix == ".tmp" or self._is_elsewhere(kind, path.name):
                    log.warning("removed %s, which was not finished when the journal was last closed", path)
                    path.unlink(missing_ok=True)
                else:
                    log.error("%s is not listed in the journal, and no other file has its messages: %s", path, REPAIR)

    def _is_elsewhere(self, kind: str, name: str) -> bool:
        """Whether the numbers in a file's name are in the journal, or in valid files."""
        first, last = int(name[:20]), int(name[21:41])
        reader = self._journal.reader
        columns = ("batches", "first", "last") if kind == "messages" else ("fates", "number", "number")
        table, begin, end = columns
        if reader.query(f"SELECT 1 FROM {table} WHERE {begin} <= ? AND {end} >= ? LIMIT 1", (last, first)):
            return True
        files = [file for file in reader.files(kind) if file.first <= last and file.last >= first]
        return any((self._journal.directory / file.path).exists() for file in files)


def _without(directory: Path, file: File, topics: set[str], numbers: Numbers) -> Iterator[pa.RecordBatch]:
    """The rows of a file on other topics. The numbers of omitted rows are added to `numbers`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from trunkline.journal import lake

    for batch in lake.read(directory, file):
        gone = pc.is_in(batch.column("topic"), value_set=pa.array(sorted(topics), pa.string()))
        for topic, seq in zip(*(batch.select(["topic", "seq"]).filter(gone).to_pydict().values()), strict=True):
            numbers.setdefault(topic, array("q")).append(seq)
        yield batch.filter(pc.invert(gone))
