"""`spark.readStream.format("trunkline")` on an engine: offsets are numbers of messages, in the checkpoint of the query.

An offset {"seq": n, "engine": …, "stream": …, "store": …, "removed": m} means that everything up to n of this store was
read. An offset of another store is rejected. The engine does not track readers, so its retention does not wait for
them. Entries up to m may have been removed before the query began, and are no loss to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from trunkline.brokers.engine.batches import number_of
from trunkline.errors import InvalidSettings
from trunkline.spark.source import partitions
from trunkline.spark.source.engine_log import EngineRange, OpenLog, StoreIdentity, end_of, opened
from trunkline.spark.source.engine_log import partitions as ranges
from trunkline.spark.source.engine_options import EngineOptions
from trunkline.spark.source.row_filter import Condition
from trunkline.spark.source.spark_schema import chosen

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, Any]


class EngineStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader lives in a Python process of the driver while the query runs.

    Executors get copies, which only `read`.
    """

    def __init__(self, options: EngineOptions, schema: StructType) -> None:
        self._options = options
        self._columns = chosen(options.kind, schema)
        self._wanted = options.row_filter()
        if options.start.isdecimal():
            self._wanted = self._wanted.also(Condition("seq", ">=", int(options.start)))
        self._until: int | None = None

    def initialOffset(self) -> Offset:
        """Before the first stored message: entries that were removed before the query began are not a loss."""
        with opened(self._options) as store:
            state = store.state()
            identity, end = store.identity(state), end_of(state)
            if self._options.start == "end":
                return _offset(identity, end, 0)
            first, removed = store.beginning()
            low, _ = self._wanted.numbers
            return _offset(identity, min(end, max(low, number_of(first)) - 1), removed)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        identity, after, removed = _parts(start)
        with opened(self._options) as store:
            highest = end_of(store.expect(identity))
            if after > highest:
                raise store.unusable(
                    f"the query has read up to number {after}, but the last number is {highest}, so it was reset:"
                    " restore the old data, or use another checkpointLocation"
                )
            end = self._end(store, after, highest, limit)
        return _offset(identity, max(after, end), removed)

    def _end(self, store: OpenLog, after: int, highest: int, limit: ReadLimit) -> int:
        _, last = self._wanted.numbers
        end = min(highest, last, highest if self._until is None else self._until)
        if end > after and isinstance(limit, ReadMaxRows):
            return store.end_within(after, end, limit.max_rows)
        return end

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._options.max_rows is None else ReadMaxRows(self._options.max_rows)

    def reportLatestOffset(self) -> Offset:
        with opened(self._options) as store:
            state = store.state()
            return _offset(store.identity(state), end_of(state), 0)

    def prepareForTriggerAvailableNow(self) -> None:
        with opened(self._options) as store:
            self._until = end_of(store.state())

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        identity, after, removed = _parts(start)
        other, upto, _ = _parts(end)
        with opened(self._options) as store:
            for each in (identity, other):
                store.expect(each)
        asked = EngineRange(identity, after, upto, removed)
        return ranges(self._options, asked, self._wanted, self._columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return partitions.read(partition)

    def commit(self, end: Offset) -> None:
        """Does nothing: the checkpoint of the query has the position."""

    def stop(self) -> None:
        """Does nothing: no connection is open."""


def _offset(identity: StoreIdentity, number: int, removed: int) -> Offset:
    return {"seq": number, **identity._asdict(), "removed": removed}


def _parts(offset: Offset) -> tuple[StoreIdentity, int, int]:
    try:
        identity = StoreIdentity(offset["engine"], offset["stream"], offset["store"])
        return identity, int(offset["seq"]), int(offset["removed"])
    except KeyError as error:
        raise InvalidSettings(
            "the checkpoint is one of a query on a journal: use another checkpointLocation"
        ) from error
