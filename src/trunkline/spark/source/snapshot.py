"""The selected part of a journal in one snapshot: sealed files and unsealed rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from trunkline.errors import JournalDamaged
from trunkline.journal import Reader, lake, layout
from trunkline.journal.body import StoredBatch
from trunkline.journal.sealed import File
from trunkline.spark.source.row_filter import RowFilter
from trunkline.spark.source.spark_schema import arrow

MAX_BYTES = 8 * 1024 * 1024
"""The maximum size of rows in one partition, unless a single row is larger: Spark refuses tasks above 128 MiB."""


class Snapshot(NamedTuple):
    files: list[File]
    """Files with selected rows. They may contain others, too."""
    batches: list[pa.RecordBatch]
    """Exactly the selected unsealed rows, in batches of at most about MAX_BYTES."""


def take_snapshot(reader: Reader, wanted: RowFilter, columns: list[str], *, thorough: bool = False) -> Snapshot:
    """Damage is reported to the reader's `on_damage`: damaged batches, and files that are missing or have another size.

    With `thorough`, the files are read completely, and all damage is found.
    """
    if wanted.kind == "fates":
        files, fates = reader.moment_of_fates(*wanted.numbers)
        whole: Iterable[pa.RecordBatch] = [layout.of_fates(fates)]
        files = _good(reader, files, wanted, thorough)
    else:
        files, rows = stored(reader, wanted, thorough=thorough)
        whole = (batch for some in bounded(rows) for batch in layout.of_rows(some, reader.on_damage))
    return Snapshot(files, list(fitting(whole, wanted, columns)))


def stored(reader: Reader, wanted: RowFilter, *, thorough: bool = False) -> tuple[list[File], list[StoredBatch]]:
    """The files and the unsealed batches that have selected messages. The batches are not opened."""
    files, rows = reader.moment(*wanted.numbers, wanted.fits)
    return _good(reader, files, wanted, thorough), [row for row in rows if wanted.may_be_in(row)]


def _good(reader: Reader, files: list[File], wanted: RowFilter, thorough: bool) -> list[File]:
    return [file for file in files if wanted.may_be_in(file) and _is_good(reader, file, thorough)]


def _is_good(reader: Reader, file: File, thorough: bool) -> bool:
    try:
        if thorough:
            lake.check(reader.directory, file)
        else:
            _check_size(reader.directory, file)
    except JournalDamaged as damage:
        reader.on_damage(damage)
        return False
    return True


def _check_size(directory: Path, file: File) -> None:
    try:
        size = (directory / file.path).stat().st_size
    except FileNotFoundError as error:
        raise JournalDamaged(file.first, file.last, file.path, "the file is missing") from error
    except OSError as error:
        raise JournalDamaged(file.first, file.last, file.path, str(error)) from error
    if size != file.bytes:
        raise JournalDamaged(file.first, file.last, file.path, f"it has {size} bytes, and had {file.bytes}")


def bounded(rows: Iterable[StoredBatch]) -> Iterator[list[StoredBatch]]:
    """The same batches in lists of at most about MAX_BYTES."""
    held: list[StoredBatch] = []
    size = 0
    for row in rows:
        if held and size + len(row.body) > MAX_BYTES:
            yield held
            held, size = [], 0
        held.append(row)
        size += len(row.body)
    if held:
        yield held


def fitting(batches: Iterable[pa.RecordBatch], wanted: RowFilter, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The selected rows, in batches of at most about MAX_BYTES."""
    schema = arrow(wanted.kind, columns)
    expression = wanted.expression()
    for batch in batches:
        rows = batch if expression is None else batch.filter(expression)
        if rows.num_rows:
            yield from layout.pieces(rows.select(columns).cast(schema), MAX_BYTES)
