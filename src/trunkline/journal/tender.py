"""The tender: seals stretches that are due, joins small files, removes what retention says, clears what was replaced.

It works beside the writer, in a thread of its own, and touches the journal only through the writer's transactions.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from trunkline.errors import JournalDamaged, JournalError, JournalUnusable, MissingExtra, TrunklineError
from trunkline.journal.database import FILE, REPAIR
from trunkline.journal.explain import FATE_COLUMNS
from trunkline.journal.range import Range
from trunkline.journal.reader import STEP_MESSAGES, Reader
from trunkline.journal.retention import Remove, plan, take_away, told
from trunkline.journal.sealed import File

if TYPE_CHECKING:
    import pyarrow as pa

    from trunkline.journal.journal import Journal
    from trunkline.journal.lake import Sealed
    from trunkline.journal.writer import Database

log = logging.getLogger("trunkline.journal")

NAME = re.compile(r"(\d{20}-\d{20}(-\d+)?\.parquet|\..*\.tmp)")
JOIN_AT = 8
"""So many small files in a row are joined, however small they are together."""


class Stretch:
    """Rows of one day that will be one file."""

    def __init__(self, day: str) -> None:
        self.day = day
        self.first = 0
        self.last = 0
        self.rows = 0
        self.messages = 0
        self.bytes = 0
        self.oldest_ns = 0


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
                log.warning("the journal is not sealed: %s", error)
                return
            except JournalError as error:
                # Nothing is lost by it: the next round tries again.
                log.error("%s", error)
            except TrunklineError as error:
                log.error("the journal could not be tended: %s", error)
            except Exception:
                log.exception("the journal could not be tended")

    def tend(self) -> None:
        """Everything that is due."""
        if self._journal.settings.seal:
            self.seal()
            self.join()
        self.retain()
        self.forget_replaced()
        self.trim_orphans()

    # Sealing

    def seal(self, *, everything: bool = False) -> int:
        """Move what is due to the lake; returns how many messages that were."""
        with self._turn, self._reader() as reader:
            sealed = 0
            while (stretch := self._next(reader, everything)) is not None and not self._stopping:
                sealed += self._seal(reader, stretch)
            while self._seal_fates(reader, everything) and not self._stopping:
                pass
            return sealed

    @property
    def _stopping(self) -> bool:
        return self._stop.is_set() and threading.current_thread() is self._thread

    @contextlib.contextmanager
    def _reader(self) -> Iterator[Reader]:
        with Reader(self._journal.directory, on_damage=self._journal.quarantine) as reader:
            yield reader

    def _next(self, reader: Reader, everything: bool) -> Stretch | None:
        from trunkline.journal.lake import day_of

        settings = self._journal.settings
        if not everything and not self._may_be_due(reader):
            return None
        stretch: Stretch | None = None
        for first, last, at_ns, size in reader.query(
            "SELECT first, last, at_ns, length(body) FROM batches ORDER BY first LIMIT ?", (settings.seal_rows,)
        ):
            day = day_of(at_ns)
            if stretch is None:
                stretch = Stretch(day)
                stretch.first = first
                stretch.oldest_ns = at_ns
            elif day != stretch.day or stretch.messages >= settings.seal_rows or stretch.bytes >= settings.seal_bytes:
                # A day that is over is sealed when it is old enough, like anything else: it may be young.
                return stretch if self._is_due(stretch, everything) else None
            stretch.last = last
            stretch.rows += 1
            stretch.messages += last - first + 1
            stretch.bytes += size
        return stretch if stretch is not None and self._is_due(stretch, everything) else None

    def _may_be_due(self, reader: Reader) -> bool:
        """A look that costs nothing: most of the time there is nothing to do."""
        settings = self._journal.settings
        found = reader.query(
            "SELECT (SELECT min(first) FROM batches), (SELECT max(last) FROM batches),"
            " (SELECT at_ns FROM batches ORDER BY first LIMIT 1)"
        )[0]
        first, last, at_ns = found
        if first is None:
            return False
        size = (self._journal.directory / FILE).stat().st_size
        age_s = (self._journal.world.time_ns() - at_ns) / 1e9
        return bool(
            last - first + 1 >= settings.seal_rows or size >= settings.seal_bytes or age_s >= settings.seal_age_s
        )

    def _is_due(self, stretch: Stretch, everything: bool) -> bool:
        settings = self._journal.settings
        age_s = (self._journal.world.time_ns() - stretch.oldest_ns) / 1e9
        return (
            everything
            or stretch.messages >= settings.seal_rows
            or stretch.bytes >= settings.seal_bytes
            or age_s >= settings.seal_age_s
        )

    def _seal(self, reader: Reader, stretch: Stretch) -> int:
        from trunkline.journal import lake

        directory = self._journal.directory
        sealed = lake.write(directory, "messages", stretch.day, _batches(reader, stretch.first, stretch.last))

        def swap(database: Database) -> int:
            # What is dropped must be what was written: quarantined rows have left both.
            (messages,) = database.execute(
                "SELECT coalesce(sum(last - first + 1), 0) FROM batches WHERE first BETWEEN ? AND ?",
                (stretch.first, stretch.last),
            ).fetchone()
            if messages != (0 if sealed is None else sealed.file.rows):
                raise JournalUnusable(str(directory), f"a stretch changed while it was sealed: {messages} messages")
            if sealed is not None:
                lake.record(database, sealed)
            database.execute("DELETE FROM batches WHERE first BETWEEN ? AND ?", (stretch.first, stretch.last))
            return int(messages)

        return self._swap(sealed, swap)

    def _swap(self, sealed: Sealed | None, swap: Any) -> int:
        try:
            count: int = self._journal.writer.call(swap).result()
        except BaseException:
            if sealed is not None:
                (self._journal.directory / sealed.file.path).unlink(missing_ok=True)
            raise
        if sealed is not None:
            log.info("sealed %s: %d rows, %d bytes", sealed.file.path, sealed.file.rows, sealed.file.bytes)
        return count

    def _seal_fates(self, reader: Reader, everything: bool) -> bool:
        from trunkline.journal import lake, layout

        settings = self._journal.settings
        rows = reader.query(f"SELECT {FATE_COLUMNS} FROM fates ORDER BY number LIMIT ?", (settings.seal_rows,))
        if not rows:
            return False
        age_s = (self._journal.world.time_ns() - rows[0][-1]) / 1e9
        if not (everything or len(rows) >= settings.seal_rows or age_s >= settings.seal_age_s):
            return False
        day = lake.day_of(rows[0][-1])
        whole = next((at for at, row in enumerate(rows) if lake.day_of(row[-1]) != day), len(rows))
        rows = rows[:whole]
        sealed = lake.write(self._journal.directory, "fates", day, [layout.of_fates(rows)])
        assert sealed is not None

        def swap(database: Database) -> int:
            lake.record(database, sealed)
            # The fates of numbers that are only here would be forgotten as numbers in use.
            database.execute(
                "INSERT INTO meta VALUES ('last', ?)"
                " ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
                (max(row[5] for row in rows),),
            )
            database.execute("DELETE FROM fates WHERE number BETWEEN ? AND ?", (rows[0][0], rows[-1][0]))
            return len(rows)

        self._swap(sealed, swap)
        return True

    # Joining

    def join(self) -> int:
        """Join small files of one day that lie side by side; returns how many files went."""
        with self._turn, self._reader() as reader:
            joined = 0
            for kind in ("messages", "fates"):
                for run in _small_runs(reader.files(kind), self._journal.settings.seal_rows):
                    # What is damaged stays as it is: joined, the damage would get a fresh checksum.
                    for sound, part in groupby(run, self._is_sound):
                        files = list(part)
                        if sound and len(files) > 1 and not self._stopping:
                            self._rewrite(files, lambda batch: batch)
                            joined += len(files)
            return joined

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

    def _rewrite(self, run: list[File], keep: Any) -> None:
        """One new file instead of these, with what `keep` leaves of each batch."""
        from trunkline.journal import lake

        directory = self._journal.directory
        batches = (keep(batch) for file in run for batch in lake.read(directory, file))
        sealed = lake.write(directory, run[0].kind, run[0].day, batches)
        now_ns = self._journal.world.time_ns()

        def swap(database: Database) -> int:
            if sealed is not None:
                lake.record(database, sealed)
            for file in run:
                database.execute("UPDATE files SET replaced_ns = ? WHERE path = ?", (now_ns, file.path))
                database.execute("DELETE FROM file_topics WHERE path = ?", (file.path,))
            return len(run)

        self._swap(sealed, swap)

    # Removing

    def retain(self) -> list[Remove]:
        """Remove what retention says; returns what was removed."""
        journal = self._journal
        if not any(journal.retention):
            return []
        with self._turn, self._reader() as reader:
            removes = plan(reader, journal.retention, journal.world.time_ns(), journal.progress(reader))
            for file in reader.files():
                gone = {remove.topic for remove in removes if remove.path == file.path}
                if gone and self._is_sound(file):
                    self._rewrite([file], lambda batch, gone=gone: _without(batch, gone))
                elif gone:
                    removes = [remove for remove in removes if remove.path != file.path]
            for text, unread in told(removes):
                log.log(logging.WARNING if unread else logging.INFO, "%s", text)
            if removes:
                journal.writer.call(lambda database: take_away(database, removes, journal.world.time_ns())).result()
            return removes

    def forget_replaced(self) -> int:
        """Delete files that were replaced long enough ago; returns how many."""
        journal = self._journal
        before = journal.world.time_ns() - int(journal.settings.replaced_s * 1e9)
        with self._turn, self._reader() as reader:
            old = [path for (path,) in reader.query("SELECT path FROM files WHERE replaced_ns <= ?", (before,))]
        for path in old:
            (journal.directory / path).unlink(missing_ok=True)
        if old:
            journal.writer.call(
                lambda database: database.executemany("DELETE FROM files WHERE path = ?", [(path,) for path in old])
            ).result()
        return len(old)

    def trim_orphans(self) -> int:
        """Let go of the oldest orphans beyond `max_orphans`; returns how many."""
        journal = self._journal
        most = journal.settings.max_orphans
        with self._reader() as reader:
            (count,) = reader.query("SELECT count(*) FROM orphans")[0]
        if count <= most:
            return 0
        log.warning("%d orphans nobody claimed are removed: more than max_orphans (%d)", count - most, most)
        delete = "DELETE FROM orphans WHERE seq IN (SELECT seq FROM orphans ORDER BY seq LIMIT ?)"
        journal.writer.call(lambda database: database.execute(delete, (count - most,))).result()
        return int(count - most)

    def clear_away(self) -> None:
        """At the start: files that a crash left behind, and that count for nobody: what they hold is elsewhere."""
        journal = self._journal
        known = {path for (path,) in journal.reader.query("SELECT path FROM files")}
        for kind in ("messages", "fates"):
            for path in journal.directory.glob(f"{kind}/date=*/*"):
                if not NAME.fullmatch(path.name) or path.relative_to(journal.directory).as_posix() in known:
                    continue
                if path.suffix == ".tmp" or self._is_elsewhere(kind, path.name):
                    log.warning("%s was not finished when the journal was last closed: removed", path)
                    path.unlink(missing_ok=True)
                else:
                    log.error("%s counts for nobody, and what it holds is nowhere else: %s", path, REPAIR)

    def _is_elsewhere(self, kind: str, name: str) -> bool:
        """Whether the numbers in a file's name are in the journal, or in files that count."""
        first, last = int(name[:20]), int(name[21:41])
        reader = self._journal.reader
        columns = ("batches", "first", "last") if kind == "messages" else ("fates", "number", "number")
        table, begin, end = columns
        if reader.query(f"SELECT 1 FROM {table} WHERE {begin} <= ? AND {end} >= ? LIMIT 1", (last, first)):
            return True
        files = [file for file in reader.files(kind) if file.first <= last and file.last >= first]
        return any((self._journal.directory / file.path).exists() for file in files)


def _batches(reader: Reader, first: int, last: int) -> Iterator[pa.RecordBatch]:
    from trunkline.journal import layout

    wanted = Range(first=first, last=last)
    after = first - 1
    while (step := reader.step(wanted, after, STEP_MESSAGES)) is not None:
        after, found = step
        if isinstance(found, list):
            yield layout.of_rows(found, reader.on_damage)


def _small_runs(files: list[File], seal_rows: int) -> list[list[File]]:
    """Neighbours of one day that are worth joining: enough of them, or large enough together."""
    runs: list[list[File]] = []
    run: list[File] = []
    for file in files:
        small = file.rows < seal_rows // 2
        rows = sum(each.rows for each in run)
        if run and (not small or file.day != run[0].day or rows + file.rows > seal_rows):
            runs.append(run)
            run = []
        if small:
            run.append(file)
    runs.append(run)
    return [
        run
        for run in runs
        if len(run) > 1 and (len(run) >= JOIN_AT or sum(file.rows for file in run) >= seal_rows // 2)
    ]


def _without(batch: Any, topics: set[str]) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    gone = pc.is_in(batch.column("topic"), value_set=pa.array(sorted(topics), pa.string()))
    return batch.filter(pc.invert(gone))
