"""The lake: sealed ranges of the journal as Parquet files, with one directory per day.

A file is valid when the journal lists it. It is written under a hidden name, synced, renamed, and only then recorded,
in the same transaction that deletes its rows from the journal. Files that a crash leaves in between are not listed, and
are removed at the next start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import zlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import astuple

from trunkline.errors import JournalDamaged, MissingExtra
from trunkline.journal.database import sync_path
from trunkline.journal.errors import JournalUnusable

try:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
except ImportError as error:  # pragma: no cover  # depends on what is installed
    raise MissingExtra("journal", "the lake (Parquet files, Arrow batches)") from error

from trunkline.journal.layout import FATES, LAYOUT, LAYOUT_KEY, MESSAGES, fit, pieces
from trunkline.journal.range import Range, cut
from trunkline.journal.sealed import FILE_COLUMNS, File
from trunkline.topic import EVERYTHING, is_wild, matches

SCHEMAS = {"messages": MESSAGES, "fates": FATES}
SLICE_ROWS = 65_536
SLICE_BYTES = 8 * 1024 * 1024
"""Files are read in slices of about this size: older versions of Trunkline wrote row groups of gigabytes."""
GROUP_ROWS = 20_000
GROUP_BYTES = 16 * 1024 * 1024
"""The size of a row group in memory: small enough for a subscriber that catches up, large enough to compress well.

Only a single message that is larger makes a larger group.
"""
READ_BYTES = 1024 * 1024
"""The read buffer of a column. Without it, Arrow would read a column of a row group as a whole."""


def day_of(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d")


class TopicShare:
    """The part of a file that belongs to one topic."""

    def __init__(self) -> None:
        self.first = 0
        self.last = 0
        self.count = 0
        self.bytes = 0
        self.until_at_ns = 0


class Sealed:
    """A file that is written, but not listed yet."""

    def __init__(self, file: File, topics: dict[str, TopicShare]) -> None:
        self.file = file
        self.topics = topics


def write(directory: Path, kind: str, day: str, batches: Iterable[pa.RecordBatch]) -> Sealed | None:
    """Write batches, in order, to a new file under its final name, and sync it. None if there were no rows."""
    folder = directory / kind / f"date={day}"
    hidden = folder / f".{os.getpid()}.tmp"
    tally = Tally(kind)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(
            hidden,
            SCHEMAS[kind],
            compression="zstd",
            write_page_checksum=True,
            use_dictionary=[field.name for field in SCHEMAS[kind] if field.name not in UNIQUE],
        ) as writer:
            for group in _groups(batches):
                tally.add(group)
                writer.write_table(group, row_group_size=GROUP_ROWS)
        if not tally.rows:
            return None
        path = _free_name(folder, tally.first, tally.last)
        sync_path(hidden)
        checksum = checksum_of(hidden)
        size = hidden.stat().st_size
        os.rename(hidden, path)
        for changed in (folder, folder.parent, directory):
            sync_path(changed)
    except pa.ArrowInvalid as error:
        raise JournalUnusable(str(directory), f"a stretch cannot be written as Parquet: {error}") from error
    except OSError as error:
        full = "the disk is full: free some space; nothing is lost, the messages stay in the journal until then"
        raise JournalUnusable(str(directory), full if error.errno == errno.ENOSPC else str(error)) from error
    finally:
        with contextlib.suppress(OSError):
            hidden.unlink(missing_ok=True)
    return Sealed(tally.file(path.relative_to(directory).as_posix(), day, size, checksum), tally.topics)


UNIQUE = {"seq", "id", "time", "timestamp_ns", "payload", "number", "first", "last", "count"}
"""Columns whose values rarely repeat, so a dictionary does not help."""


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows in tables of at most GROUP_BYTES, and of at least GROUP_ROWS if that is possible."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for part in (part for batch in batches if batch.num_rows for part in pieces(batch, GROUP_BYTES)):
        if held and (rows >= GROUP_ROWS or size + part.nbytes > GROUP_BYTES):
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
        held.append(part)
        rows += part.num_rows
        size += part.nbytes
    if held:
        yield pa.Table.from_batches(held)


class Tally:
    """Counts the rows of a file while they are written."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.first = 0
        self.last = 0
        self.rows = 0
        self._at: tuple[int, int] | None = None
        self._times: tuple[int, int] | None = None
        self.topics: dict[str, TopicShare] = {}

    def add(self, table: pa.Table) -> None:
        key = table.column("seq" if self._kind == "messages" else "number")
        if not self.rows:
            self.first = key[0].as_py()
        self.last = key[-1].as_py()
        self.rows += table.num_rows
        if self._kind == "fates":
            self._at = _span(self._at, table.column("time").cast(pa.int64()), 1000)
            self._times = self._at
            return
        self._at = _span(self._at, table.column("accepted").cast(pa.int64()), 1000)
        self._times = _span(self._times, table.column("timestamp_ns"), 1)
        sized = table.select(["topic", "seq", "accepted"]).append_column(
            "bytes", pc.binary_length(table.column("payload")).cast(pa.int64())
        )
        shares = sized.group_by("topic").aggregate(
            [("seq", "min"), ("seq", "max"), ("seq", "count"), ("bytes", "sum"), ("accepted", "max")]
        )
        for row in shares.to_pylist():
            share = self.topics.setdefault(row["topic"], TopicShare())
            share.first = share.first or row["seq_min"]
            share.last = row["seq_max"]
            share.count += row["seq_count"]
            share.bytes += row["bytes_sum"]
            share.until_at_ns = int(row["accepted_max"].timestamp() * 1_000_000) * 1000

    def file(self, path: str, day: str, size: int, checksum: int) -> File:
        """The entry of the finished file. It must have at least one row."""
        assert self._at is not None
        assert self._times is not None
        return File(
            path, self._kind, self.first, self.last, self.rows, size, LAYOUT, day, *self._at, *self._times, checksum
        )


def _span(known: tuple[int, int] | None, column: pa.ChunkedArray, factor: int) -> tuple[int, int]:
    found = pc.min_max(column).as_py()
    low, high = found["min"] * factor, found["max"] * factor
    return (low, high) if known is None else (min(known[0], low), max(known[1], high))


def _free_name(folder: Path, first: int, last: int) -> Path:
    """A name from the numbers of the first and last message. A rewritten file gets a new name."""
    path = folder / f"{first:020d}-{last:020d}.parquet"
    revision = 1
    while path.exists():
        revision += 1
        path = folder / f"{first:020d}-{last:020d}-{revision}.parquet"
    return path


def checksum_of(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def record(database: Any, sealed: Sealed) -> None:
    """List the file. It is valid from the commit on."""
    file = sealed.file
    database.execute(
        f"INSERT INTO files ({FILE_COLUMNS}) VALUES ({', '.join('?' * len(File.__struct_fields__))})", astuple(file)
    )
    database.executemany(
        "INSERT INTO file_topics VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (file.path, topic, share.first, share.last, share.count, share.bytes, share.until_at_ns)
            for topic, share in sealed.topics.items()
        ],
    )


IN_PARTS: dict[str, Any] = {"pre_buffer": False, "buffer_size": READ_BYTES}
"""Options to open a Parquet file. With Arrow's defaults a whole row group would be held in memory."""


@contextlib.contextmanager
def opened(directory: Path, file: File, *, check_pages: bool = False) -> Iterator[pq.ParquetFile]:
    """Open a file of the lake. All errors become JournalDamaged."""
    try:
        with (
            (directory / file.path).open("rb") as source,
            pq.ParquetFile(source, page_checksum_verification=check_pages, **IN_PARTS) as parquet,
        ):
            layout = int((parquet.schema_arrow.metadata or {}).get(LAYOUT_KEY, b"0"))
            if layout > LAYOUT:
                raise JournalUnusable(
                    str(directory),
                    f"{file.path} has layout {layout}, this Trunkline supports up to {LAYOUT}: upgrade Trunkline",
                )
            yield parquet
    except FileNotFoundError as error:
        raise JournalDamaged(file.first, file.last, file.path, "the file is missing") from error
    except (OSError, pa.ArrowException) as error:
        raise JournalDamaged(file.first, file.last, file.path, str(error)) from error


def check(directory: Path, file: File) -> None:
    """Raise JournalDamaged if the file differs from what was written."""
    try:
        found = checksum_of(directory / file.path)
    except FileNotFoundError as error:
        raise JournalDamaged(file.first, file.last, file.path, "the file is missing") from error
    except OSError as error:
        raise JournalDamaged(file.first, file.last, file.path, str(error)) from error
    if found != file.checksum:
        raise JournalDamaged(file.first, file.last, file.path, "its checksum does not match")


def read(
    directory: Path, file: File, wanted: Range | None = None, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, with the current columns; raises JournalDamaged."""
    schema = SCHEMAS[file.kind]
    out = schema if columns is None else pa.schema([schema.field(name) for name in columns], schema.metadata)
    with opened(directory, file) as parquet:
        there = set(parquet.schema_arrow.names)
        needed = None if columns is None else [name for name in {*columns, *KEYS} if name in there]
        for group in range(parquet.num_row_groups):
            if wanted is not None and not _may_hold(parquet, group, wanted):
                continue
            for batch in group_slices(parquet, group, needed):
                if wanted is not None:
                    batch = only(batch, wanted)
                if batch.num_rows:
                    yield fit(batch, out)


def speaks_of(directory: Path, file: File, first: int, last: int) -> bool:
    """Whether a file of fates may have a row about messages in this range. Only its footer is read."""
    with opened(directory, file) as parquet:
        return bool(_groups_about(parquet, first, last))


def fates_about(directory: Path, file: File, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """The rows about messages in this range, in a file of fates; raises JournalDamaged."""
    with opened(directory, file) as parquet:
        for group in _groups_about(parquet, first, last):
            for batch in group_slices(parquet, group):
                hit = pc.and_(pc.less_equal(batch.column("first"), last), pc.greater_equal(batch.column("last"), first))
                yield fit(batch.filter(hit), FATES)


def _groups_about(parquet: pq.ParquetFile, first: int, last: int) -> list[int]:
    """The row groups of a file of fates that may have a row whose range overlaps this one."""
    return [
        group
        for group in range(parquet.num_row_groups)
        if all(
            not (name == "first" and found.min > last) and not (name == "last" and found.max < first)
            for name, chunk in _chunks(parquet, group)
            if (found := chunk.statistics) is not None and found.has_min_max
        )
    ]


def slices(path: Path, groups: Iterable[int], columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Row groups of a file of any layout, unchanged, in slices of about SLICE_BYTES. Columns may be missing."""
    with path.open("rb") as source, pq.ParquetFile(source, **IN_PARTS) as parquet:
        there = [name for name in columns if name in parquet.schema_arrow.names]
        for group in groups:
            yield from group_slices(parquet, group, there)


def _may_hold(parquet: pq.ParquetFile, group: int, wanted: Range) -> bool:
    """Whether a row group may have rows in the range of numbers and times."""
    bounds = {"seq": (wanted.first, wanted.last), "timestamp_ns": (wanted.since_ns, wanted.until_ns)}
    for name, chunk in _chunks(parquet, group):
        if name in bounds and (found := chunk.statistics) is not None and found.has_min_max:
            low, high = bounds[name]
            if found.max < low or found.min > high:
                return False
    return True


def group_slices(parquet: pq.ParquetFile, group: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """All rows of a row group, in slices of about SLICE_BYTES."""
    rows = _slice_rows(parquet, group, columns)
    yield from parquet.iter_batches(batch_size=rows, row_groups=[group], columns=columns)


def _slice_rows(parquet: pq.ParquetFile, group: int, columns: list[str] | None = None) -> int:
    """The number of rows that take about SLICE_BYTES in these columns."""
    size = sum(
        chunk.total_uncompressed_size for name, chunk in _chunks(parquet, group) if columns is None or name in columns
    )
    rows = int(parquet.metadata.row_group(group).num_rows)
    return max(1, min(SLICE_ROWS, SLICE_BYTES * rows // max(1, int(size))))


def _chunks(parquet: pq.ParquetFile, group: int) -> Iterator[tuple[str, Any]]:
    """The column chunks of a row group with the names of their columns. A map has two."""
    found = parquet.metadata.row_group(group)
    for at in range(found.num_columns):
        chunk = found.column(at)
        yield chunk.path_in_schema.partition(".")[0], chunk


KEYS = ("seq", "topic", "timestamp_ns")


def only(batch: pa.RecordBatch, wanted: Range) -> pa.RecordBatch:
    batch = cut(batch, wanted)
    if wanted.pattern == EVERYTHING or not batch.num_rows:
        return batch
    topics = batch.column("topic")
    if not is_wild(wanted.pattern):
        return batch.filter(pc.equal(topics, wanted.pattern))
    # Few topics, many rows: the pattern is matched once for each topic.
    fitting = {topic: matches(wanted.pattern, topic) for topic in pc.unique(topics).to_pylist()}
    if all(fitting.values()):
        return batch
    good = pa.array([topic for topic, fits in fitting.items() if fits], pa.string())
    return batch.filter(pc.is_in(topics, value_set=good))
