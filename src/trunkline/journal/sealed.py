"""Sealed files, as the journal lists them."""

from __future__ import annotations

import sqlite3

import msgspec

from trunkline.journal.range import FOREVER


class File(msgspec.Struct, frozen=True):
    """A valid sealed file."""

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


def listed(database: sqlite3.Connection, kind: str, first: int = 0, last: int = FOREVER) -> list[File]:
    """The valid files with numbers from `first` to `last`, in order."""
    rows = database.execute(
        f"SELECT {FILE_COLUMNS} FROM files"
        " WHERE kind = ? AND replaced_ns IS NULL AND first <= ? AND last >= ? ORDER BY first",
        (kind, last, first),
    )
    return [File(*row) for row in rows]
