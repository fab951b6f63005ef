"""Queries on the tables of a journal, for readers; in one snapshot where that matters.

A reader needs no lock. The valid files of the lake are those that are listed here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from trunkline.journal import database as databases
from trunkline.journal import identity as identities
from trunkline.journal.errors import JournalUnusable
from trunkline.journal.sealed import FILE_COLUMNS, File, listed
from trunkline.topic import EVERYTHING, matches


class JournalQueries:
    """Queries on one journal, with their own connection."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.pattern = EVERYTHING
        """The pattern that the SQL function `wanted(topic)` tests."""
        self._database = databases.open_for_reading(self.directory)
        self._database.create_function("wanted", 1, self._wanted, deterministic=True)

    def _wanted(self, topic: str) -> bool:
        return matches(self.pattern, topic)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()

    @property
    def identity(self) -> str | None:
        """The UUID of the journal; None if an older version created it, and it was not opened for writing since."""
        with self._asking() as database:
            return identities.read(database)

    def expect(self, identity: str | None) -> None:
        """Raise WrongJournal if a position with this identity belongs to another journal."""
        identities.check(self.directory, identity, self.identity)

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A context in which all queries read from one snapshot."""
        with self._asking() as database:
            database.execute("BEGIN")
            try:
                yield database
            finally:
                database.execute("COMMIT")

    @contextmanager
    def _asking(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._database
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise JournalUnusable(str(self.directory), databases.why(error, self.directory)) from error

    def query(self, sql: str, values: tuple[Any, ...] | dict[str, Any] = ()) -> list[tuple[Any, ...]]:
        with self._asking() as database:
            return database.execute(sql, values).fetchall()

    def each(self, sql: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """Like `query`, but row by row from one snapshot, for results that may be too large for memory."""
        with self._asking() as database:
            yield from database.execute(sql, values)

    # Valid files

    def files(self, kind: str = "messages") -> list[File]:
        """The valid sealed files, in order. Use this list, not the directory, which may contain replaced ones."""
        with self.snapshot() as database:
            return listed(database, kind)

    def file(self, path: str) -> File | None:
        """The sealed file at a path, if it is valid."""
        rows = self.query(f"SELECT {FILE_COLUMNS} FROM files WHERE path = ? AND replaced_ns IS NULL", (path,))
        return File(*rows[0]) if rows else None

    def counts(self, file: File) -> bool:
        """Whether a file is still valid: it may have been replaced."""
        return self.file(file.path) == file

    def sized_files(self, kind: str) -> Iterator[tuple[File, int]]:
        """The valid sealed files, in order, one at a time; each with the bytes of its payloads."""
        payloads = "coalesce((SELECT sum(t.bytes) FROM file_topics t WHERE t.path = files.path), 0)"
        query = f"SELECT {FILE_COLUMNS}, {payloads} FROM files WHERE kind = ? AND replaced_ns IS NULL ORDER BY first"
        for *values, size in self.each(query, (kind,)):
            yield File(*values), size

    def file_upto(self, number: int) -> File | None:
        """The last sealed file of messages that begins at or below a number."""
        rows = self.query(
            f"SELECT {FILE_COLUMNS} FROM files WHERE kind = 'messages' AND replaced_ns IS NULL AND first <= ?"
            " ORDER BY first DESC LIMIT 1",
            (number,),
        )
        return File(*rows[0]) if rows else None


def start_of_row(database: sqlite3.Connection, after: int) -> int:
    """The first number of the row with the message after `after`, if there is such a row."""
    row = database.execute(
        "SELECT first, last FROM batches WHERE first <= ? ORDER BY first DESC LIMIT 1", (after + 1,)
    ).fetchone()
    return row[0] if row is not None and row[1] > after else after + 1
