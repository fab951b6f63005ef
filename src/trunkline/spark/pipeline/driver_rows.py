"""Reads rows of bronze in the driver with Arrow. Simple lookups do not need Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from trunkline.journal import lake
from trunkline.journal.layout import fit
from trunkline.spark.pipeline.manifest import JournalState, folder_of, hour_of
from trunkline.spark.pipeline.placement import Numbers
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.spark.tables.bronze import MESSAGES
from trunkline.spark.tables.table import seconds

MOMENT = pa.timestamp("us", "UTC")


class DriverRows:
    """Messages and fates of one journal in a warehouse."""

    def __init__(self, warehouse: Warehouse, journal: str, state: JournalState) -> None:
        self._warehouse = warehouse
        self._journal = journal
        self._state = state

    def read(
        self, kind: str, hours: Iterable[str], columns: list[str] | None = None
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows of these hours in slices, each with its hour. `columns=None` reads all columns."""
        schema = schema_of(kind, columns)
        listed = self._state.files(kind)
        for hour in sorted(hours):
            for file in listed.get(hour, ()):
                path = self._warehouse.directory / folder_of(kind, self._journal, hour) / file.name
                with path.open("rb") as source, pq.ParquetFile(source, page_checksum_verification=True) as parquet:
                    there = [name for name in schema.names if name in parquet.schema_arrow.names]
                    for batch in parquet.iter_batches(lake.SLICE_ROWS, columns=there):
                        yield hour, fit(batch, schema)


def schema_of(kind: str, columns: list[str] | None = None) -> pa.Schema:
    """The schema of some columns, or of all."""
    schema = lake.SCHEMAS[kind]
    return pa.schema([schema.field(name) for name in (schema.names if columns is None else columns)])


def placed(kind: str, hour: str, batch: pa.RecordBatch, watermark_s: float) -> pa.RecordBatch:
    """Add the columns that are not in the files: `hour`; for messages also `placed` and `late`, see bronze.py."""
    count = batch.num_rows
    at_us = pa.array(np.full(count, seconds(hour_of(hour)) * 1_000_000, dtype=np.int64)).cast(MOMENT)
    if kind == MESSAGES.name:
        time, accepted = micros(batch.column("time")), micros(batch.column("accepted"))
        late = np.abs(time - accepted) > int(watermark_s * 1e6)
        batch = batch.append_column("placed", pa.array(np.where(late, accepted, time)).cast(MOMENT))
        batch = batch.append_column("late", pa.array(late))
    return batch.append_column("hour", at_us)


def micros(column: pa.Array | pa.ChunkedArray) -> Numbers:
    numbers = column.cast(pa.int64())
    found: Numbers = numbers.to_numpy(zero_copy_only=False) if isinstance(numbers, pa.Array) else numbers.to_numpy()
    return found
