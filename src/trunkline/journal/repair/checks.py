"""Faults: what is wrong with a batch, with another row, with a sealed file; and what could not be read at all."""

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
"""What the lake holds."""
MISRECORDED = "the file is whole, but what the journal has written of it is wrong"


# Batches


def look_at_batch(values: tuple[Any, ...]) -> Finding | None:
    """What is wrong with a batch, if anything is."""
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
    """How a batch is called in findings."""
    return f"batch {values[0]} on {str(values[2]).encode(errors='backslashreplace').decode()}"


# Other rows


def faults(database: sqlite3.Connection, table: str) -> Iterator[tuple[tuple[Any, ...], Finding]]:
    """The rows of a table that are no good. Those without a row to them have an empty one."""
    scan = Scan(database, table, end_of(database))
    for values in scan:
        if (why := _fault(table, values)) is not None:
            yield values, Finding(named(table, values), why)
    for finding in unread(table, scan, []):
        yield (), Finding(finding.where, finding.why)


def _fault(table: str, values: tuple[Any, ...]) -> str | None:
    """What is wrong with a row that is no batch, if anything is."""
    why = misfit(table, values)
    if why is None and table in CONTENT:
        try:
            CONTENT[table](dict(zip(shapes()[table].names, values, strict=True)))
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            return f"it cannot be read: {error}"
    return why


def misfit(table: str, values: tuple[Any, ...]) -> str | None:
    """What is wrong with the types of a row."""
    shape = shapes()[table]
    for name, kind, required, value in zip(shape.names, shape.types, shape.required, values, strict=False):
        if value is None and not required:
            continue
        if not isinstance(value, kind):
            return f"its {name} is no {kind.__name__}"
        if isinstance(value, str) and not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                return f"its {name} is no text"
    return None


def _check_letter(row: dict[str, Any]) -> None:
    letter = decode_letter(row["letter"])
    if (letter.subscriber, letter.message.seq) != (row["subscriber"], row["seq"]):
        raise ValueError("it is filed under another name")


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
    """How a row that is no batch is called in findings."""
    shape = shapes()[table]
    key = " ".join(str(values[shape.names.index(name)]) for name in shape.key)
    return f"{files.FILE}, {NAMES.get(table, table)} {key}".encode(errors="backslashreplace").decode()


def unread(table: str, scan: Scan, covered: list[Span]) -> list[Finding]:
    """What a scan could not read: by the numbers of messages between those that are there."""
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
    """The sealed files that count, as far as the journal still knows, by kind and in order."""
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
    """The files that lie in the lake, whether they count or not."""
    for kind in KINDS:
        yield from folder.glob(f"{kind}/date=*/*.parquet")


Share = tuple[str, int, int, int]
"""What a file holds of a topic: how many messages, the first, the last."""


def topic_shares(database: sqlite3.Connection) -> dict[str, int]:
    """What the journal lists of the topics of each sealed file, by path, as a `digest`."""
    shares: dict[str, int] = {}
    query = "SELECT path, topic, count, first, last FROM file_topics ORDER BY path"
    with contextlib.suppress(sqlite3.Error, TypeError):
        for path, rows in groupby(database.execute(query), key=itemgetter(0)):
            shares[path] = digest(tuple(row[1:]) for row in rows)
    return shares


def digest(shares: Iterable[Share]) -> int:
    """One number for what a file holds of all its topics, which may be many. For one process only."""
    return hash(frozenset(shares))


def look_into_file(folder: Path, file: File, shares: dict[str, int], before: int = 0) -> Finding | None:
    """What is wrong with a sealed file, if anything is. `shares` is what the journal lists of its topics, by path.

    Its rows are read in the way in which everybody reads them, and must be those that its name and the journal say.
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
        return Finding(file.path, f"its rows are {first} to {last}, its name says otherwise")
    if (rows, first, last) != (file.rows, file.first, file.last):
        return Finding(file.path, MISRECORDED)
    if file.kind == "messages" and shares.get(file.path) != topics:
        return Finding(file.path, MISRECORDED)
    return None


def _counted(folder: Path, file: File) -> tuple[int, int, int, int]:
    """What a reader gets of a file: rows, the first and the last number, and the `digest` of its topics.

    Raises JournalDamaged if it cannot be read, or its numbers do not rise.
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
            raise JournalDamaged(file.first, file.last, file.path, "its numbers do not rise")
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
    """How many rows a whole file has, and its first and last number, by its own account."""
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as parquet:
        column = parquet.schema_arrow.names.index("seq" if kind == "messages" else "number")
        groups = [parquet.metadata.row_group(at).column(column).statistics for at in range(parquet.num_row_groups)]
        return parquet.metadata.num_rows, groups[0].min, groups[-1].max
