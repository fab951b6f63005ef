"""Sealed files and unsealed messages in one snapshot. Used through `Reader`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from trunkline.journal.explain import FATE_COLUMNS
from trunkline.journal.sealed import File, listed

Fits = Callable[[str], bool]

HIGHEST = {
    "messages": "SELECT max(n) FROM (SELECT (SELECT last FROM batches ORDER BY first DESC LIMIT 1) AS n"
    " UNION ALL SELECT max(last) FROM files WHERE kind = 'messages' UNION ALL SELECT max(last) FROM removals"
    " UNION ALL SELECT max(last) FROM quarantine)",
    "fates": "SELECT max(n) FROM (SELECT max(seq) AS n FROM sqlite_sequence WHERE name = 'fates'"
    " UNION ALL SELECT max(last) FROM files WHERE kind = 'fates')",
}
"""The highest number ever used, including replaced files and removed messages."""


class Head(NamedTuple):
    """The range of numbers of a file or a batch, and its number of rows on matching topics."""

    first: int
    last: int
    rows: int
    file: File | None


def files(database: sqlite3.Connection, kind: str, first: int, last: int, fits: Fits | None) -> list[File]:
    """Sealed files, in order."""
    return [file for file, _ in _counted(database, kind, first, last, fits)]


def batches(
    database: sqlite3.Connection, columns: str, first: int, last: int, fits: Fits | None, limit: int = -1
) -> list[tuple[Any, ...]]:
    """These columns of the batches of messages that are not sealed, in order."""
    if fits is not None:
        database.create_function("fits", 1, cache(fits), deterministic=True)
    # The first one may begin before the range and reach into it. It is found by one lookup.
    return database.execute(
        f"SELECT {columns} FROM batches"
        " WHERE first >= coalesce((SELECT max(first) FROM batches WHERE first <= :first), :first) AND first <= :last"
        f" AND last >= :first {'' if fits is None else 'AND fits(topic)'} ORDER BY first LIMIT :limit",
        {"first": first, "last": last, "limit": limit},
    ).fetchall()


def fates(database: sqlite3.Connection, first: int, last: int) -> list[tuple[Any, ...]]:
    """Fates that are not sealed, in order."""
    return database.execute(
        f"SELECT {FATE_COLUMNS} FROM fates WHERE number BETWEEN ? AND ? ORDER BY number", (first, last)
    ).fetchall()


def heads(database: sqlite3.Connection, kind: str, first: int, last: int, fits: Fits | None, limit: int) -> list[Head]:
    """All parts, in order, with at most `limit` unsealed ones. Their bodies are not read."""
    found = [Head(file.first, file.last, count, file) for file, count in _counted(database, kind, first, last, fits)]
    if kind == "messages":
        hot = batches(database, "first, last", first, last, fits, limit)
    else:
        hot = database.execute(
            "SELECT number, number FROM fates WHERE number BETWEEN ? AND ? ORDER BY number LIMIT ?",
            (first, last, limit),
        ).fetchall()
    found += [Head(begin, end, end - begin + 1, None) for begin, end in hot]
    return sorted(found, key=lambda head: head.first)


def _counted(
    database: sqlite3.Connection, kind: str, first: int, last: int, fits: Fits | None
) -> list[tuple[File, int]]:
    found = listed(database, kind, first, last)
    if fits is None:
        return [(file, file.rows) for file in found]
    database.create_function("fits", 1, cache(fits), deterministic=True)
    counts = dict(
        database.execute("SELECT path, sum(count) FROM file_topics WHERE fits(topic) GROUP BY path").fetchall()
    )
    return [(file, counts[file.path]) for file in found if file.path in counts]
