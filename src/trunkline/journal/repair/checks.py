"""Checks for faults: in batches, in other rows, in sealed files, and parts that cannot be read."""

from __future__ import annotations

import contextlib
import sqlite3
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec

from trunkline.delivery.fates import Fate
from trunkline.delivery.requests import Why
from trunkline.errors import JournalDamaged
from trunkline.journal import database as files
from trunkline.journal.body import StoredBatch
from trunkline.journal.cursor import unpack
from trunkline.journal.ledger import decode_letter, decode_message, decode_story
from trunkline.journal.repair.findings import Finding, Span
from trunkline.journal.repair.scanner import Scan, end_of, shapes
from trunkline.journal.sealed import File

KINDS = ("messages", "fates")
"""The kinds of rows in the lake."""
MISRECORDED = "the file is whole, but its entry in the journal is wrong"


# Batches


def look_at_batch(values: tuple[Any, ...]) -> Finding | None:
    """The fault of a batch, or None."""
    why = misfit("batches", values)
    if why is None:
        try:
            StoredBatch(*values).messages()
        except JournalDamaged as damage:
            why = damage.why
        else:
            return None
    first, last = (value if isinstance(value, int) else 0 for value in values[:2])
    concerned = (first, last) if 0 < first <= last else (0, 0)
    return Finding(place(values), why, *concerned)


def place(values: tuple[Any, ...]) -> str:
    """The name of a batch in findings."""
    return f"batch {values[0]} on {str(values[2]).encode(errors='backslashreplace').decode()}"


# Other rows


def faults(database: sqlite3.Connection, table: str) -> Iterator[tuple[tuple[Any, ...], Finding]]:
    """The faulty rows of a table. For unreadable parts the row is empty."""
    scan = Scan(database, table, end_of(database))
    for values in scan:
        if (why := _fault(table, values)) is not None:
            yield values, Finding(named(table, values), why)
    for finding in unread(table, scan, []):
        yield (), Finding(finding.where, finding.why)


def _fault(table: str, values: tuple[Any, ...]) -> str | None:
    """The fault of a row that is not a batch, or None."""
    why = misfit(table, values)
    if why is None and table in CONTENT:
        try:
            CONTENT[table](dict(zip(shapes()[table].names, values, strict=True)))
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            return f"it cannot be read: {error}"
    return why


def misfit(table: str, values: tuple[Any, ...]) -> str | None:
    """The fault in the types of a row."""
    shape = shapes()[table]
    for name, kind, required, value in zip(shape.names, shape.types, shape.required, values, strict=False):
        if value is None and not required:
            continue
        if not isinstance(value, kind):
            return f"its {name} is not of type {kind.__name__}"
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return f"its {name} is not valid text"
    return None


def _check_letter(row: dict[str, Any]) -> None:
    letter = decode_letter(row["letter"])
    if (letter.subscriber, letter.message.seq) != (row["subscriber"], row["seq"]):
        raise ValueError("its subscriber or number differs from its row")


CONTENT: dict[str, Callable[[dict[str, Any]], object]] = {
    "cursors": lambda row: unpack(row["pending"]),
    "retries": lambda row: (decode_story(row["story"]), decode_message(row["message"])),
    "dead_letters": _check_letter,
    "orphans": lambda row: (Why(row["why"]), decode_message(row["message"])),
    "fates": lambda row: Fate(row["fate"]),
    "files": lambda row: KINDS.index(row["kind"]),
}
NAMES = {"cursors": "durable subscription", "retries": "retry", "dead_letters": "dead letter", "orphans": "orphan"}


def named(table: str, values: tuple[Any, ...]) -> str:
    """The name of a row that is not a batch in findings."""
    shape = shapes()[table]
    key = " ".join(str(values[shape.names.index(name)]) for name in shape.key)
    return f"{files.FILE}, {NAMES.get(table, table)} {key}".encode(errors="backslashreplace").decode()


def unread(table: str, scan: Scan, covered: list[Span]) -> list[Finding]:
    """The parts that a scan could not read, as ranges of message numbers."""
    where = f"{files.FILE}, {table}"
    if table not in ("batches", "quarantine"):
        return [Finding(where, f"some of it cannot be read: {scan.failed}")] if scan.failed else []
    there = sorted(covered)
    firsts = [first for first, _ in there]
    found = set()
    for low, high in scan.gaps:
        while low < high:
            at = bisect_right(firsts, low)
            first = there[at - 1][1] + 1 if at else 1
            low = there[at][0] if at < len(there) else scan.known + 1
            if first < low:
                found.add((first, low - 1))
            if at == len(there):
                break
    return [Finding(where, f"it cannot be read: {scan.failed}", *span) for span in sorted(found)]


# Sealed files


def sealed_files(database: sqlite3.Connection) -> tuple[list[File], list[Finding]]:
    """The valid sealed files that the journal lists, by kind and in order."""
    scan = Scan(database, "files", 0)
    good, faulty = [], []
    for values in scan:
        if (why := _fault("files", values)) is not None:
            faulty.append(Finding(named("files", values), why))
        elif values[-1] is None:
            good.append(File(*values[:-1]))
    good.sort(key=lambda file: (KINDS.index(file.kind), file.first))
    return good, faulty + unread("files", scan, [])


def lake_files(folder: Path) -> Iterator[Path]:
    """All files in the lake, valid or not."""
    for kind in KINDS:
        yield from folder.glob(f"{kind}/date=*/*.parquet")


Share = tuple[str, int, int, int]
"""The share of a topic in a file: count, first and last number."""


def topic_shares(database: sqlite3.Connection) -> dict[str, int]:
    """The topics of each sealed file according to the journal, by path, as a `digest`."""
    shares: dict[str, int] = {}
    query = "SELECT path, topic, count, first, last FROM file_topics ORDER BY path"
    with contextlib.suppress(sqlite3.Error, TypeError):
        for path, rows in groupby(database.execute(query), key=itemgetter(0)):
            shares[path] = digest(tuple(row[1:]) for row in rows)
    return shares


def digest(shares: Iterable[Share]) -> int:
    """One number for the shares of all topics in a file. Valid in one process only."""
    return hash(frozenset(shares))


def look_into_file(folder: Path, file: File, shares: dict[str, int], before: int = 0) -> Finding | None:
    """The fault of a sealed file, or None. `shares` has its topics according to the journal, by path.

    Its rows are read in the usual way, and must match its name and the journal.
    """
    from trunkline.journal import lake

    concerned = (file.first, file.last) if file.kind == "messages" else (0, 0)
    path = folder / file.path
    try:
        size = path.stat().st_size
        if file.first <= before:
            return Finding(file.path, "it overlaps the one before it", *concerned)
        if size != file.bytes:
            return Finding(file.path, f"it has {size:,} bytes instead of {file.bytes:,}", *concerned)
        if lake.checksum_of(path) != file.checksum:
            return Finding(file.path, "its checksum does not match", *concerned)
    except FileNotFoundError:
        return Finding(file.path, "the file is missing", *concerned)
    except OSError as error:
        return Finding(file.path, f"it cannot be read: {error.strerror}", *concerned)
    try:
        rows, first, last, topics = _counted(folder, file)
    except JournalDamaged as damage:
        return Finding(file.path, damage.why, *concerned)
    if not path.name.startswith(f"{first:020d}-{last:020d}"):
        return Finding(file.path, f"its rows are {first} to {last}, its name has other numbers")
    if (rows, first, last) != (file.rows, file.first, file.last):
        return Finding(file.path, MISRECORDED)
    if file.kind == "messages" and shares.get(file.path) != topics:
        return Finding(file.path, MISRECORDED)
    return None


def _counted(folder: Path, file: File) -> tuple[int, int, int, int]:
    """The content of a file for a reader: rows, first and last number, and the `digest` of its topics.

    Raises JournalDamaged if it cannot be read, or its numbers are not in ascending order.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from trunkline.journal import lake

    key, columns = ("seq", ["seq", "topic"]) if file.kind == "messages" else ("number", ["number"])
    rows = first = last = 0
    topics: dict[str, tuple[int, int, int]] = {}
    for batch in lake.read(folder, file, None, columns):
        numbers = batch.column(key)
        if numbers[0].as_py() <= last or pc.all(pc.greater(numbers[1:], numbers[:-1])).as_py() is False:
            raise JournalDamaged(file.first, file.last, file.path, "its numbers are not in ascending order")
        first = first or numbers[0].as_py()
        last = numbers[-1].as_py()
        rows += batch.num_rows
        if file.kind == "messages":
            shares = pa.Table.from_batches([batch]).group_by("topic")
            for row in shares.aggregate([("seq", "count"), ("seq", "min"), ("seq", "max")]).to_pylist():
                count, begin, _ = topics.get(row["topic"], (0, row["seq_min"], 0))
                topics[row["topic"]] = (count + row["seq_count"], begin, row["seq_max"])
    return rows, first, last, digest((topic, *share) for topic, share in topics.items())


def written_down(path: Path, kind: str) -> tuple[int, int, int]:
    """The rows, first and last number of an intact file, from its footer."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as parquet:
        column = parquet.schema_arrow.names.index("seq" if kind == "messages" else "number")
        groups = [parquet.metadata.row_group(at).column(column).statistics for at in range(parquet.num_row_groups)]
        return parquet.metadata.num_rows, groups[0].min, groups[-1].max
