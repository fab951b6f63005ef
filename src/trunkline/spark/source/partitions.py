"""Partitions for executors: a sealed file that is read there, or unsealed rows inside the partition.

Executors need the lake under the same path, but never the journal's SQLite file.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from trunkline.errors import JournalDamaged
from trunkline.journal import Reader, lake, layout
from trunkline.journal.body import StoredBatch
from trunkline.journal.sealed import File
from trunkline.spark.source.damage import handler
from trunkline.spark.source.row_filter import RowFilter
from trunkline.spark.source.snapshot import bounded, fitting, stored, take_snapshot
from trunkline.spark.source.spark_schema import KEYS, arrow


class OwnPart(InputPartition):
    """The base class of partitions that this data source creates."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        raise NotImplementedError


@dataclass(frozen=True)
class SealedPart(OwnPart):
    """A file of the lake."""

    directory: Path
    file: File
    wanted: RowFilter
    columns: list[str]
    skip_damaged: bool

    def batches(self) -> Iterator[pa.RecordBatch]:
        on_damage = handler(self.directory, skip=self.skip_damaged)
        try:
            lake.check(self.directory, self.file)
            yield from self._rows()
        except JournalDamaged as damage:
            on_damage(damage)
        except (OSError, pa.ArrowException) as error:
            on_damage(JournalDamaged(self.file.first, self.file.last, self.file.path, str(error)))

    def _rows(self) -> Iterator[pa.RecordBatch]:
        """Columns by name: missing ones are null, and unknown ones are left out."""
        expression = self.wanted.expression()
        conditions = [condition.column for condition in self.wanted.conditions]
        needed = list(dict.fromkeys([KEYS[self.wanted.kind], *self.columns, *conditions]))
        schema = arrow(self.wanted.kind, needed)
        # A scanner of Arrow would load whole row groups, which may have gigabytes in older files.
        for batch in lake.slices(self.directory / self.file.path, self._groups(expression), needed):
            there = batch.schema.names
            arrays = [
                batch.column(field.name).cast(field.type)
                if field.name in there
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
            rows = rows if expression is None else rows.filter(expression)
            if rows.num_rows:
                yield rows.select(self.columns)

    def _groups(self, expression: pc.Expression | None) -> list[int]:
        """The row groups that may have requested rows."""
        dataset = sealed_rows(self.directory, self.file)
        (fragment,) = dataset.get_fragments()
        parts = fragment.split_by_row_group(filter=expression, schema=dataset.schema)
        return [group.id for part in parts for group in part.row_groups]


def sealed_rows(directory: Path, file: File) -> ds.Dataset:
    """Columns by name: missing ones are null, and unknown ones are left out."""
    return ds.dataset(
        directory / file.path, schema=lake.SCHEMAS[file.kind], format="parquet", filesystem=LocalFileSystem()
    )


@dataclass(frozen=True)
class HotPart(OwnPart):
    """Unsealed batches as they are stored. They take half the space of their Arrow batches."""

    directory: Path
    rows: list[StoredBatch]
    wanted: RowFilter
    columns: list[str]
    skip_damaged: bool

    def batches(self) -> Iterator[pa.RecordBatch]:
        on_damage = handler(self.directory, skip=self.skip_damaged)
        yield from fitting(layout.of_rows(self.rows, on_damage), self.wanted, self.columns)


@dataclass(frozen=True)
class ArrowPart(OwnPart):
    """Unsealed rows, as an Arrow stream."""

    data: bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_stream(self.data) as stream:
            yield from stream


def partitions(reader: Reader, wanted: RowFilter, columns: list[str], *, skip_damaged: bool) -> list[InputPartition]:
    """All requested rows, from one snapshot."""
    if wanted.kind == "messages" and "payload" in columns:
        files, rows = stored(reader, wanted)
        hot: list[InputPartition] = [
            HotPart(reader.directory, some, wanted, columns, skip_damaged) for some in bounded(rows)
        ]
    else:
        # Payloads are most of a stored batch.
        files, batches = take_snapshot(reader, wanted, columns)
        hot = [ArrowPart(_stream(batch)) for batch in batches]
    return [*(SealedPart(reader.directory, file, wanted, columns, skip_damaged) for file in files), *hot]


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Without any partition, Spark passes its own placeholder."""
    if TaskContext.get() is not None and not gc.get_freeze_count():
        # After each task its process collects garbage. This leaves out the objects of all imported modules.
        gc.freeze()
    if isinstance(partition, OwnPart):
        yield from partition.batches()
