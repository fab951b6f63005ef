"""Repairing: damaged data are moved aside, and everything in them that can be read is kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from trunkline.clock import World
from trunkline.journal import database as files
from trunkline.journal import identity
from trunkline.journal.body import COLUMNS
from trunkline.journal.cursor import pack
from trunkline.journal.errors import JournalUnusable
from trunkline.journal.intake import MAX_ROW_MESSAGES
from trunkline.journal.journal import LAST
from trunkline.journal.lock import Lock
from trunkline.journal.repair.checks import (
    faults,
    lake_files,
    look_at_batch,
    misfit,
    named,
    place,
    sealed_files,
    unread,
)
from trunkline.journal.repair.findings import Finding, Repaired
from trunkline.journal.repair.salvage_lake import ASIDE, Salvage
from trunkline.journal.repair.scanner import Scan, end_of, shapes, text
from trunkline.journal.repair.sqlite_pages import batches_on_pages, put_right
from trunkline.journal.repair.verify import complaints, is_newer
from trunkline.journal.settings import Sync

COPY = "old.db"
"""The copy of the old database that is read during the repair."""


def repair(directory: str | Path, world: World | None = None) -> Repaired:
    """Move damaged parts aside, and keep what is readable. Needs exclusive access to the journal.

    Nothing is deleted: what was replaced is in the folder `damaged`, or in the table `quarantine`.
    """
    folder = Path(directory)
    if not (folder / files.FILE).exists() and not any(lake_files(folder)):
        raise JournalUnusable(str(folder), "there is no journal here")
    if is_newer(folder):
        files.open_for_reading(folder).close()
    lock = Lock(folder)
    lock.take()
    try:
        return _Repair(folder, world or World()).run()
    finally:
        lock.release()


class _Repair:
    def __init__(self, folder: Path, world: World) -> None:
        self._folder = folder
        self._world = world
        self._now_ns = now_ns = world.time_ns()
        self._lost: list[Finding] = []
        self._aside: list[str] = []
        self._work = folder / ASIDE / f".{now_ns}"
        self._unread: Scan | None = None
        """The scan of the batches, if a part was unreadable. Reported when the readable rows are known."""

    def run(self) -> Repaired:
        files.finish_repair(self._folder)
        try:
            if self._is_sound():
                self._mend(files.open_for_writing(self._folder, Sync.DISK, self._world))
            else:
                self._mend(self._rebuilt())
                # Only now: if the process crashes before the new one is complete, the old one remains.
                os.replace(self._work / files.FILE, self._folder / files.REPAIRED)
                files.finish_repair(self._folder)
        finally:
            shutil.rmtree(self._work, ignore_errors=True)
        return Repaired(tuple(self._lost), tuple(self._aside))

    def _mend(self, database: sqlite3.Connection) -> None:
        """Correct the rows and lists of a database, and close it."""
        try:
            database.text_factory = text
            database.execute("BEGIN IMMEDIATE")
            self._mend_batches(database)
            for table in shapes():
                if table not in ("batches", "quarantine"):
                    self._mend_table(database, table)
            database.execute("COMMIT")
            # Done before files are removed from the list: they may have the highest numbers.
            self._keep_numbers(database)
            salvage = Salvage(self._folder, self._now_ns)
            salvage.run(database)
            self._lost += salvage.lost
            self._aside += salvage.aside
            if self._unread is not None:
                self._fill_in(database, self._unread)
            # Of the last batch, perhaps only the first number is known.
            cut_off = self._unread is not None and any(high > self._unread.known for _, high in self._unread.gaps)
            self._keep_numbers(database, beyond=MAX_ROW_MESSAGES if cut_off else 0)
        finally:
            database.close()

    def _is_sound(self) -> bool:
        try:
            with contextlib.closing(files.open_for_reading(self._folder)) as database:
                return not complaints(database)
        except JournalUnusable:
            return False

    def _rebuilt(self) -> sqlite3.Connection:
        """A new database with all readable rows of the old one, which is moved aside unchanged."""
        store = self._folder / ASIDE
        store.mkdir(exist_ok=True)
        for suffix in ("", "-wal"):
            part = self._folder / f"{files.FILE}{suffix}"
            if part.exists():
                shutil.copyfile(part, store / f"{self._now_ns}-{part.name}")
        if (self._folder / files.FILE).exists():
            self._aside.append(f"{ASIDE}/{self._now_ns}-{files.FILE}")
        else:
            self._lost.append(Finding(files.FILE, "the file is missing, and with it all messages that were not sealed"))
        self._work.mkdir()
        fresh = files.open_for_writing(self._work, Sync.DISK, self._world)
        try:
            if (self._folder / files.FILE).exists():
                with contextlib.closing(self._source(fresh)) as source:
                    for table in shapes():
                        self._save(source, fresh, table)
                    self._save_identity(source, fresh)
                    self._save_deaths(source, fresh)
        except BaseException:
            fresh.close()
            raise
        return fresh

    def _source(self, fresh: sqlite3.Connection) -> sqlite3.Connection:
        """A copy of the old database for reading, with its first page and its length corrected if necessary."""
        copy = self._work / COPY
        for suffix in ("", "-wal"):
            part = self._folder / f"{files.FILE}{suffix}"
            if part.exists():
                shutil.copyfile(part, f"{copy}{suffix}")
        if not _can_be_asked(copy):
            fresh.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            put_right(copy, (self._work / files.FILE).read_bytes()[: files.PAGE_BYTES])
        source = sqlite3.connect(copy, isolation_level=None)
        source.text_factory = text
        return source

    def _save(self, source: sqlite3.Connection, fresh: sqlite3.Connection, table: str) -> None:
        scan = Scan(source, table, end_of(source))
        fresh.execute("BEGIN IMMEDIATE")
        for row in scan:
            if misfit(table, row) is None:
                places = ", ".join("?" * len(row))
                fresh.execute(f"INSERT OR IGNORE INTO {table} VALUES ({places})", row)
            elif table == "batches":
                self._lost.append(look_at_batch(row) or Finding(place(row), "it is not valid"))
            else:
                self._lost.append(Finding(named(table, row), misfit(table, row) or ""))
        fresh.execute("COMMIT")
        if scan.failed and table == "batches":
            self._unread = scan
        elif scan.failed:
            self._lost += [Finding(each.where, each.why) for each in unread(table, scan, [])]

    def _save_identity(self, source: sqlite3.Connection, fresh: sqlite3.Connection) -> None:
        try:
            if (found := identity.read(source)) is not None:
                identity.replace(fresh, found)
        except sqlite3.Error as error:
            self._lost.append(
                Finding("identity", f"it cannot be read, so stored positions are no longer valid ({error})")
            )

    def _save_deaths(self, source: sqlite3.Connection, fresh: sqlite3.Connection) -> None:
        """Copy the readable part of the record of deaths, in order. Older versions have none."""
        last = 0
        fresh.execute("BEGIN IMMEDIATE")
        try:
            if not source.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'deaths'").fetchone()[0]:
                return
            for row in source.execute("SELECT * FROM deaths ORDER BY number"):
                fresh.execute(f"INSERT OR IGNORE INTO deaths VALUES ({', '.join('?' * len(row))})", row)
                last = row[0]
        except sqlite3.Error as error:
            self._lost.append(Finding("deaths", f"the record of deaths is lost beyond number {last} ({error})"))
        finally:
            fresh.execute("COMMIT")

    def _fill_in(self, database: sqlite3.Connection, scan: Scan) -> None:
        """Fill gaps with batches that are no longer linked in the database. The remaining gaps are lost."""
        sealed = [(file.first, file.last) for file in sealed_files(database)[0] if file.kind == "messages"]
        batches = "SELECT first, last FROM batches"
        missing = unread("batches", scan, [*database.execute(batches), *sealed])
        removed = database.execute("SELECT topic, first, last FROM removals").fetchall()
        database.execute("BEGIN IMMEDIATE")
        for values in batches_on_pages(self._work / COPY):
            first, last, topic = values[:3]
            if any(each.first <= first and last <= each.last for each in missing) and not any(
                topic == gone and low <= first and last <= high for gone, low, high in removed
            ):
                database.execute("INSERT OR IGNORE INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
        database.execute("COMMIT")
        self._lost += unread("batches", scan, [*database.execute(batches), *sealed])

    def _mend_batches(self, database: sqlite3.Connection) -> None:
        broken: list[tuple[tuple[Any, ...], Finding]] = []
        for values in database.execute(f"SELECT {COLUMNS} FROM batches ORDER BY first"):
            if (finding := look_at_batch(values)) is not None:
                broken.append((values, finding))
        for values, finding in broken:
            self._lost.append(finding)
            # Moved aside unchanged, except text that is not valid and could not be read again.
            topic = str(values[2]).encode(errors="backslashreplace").decode()
            row = (*values[:2], topic, *values[3:], finding.why, self._now_ns)
            database.execute(f"INSERT OR IGNORE INTO quarantine VALUES ({', '.join('?' * len(row))})", row)
            database.execute("DELETE FROM batches WHERE first = ?", values[:1])

    def _mend_table(self, database: sqlite3.Connection, table: str) -> None:
        shape = shapes()[table]
        for values, finding in list(faults(database, table)):
            if table not in ("files", "file_topics"):
                # These two tables can be rebuilt from the files.
                self._lost.append(finding)
            key = [values[shape.names.index(name)] for name in shape.key]
            # Invalid text cannot be passed as text.
            given = [value.encode(errors="surrogateescape") if isinstance(value, str) else value for value in key]
            casts = (f"CAST(? AS {'TEXT' if isinstance(value, str) else 'INTEGER'})" for value in key)
            where = " AND ".join(f"{name} = {cast}" for name, cast in zip(shape.key, casts, strict=True))
            if table == "cursors" and misfit(table, values) is None:
                # Only its pending messages are unknown; its position is known.
                database.execute(f"UPDATE cursors SET pending = ? WHERE {where}", (pack([]), *given))
            else:
                database.execute(f"DELETE FROM {table} WHERE {where}", given)

    def _keep_numbers(self, database: sqlite3.Connection, beyond: int = 0) -> None:
        """Lost messages keep their numbers, with a reserve after them, so that no number is used twice."""
        last = max([database.execute(LAST).fetchone()[0] or 0, *(finding.last for finding in self._lost)]) + beyond
        fate = database.execute(
            "SELECT max(coalesce((SELECT max(number) FROM fates), 0),"
            " coalesce((SELECT max(last) FROM files WHERE kind = 'fates'), 0))"
        ).fetchone()[0]
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT OR REPLACE INTO meta VALUES ('last', ?)", (last,))
        if not database.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'fates'", (fate,)).rowcount:
            database.execute("INSERT INTO sqlite_sequence VALUES ('fates', ?)", (fate,))
        database.execute("COMMIT")


def _can_be_asked(path: Path) -> bool:
    with contextlib.closing(sqlite3.connect(path)) as database:
        try:
            names = {name for (name,) in database.execute("SELECT name FROM sqlite_schema")}
            database.execute("SELECT count(*) FROM meta")
        except sqlite3.Error:
            return False
    return names >= shapes().keys()
