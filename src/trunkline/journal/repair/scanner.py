"""The tables of a journal: their structure, and reading every row that can be read, also after damage."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import deque
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from trunkline.journal import database as files
from trunkline.journal.repair.findings import Span

PROBES = 256
"""How often an unreadable range is halved to find readable rows in it."""
BEYOND = 1_000_000
"""How far a table is searched beyond the last known number."""


class Shape(NamedTuple):
    """The structure of a table."""

    names: tuple[str, ...]
    types: tuple[type, ...]
    required: tuple[bool, ...]
    key: tuple[str, ...]
    numbered: bool
    """Whether its key is a number, so that reading can continue after a damaged part."""


@cache
def shapes() -> dict[str, Shape]:
    """The tables of a journal, by name."""
    kinds: dict[str, type] = {"INTEGER": int, "TEXT": str, "BLOB": bytes}
    with contextlib.closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(files.TABLES)
        names = [name for (name,) in empty.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found = {}
        for name in names:
            if name.startswith("sqlite_"):
                continue
            columns = empty.execute(f"PRAGMA table_info({name})").fetchall()
            key = tuple(column[1] for column in sorted(columns, key=lambda each: each[5]) if column[5])
            found[name] = Shape(
                tuple(column[1] for column in columns),
                tuple(kinds[column[2]] for column in columns),
                tuple(bool(column[3] or column[5]) for column in columns),
                key,
                len(key) == 1 and next(kinds[column[2]] for column in columns if column[5]) is int,
            )
    return found


class Scan:
    """Reads every readable row of a table, also beyond damaged pages. After damage, the rows are not in order.

    Afterwards `gaps` has the pairs of keys, both ends excluded, between which something could not be read. If the keys
    are not numbers, only `failed` shows that.
    """

    def __init__(self, source: sqlite3.Connection, table: str, end: int) -> None:
        self._source = source
        self._table = table
        self._shape = shapes()[table]
        self._end = end
        self.known = end - BEYOND
        """The highest number that occurs in the journal."""
        self._broken = False
        self.failed = ""
        self.gaps: list[Span] = []

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._by_number() if self._shape.numbered else self._from_both_ends()

    def _by_number(self) -> Iterator[tuple[Any, ...]]:
        # Breadth first: readable rows between two damaged places are found early, and then read to the end.
        key = self._shape.key[0]
        todo = deque([(0, self._end + 1)])
        probes = PROBES
        while todo:
            low, high = todo.popleft()
            within = f"SELECT * FROM {self._table} WHERE {key} > ? AND {key} < ? ORDER BY {key}"
            for row in self._read(within, (low, high), rising=True):
                low = row[0]
                yield row
            if not self._broken:
                continue
            for row in self._read(f"{within} DESC", (low, high), rising=False):
                high = row[0]
                yield row
            probes -= 1
            if high - low <= 2 or probes < 0:
                self.gaps.append((low, high))
                continue
            middle = (low + high) // 2
            todo += [(low, middle + 1), (middle, high)]

    def _read(self, query: str, bounds: Span, *, rising: bool) -> Iterator[tuple[Any, ...]]:
        self._broken = False
        low, high = bounds
        try:
            for row in self._source.execute(query, bounds):
                # An overwritten page may contain rows of another table.
                if not isinstance(row[0], int) or not low < row[0] < high:
                    raise sqlite3.DatabaseError(f"{row[0]!r} is out of order")
                low, high = (row[0], high) if rising else (low, row[0])
                yield row
        except sqlite3.Error as error:
            self._broken = True
            self.failed = str(error)

    def _from_both_ends(self) -> Iterator[tuple[Any, ...]]:
        order = ", ".join(self._shape.key)
        backwards = ", ".join(f"{name} DESC" for name in self._shape.key)
        at = [self._shape.names.index(name) for name in self._shape.key]
        seen = set()
        for direction in (order, backwards):
            try:
                for row in self._source.execute(f"SELECT * FROM {self._table} ORDER BY {direction}"):
                    key = tuple(row[index] for index in at)
                    if key in seen:
                        break
                    seen.add(key)
                    yield row
            except sqlite3.Error as error:
                self.failed = str(error)
            else:
                return


def end_of(database: sqlite3.Connection) -> int:
    """A number above all numbers of the journal."""
    found = [
        number(database, query)
        for query in (
            "SELECT max(last) FROM batches",
            "SELECT max(first) FROM batches INDEXED BY batches_by_topic",
            "SELECT max(last) FROM quarantine",
            "SELECT max(last) FROM files",
            "SELECT max(first) FROM files INDEXED BY files_in_order WHERE replaced_ns IS NULL",
            "SELECT max(last) FROM fates INDEXED BY fates_by_last",
            "SELECT max(number) FROM fates",
            "SELECT max(seq) FROM sqlite_sequence",
            "SELECT max(number) FROM removals",
            "SELECT max(high) FROM cursors",
            "SELECT max(value) FROM meta WHERE key = 'last'",
        )
    ]
    return min(max(found) + BEYOND, 2**62)


def number(database: sqlite3.Connection, query: str) -> int:
    """The result of a query for one number; 0 if it cannot be read."""
    try:
        return int(database.execute(query).fetchone()[0] or 0)
    except (sqlite3.Error, TypeError, ValueError):
        return 0


def text(data: bytes) -> str:
    """For `text_factory`: text that is not UTF-8 is reported as damage, and does not end the scan."""
    return data.decode(errors="surrogateescape")
