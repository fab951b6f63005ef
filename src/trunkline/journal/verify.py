"""Verifying: is everything there that was written, bit for bit? And saving what can be read when it is not."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from trunkline.clock import World
from trunkline.errors import JournalDamaged
from trunkline.journal import database as files
from trunkline.journal.body import Row
from trunkline.journal.lock import Lock
from trunkline.journal.quarantine import put_aside
from trunkline.journal.reader import COLUMNS, File, Reader
from trunkline.journal.settings import Sync

Progress = Callable[[int, int], None]
"""Called with how many batches and files were looked at, of how many."""

ASIDE = "damaged"
"""The folder for what was replaced by what could be read of it."""


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it was written. Numbers are 0 if no messages are concerned."""

    where: str
    why: str
    first: int = 0
    last: int = 0


class Verified(msgspec.Struct, frozen=True):
    batches: int
    messages: int
    files: int
    rows: int
    quarantined: int
    findings: tuple[Finding, ...]

    @property
    def good(self) -> bool:
        return not self.findings


def verify(directory: str | Path, progress: Progress = lambda done, of: None) -> Verified:
    """Look at every batch and every file. Raises JournalUnusable if the journal cannot be opened at all."""
    findings: list[Finding] = []
    with Reader(directory) as reader:
        batches, sealed, quarantined = reader.query(
            "SELECT (SELECT count(*) FROM batches), (SELECT count(*) FROM files WHERE replaced_ns IS NULL),"
            " (SELECT count(*) FROM quarantine)"
        )[0]
        for (text,) in reader.query("PRAGMA integrity_check(100)"):
            if text != "ok":
                findings.append(Finding(files.FILE, text))
        done = messages = rows = 0
        last = 0
        for row in _batches(reader):
            messages += row.count
            findings.extend(_look_at(row, last))
            last = row.last
            done += 1
            progress(done, batches + sealed)
        for kind in ("messages", "fates"):
            before = 0
            for file in reader.files(kind):
                rows += file.rows
                findings.extend(_look_into(reader.directory, file, before))
                before = file.last
                done += 1
                progress(done, batches + sealed)
    return Verified(batches, messages, sealed, rows, quarantined, tuple(findings))


def _batches(reader: Reader) -> Iterator[Row]:
    after = -1
    while rows := reader.query(f"SELECT {COLUMNS} FROM batches WHERE first > ? ORDER BY first LIMIT 100", (after,)):
        for values in rows:
            row = Row(*values)
            after = row.first
            yield row


def _look_at(row: Row, last: int) -> list[Finding]:
    found = []
    if row.first <= last:
        found.append(Finding(f"batch {row.first} on {row.topic}", "it overlaps the one before it", row.first, row.last))
    try:
        row.messages()
    except JournalDamaged as damage:
        found.append(Finding(f"batch {row.first} on {row.topic}", damage.why, damage.first, damage.last))
    return found


def _look_into(directory: Path, file: File, last: int) -> list[Finding]:
    from trunkline.journal import lake

    path = directory / file.path
    concerned = (file.first, file.last) if file.kind == "messages" else (0, 0)
    if file.first <= last:
        return [Finding(file.path, "it overlaps the one before it", *concerned)]
    if not path.exists():
        return [Finding(file.path, "the file is gone", *concerned)]
    if path.stat().st_size != file.bytes:
        return [Finding(file.path, f"it has {path.stat().st_size} bytes instead of {file.bytes}", *concerned)]
    if lake.checksum_of(path) != file.checksum:
        return [Finding(file.path, "its checksum does not fit", *concerned)]
    return []


class Repaired(msgspec.Struct, frozen=True):
    """What a repair did: what is lost, by the numbers of the messages, and what was put aside."""

    lost: tuple[Finding, ...]
    aside: tuple[str, ...]


def repair(directory: str | Path, world: World | None = None) -> Repaired:
    """Put aside what is damaged, and keep what can be read of it. Needs the journal for itself."""
    folder = Path(directory)
    lock = Lock(folder)
    lock.take()
    try:
        now_ns = (world or World()).time_ns()
        lost: list[Finding] = []
        aside: list[str] = []
        if not _is_sound(folder):
            aside.append(_rebuild(folder, now_ns, lost))
        database = files.open_for_writing(folder, Sync.DISK)
        try:
            _quarantine(database, now_ns, lost)
            aside.extend(_mend_files(folder, database, now_ns, lost))
        finally:
            database.close()
        return Repaired(tuple(lost), tuple(aside))
    finally:
        lock.release()


def _is_sound(folder: Path) -> bool:
    try:
        database = sqlite3.connect(folder / files.FILE)
        try:
            return bool(database.execute("PRAGMA integrity_check(1)").fetchone()[0] == "ok") and bool(
                database.execute("PRAGMA user_version").fetchone()[0]
            )
        finally:
            database.close()
    except sqlite3.DatabaseError:
        return False


def _rebuild(folder: Path, now_ns: int, lost: list[Finding]) -> str:
    """A new database with every row that can be read of the old one, which is put aside."""
    store = folder / ASIDE
    store.mkdir(exist_ok=True)
    old = store / f"{now_ns}-{files.FILE}"
    for suffix in ("", "-wal", "-shm"):
        part = folder / f"{files.FILE}{suffix}"
        if part.exists():
            os.rename(part, store / f"{now_ns}-{files.FILE}{suffix}")
    fresh = files.open_for_writing(folder, Sync.DISK)
    try:
        source = sqlite3.connect(old)
        try:
            for table, key in SAVED.items():
                _save(source, fresh, table, key, lost)
        finally:
            source.close()
    finally:
        fresh.close()
    return old.relative_to(folder).as_posix()


SAVED = {
    "batches": "first",
    "quarantine": "first",
    "fates": "number",
    "orphans": "seq",
    "removals": "number",
    "meta": "",
    "cursors": "",
    "retries": "",
    "dead_letters": "",
    "files": "",
    "file_topics": "",
}
"""The tables, and the number by which those can be read that are long: past a damaged page it goes on."""


def _save(source: sqlite3.Connection, fresh: sqlite3.Connection, table: str, key: str, lost: list[Finding]) -> None:
    fresh.execute("BEGIN IMMEDIATE")
    try:
        for row in _rows(source, table, key):
            if isinstance(row, Finding):
                lost.append(row)
                continue
            places = ", ".join("?" * len(row))
            fresh.execute(f"INSERT OR IGNORE INTO {table} VALUES ({places})", row)
    finally:
        fresh.execute("COMMIT")


def _rows(source: sqlite3.Connection, table: str, key: str) -> Iterator[tuple[Any, ...] | Finding]:
    """Every row that can be read. With a key, a gap is jumped over, twice as far each time nothing is found."""
    after = -1
    step = 1
    failed_at: int | None = None
    highest = _highest(source, table, key) if key else None
    while True:
        order = f"WHERE {key} > ? ORDER BY {key}" if key else ""
        try:
            for row in source.execute(f"SELECT * FROM {table} {order}", (after,) if key else ()):
                if failed_at is not None:
                    yield Finding(f"{files.FILE}, {table}", "it cannot be read", failed_at, row[0] - 1)
                    failed_at = None
                    step = 1
                yield row
                if key:
                    after = row[0]
            return
        except sqlite3.DatabaseError as error:
            if not key or highest is None:
                yield Finding(f"{files.FILE}, {table}", str(error))
                return
            failed_at = after + 1 if failed_at is None else failed_at
            after += step
            step *= 2
            if after >= highest:
                yield Finding(f"{files.FILE}, {table}", str(error), failed_at, highest)
                return


def _highest(source: sqlite3.Connection, table: str, key: str) -> int | None:
    try:
        found = source.execute(f"SELECT max({key}) FROM {table}").fetchone()[0]
    except sqlite3.DatabaseError:
        return None
    return int(found) if found is not None else None


def _quarantine(database: sqlite3.Connection, now_ns: int, lost: list[Finding]) -> None:
    database.execute("BEGIN IMMEDIATE")
    for values in database.execute(f"SELECT {COLUMNS} FROM batches ORDER BY first").fetchall():
        row = Row(*values)
        try:
            row.messages()
        except JournalDamaged as damage:
            lost.append(Finding(f"batch {row.first} on {row.topic}", damage.why, row.first, row.last))
            put_aside(database, damage, now_ns)
    database.execute("COMMIT")


def _mend_files(folder: Path, database: sqlite3.Connection, now_ns: int, lost: list[Finding]) -> list[str]:
    from trunkline.journal import lake

    with Reader(folder) as reader:
        sealed = [file for kind in ("messages", "fates") for file in reader.files(kind)]
    aside = []
    for file in sealed:
        if not (findings := _look_into(folder, file, 0)):
            continue
        path = folder / file.path
        batches = list(lake.salvage(path)) if path.exists() else []
        mended = lake.write(folder, file.kind, file.day, batches) if batches else None
        database.execute("BEGIN IMMEDIATE")
        if mended is not None:
            lake.record(database, mended)
        database.execute("DELETE FROM files WHERE path = ?", (file.path,))
        database.execute("DELETE FROM file_topics WHERE path = ?", (file.path,))
        database.execute("COMMIT")
        saved = 0 if mended is None else mended.file.rows
        lost.append(Finding(file.path, f"{findings[0].why}; {saved} of {file.rows} rows saved", file.first, file.last))
        if path.exists():
            (folder / ASIDE).mkdir(exist_ok=True)
            target = folder / ASIDE / f"{now_ns}-{path.name}"
            os.rename(path, target)
            aside.append(target.relative_to(folder).as_posix())
    return aside
