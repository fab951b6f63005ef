"""Dead letters and orphans of a journal, as Arrow tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from trunkline.journal import records
from trunkline.journal.reader import Reader
from trunkline.journal.records import Death, OrphanRecord
from trunkline.spark.pipeline.journals import JournalSource
from trunkline.spark.pipeline.manifest import JournalState, folder_of
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.spark.tables.orphans import TABLE

TIME = pa.timestamp("us", "UTC")
LETTERS = pa.schema(
    [
        ("subscriber", pa.string()),
        ("seq", pa.int64()),
        ("at", TIME),
        ("topic", pa.string()),
        ("id", pa.string()),
        ("cause", pa.string()),
        ("reason", pa.string()),
        ("error_type", pa.string()),
        ("traceback", pa.string()),
        ("attempts", pa.int32()),
    ]
)
ORPHANS = pa.schema(
    [
        ("seq", pa.int64()),
        ("id", pa.string()),
        ("request_id", pa.string()),
        ("topic", pa.string()),
        ("why", pa.string()),
        ("at", TIME),
    ]
)


def letters(directory: str | Path, first: int, last: int) -> pa.Table:
    """Dead letters of the messages from `first` to `last`."""
    with Reader(directory) as reader:
        return _table(records.deaths(reader, first, last), LETTERS)


def orphans(directory: str | Path, first: int, last: int) -> pa.Table:
    """Orphans with numbers from `first` to `last` that are in the journal now."""
    with Reader(directory) as reader:
        return _table(records.orphans(reader, first, last), ORPHANS)


def claimed_orphans(warehouse: Warehouse, journal: JournalSource, state: JournalState) -> set[int]:
    """The numbers of orphans that are in the tables but no longer in the journal."""
    known: set[int] = set()
    for hour, files in state.files(TABLE.name).items():
        folder = warehouse.directory / folder_of(TABLE.name, journal.name, hour)
        for file in files:
            with pq.ParquetFile(folder / file.name) as parquet:
                known.update(parquet.read(["seq"]).column("seq").to_pylist())
    if not known:
        return known
    with Reader(journal.directory) as reader:
        return known - {each.seq for each in records.orphans(reader, min(known), max(known))}


def _table(found: Sequence[Death | OrphanRecord], schema: pa.Schema) -> pa.Table:
    rows = [{**msgspec.structs.asdict(each), "at": each.at_ns // 1000} for each in found]
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)
