"""Sealed files, as the journal lists them."""

from __future__ import annotations

import sqlite3

import msgspec


class File(msgspec.Struct, frozen=True):
    """A sealed file that counts."""

    path: str
    kind: str
    first: int
    last: int
    rows: int
    bytes: int
    layout: int
    day: str
    at_ns: int
    until_at_ns: int
    since_ns: int
    until_ns: int
    checksum: int


FILE_COLUMNS = ", ".join(File.__struct_fields__)


def listed(database: sqlite3.Connection, kind: str) -> list[File]:
    """The files that count, in order."""
    rows = database.execute(
        f"SELECT {FILE_COLUMNS} FROM files WHERE kind = ? AND replaced_ns IS NULL ORDER BY first", (kind,)
    )
    return [File(*row) for row in rows]
