"""Verifying: checks that everything that was written is there, bit for bit. Read-only; other processes may write."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

from trunkline.journal import database as files
from trunkline.journal.errors import JournalUnusable
from trunkline.journal.repair.checks import (
    KINDS,
    faults,
    lake_files,
    look_at_batch,
    look_into_file,
    place,
    sealed_files,
    topic_shares,
    unread,
)
from trunkline.journal.repair.findings import Finding, Verified
from trunkline.journal.repair.scanner import Scan, end_of, number, shapes, text
from trunkline.journal.sealed import File

Progress = Callable[[int, int], None]
"""Called with the number of checked batches and files, and their total."""

MAX_COMPLAINTS = 10


def verify(directory: str | Path, progress: Progress = lambda done, of: None) -> Verified:
    """Check every batch and every file while other processes may write.

    Raises JournalUnusable if there is no journal.
    """
    folder = Path(directory)
    try:
        database = files.open_for_reading(folder)
    except JournalUnusable as error:
        if is_newer(folder) or not (_is_damage(error) or any(lake_files(folder))):
            raise
        return Verified(findings=(Finding(files.FILE, error.why),))
    with contextlib.closing(database):
        database.text_factory = text
        # One snapshot for everything, so that messages that are sealed in between are counted exactly once.
        database.execute("BEGIN")
        findings = [Finding(files.FILE, complaint) for complaint in complaints(database)]
        sealed, faulty = sealed_files(database)
        findings += faulty
        batches, messages = _verify_batches(database, sealed, findings, progress)
        for table in shapes():
            if table not in ("batches", "files", "quarantine"):
                findings += [finding for _, finding in faults(database, table)]
        quarantined = number(database, "SELECT count(*) FROM quarantine")
        shares = topic_shares(database)
        with contextlib.suppress(sqlite3.Error):
            database.execute("COMMIT")
        rows = dict.fromkeys(KINDS, 0)
        before = dict.fromkeys(KINDS, 0)
        for done, file in enumerate(sealed, batches + 1):
            progress(done, batches + len(sealed))
            rows[file.kind] += file.rows
            found = look_into_file(folder, file, shares, before[file.kind])
            before[file.kind] = file.last
            if found is not None and _counts(database, file):
                findings.append(found)
    return Verified(
        batches, messages, len(sealed), rows["messages"], rows["fates"], quarantined, findings=tuple(findings)
    )


def _is_damage(error: JournalUnusable) -> bool:
    code = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def is_newer(folder: Path) -> bool:
    """Whether a newer version of Trunkline wrote it. Then it cannot be checked here."""
    with contextlib.suppress(OSError), (folder / files.FILE).open("rb") as file:
        head = file.read(100)
        return head.startswith(b"SQLite format 3\0") and int.from_bytes(head[60:64], "big") > files.VERSION
    return False


def complaints(database: sqlite3.Connection) -> list[str]:
    """The errors that SQLite's own check reports."""
    try:
        found = database.execute(f"PRAGMA integrity_check({MAX_COMPLAINTS})").fetchall()
    except sqlite3.DatabaseError as error:
        return [str(error)]
    return [line for (result,) in found if result != "ok" for line in str(result).splitlines()[:MAX_COMPLAINTS]]


def _verify_batches(
    database: sqlite3.Connection, sealed: list[File], findings: list[Finding], progress: Progress
) -> tuple[int, int]:
    of = number(database, "SELECT count(*) FROM batches") + len(sealed)
    covered = [(file.first, file.last) for file in sealed if file.kind == "messages"]
    last = 0
    batches = messages = 0
    scan = Scan(database, "batches", end_of(database))
    for values in scan:
        batches += 1
        progress(min(batches, of), of)
        finding = look_at_batch(values)
        if finding is None and not scan.failed and values[0] <= last:
            finding = Finding(place(values), "it overlaps the one before it", values[0], values[1])
        if finding is not None:
            findings.append(finding)
            continue
        last = values[1]
        messages += values[1] - values[0] + 1
        covered.append((values[0], values[1]))
    findings += unread("batches", scan, covered)
    return batches, messages


def _counts(database: sqlite3.Connection, file: File) -> bool:
    """Whether a file is still valid: it may have been joined and deleted since the list of files was read."""
    query = "SELECT count(*) FROM files WHERE path = ? AND replaced_ns IS NULL"
    try:
        return bool(database.execute(query, (file.path,)).fetchone()[0])
    except sqlite3.DatabaseError:
        return True
