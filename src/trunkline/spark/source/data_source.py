"""`format("trunkline")` for reading: journal and lake together, or the store of an engine, as of the query's planning.

Spark creates these objects in its own Python processes, and sends them to executors, so they hold no connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from trunkline.journal import Reader
from trunkline.spark.source import partitions
from trunkline.spark.source.damage import handler
from trunkline.spark.source.engine_options import EngineOptions, engine_options
from trunkline.spark.source.options import RowOptions, SourceOptions, read_options
from trunkline.spark.source.pushdown import condition_of
from trunkline.spark.source.spark_schema import all_of, chosen

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register `format("trunkline")` with the session."""
    spark.dataSource.register(TrunklineSource)


class TrunklineSource(DataSource):
    """Messages or fates of a journal, or messages of an engine. docs/pipeline.md and docs/fleet.md have the options."""

    @classmethod
    def name(cls) -> str:
        return "trunkline"

    def schema(self) -> StructType:
        how = engine_options(self.options) or read_options(self.options)
        return all_of(how.kind)

    def reader(self, schema: StructType) -> DataSourceReader:
        if (engine := engine_options(self.options)) is not None:
            return EngineReader(engine, schema)
        return JournalReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from trunkline.spark.source.engine_stream import EngineStreamReader
        from trunkline.spark.source.stream import JournalStreamReader

        if (engine := engine_options(self.options)) is not None:
            return EngineStreamReader(engine, schema)
        return JournalStreamReader(read_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from trunkline.spark.sink.writers import batch_writer

        return batch_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from trunkline.spark.sink.writers import stream_writer

        return stream_writer(schema, self.options, overwrite)


class RowReader(DataSourceReader):
    """The reader of one query. Partitions are computed on the driver; on executors only `read` is called."""

    def __init__(self, options: RowOptions, schema: StructType) -> None:
        self._kind = options.kind
        self._columns = chosen(options.kind, schema)
        self._wanted = options.row_filter()
        # While `spark.sql.python.filterPushdown.enabled` is off, which is the default, Spark rejects a reader that
        # overrides pushFilters. Spark detects this by `__func__`. This attribute therefore defines pushFilters without
        # being detected.
        push = partial(self._push)
        push.__func__ = DataSourceReader.pushFilters  # type: ignore[attr-defined]  # a partial may have attributes
        self.pushFilters = push  # type: ignore[method-assign]

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        for given in filters:
            condition = condition_of(self._kind, given)
            if condition is None:
                yield given
            else:
                self._wanted = self._wanted.also(condition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return partitions.read(partition)


class JournalReader(RowReader):
    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._options = options

    def partitions(self) -> list[InputPartition]:
        directory, skip = self._options.directory, self._options.skip_damaged
        with Reader(directory, on_damage=handler(directory, skip=skip)) as reader:
            return partitions.partitions(reader, self._wanted, self._columns, skip_damaged=skip)


class EngineReader(RowReader):
    """Everything that an engine has stored when the query is planned."""

    def __init__(self, options: EngineOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._options = options

    def partitions(self) -> list[InputPartition]:
        from trunkline.spark.source import engine_log

        return engine_log.partitions_of_all(self._options, self._wanted, self._columns)
