"""What travels to executors: a sealed file to be read there, or rows that are not sealed, inside the partition.

So executors need the lake, under the same path as here, and never the journal's SQLite file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem
from pyspark.sql.datasource import InputPartition

from trunkline.errors import JournalDamaged
from trunkline.journal import Reader, lake
from trunkline.journal.sealed import File
from trunkline.spark.columns import arrow
from trunkline.spark.damage import handler
from trunkline.spark.found import look
from trunkline.spark.wanted import Wanted

READ_AHEAD = 2
"""Batches that are decoded while one is handed on. The default, 16, may hold gigabytes of large payloads."""


@dataclass(frozen=True)
class SealedPart(InputPartition):
    """A file of the lake."""

    directory: Path
    file: File
    wanted: Wanted
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
        schema = arrow(self.wanted.kind, self.columns)
        for batch in sealed_rows(self.directory, self.file).to_batches(
            columns=self.columns, filter=self.wanted.expression(), batch_readahead=READ_AHEAD, fragment_readahead=1
        ):
            if batch.num_rows:
                yield batch.cast(schema)


def sealed_rows(directory: Path, file: File) -> ds.Dataset:
    """By name: what the layout of the file lacks is null, and what this Trunkline does not know is left out."""
    return ds.dataset(
        directory / file.path, schema=lake.SCHEMAS[file.kind], format="parquet", filesystem=LocalFileSystem()
    )


@dataclass(frozen=True)
class HotPart(InputPartition):
    """Rows, as an Arrow stream."""

    data: bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        with pa.ipc.open_stream(self.data) as stream:
            yield from stream


def partitions(reader: Reader, wanted: Wanted, columns: list[str], *, skip_damaged: bool) -> list[InputPartition]:
    """All that is wanted, of one moment."""
    found = look(reader, wanted, columns)
    sealed = [SealedPart(reader.directory, file, wanted, columns, skip_damaged) for file in found.files]
    return [*sealed, *(HotPart(_stream(batch)) for batch in found.batches)]


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition. Where there is none at all, Spark makes up one that is neither of ours."""
    if isinstance(partition, SealedPart | HotPart):
        yield from partition.batches()
