"""`spark.readStream.format("trunkline")`: offsets are the numbers of the journal, so sealing changes nothing.

An offset {"seq": n, "journal": identity} means that everything up to n of this journal was read. An offset of another
journal is rejected. The journal does not track readers: a commit does nothing, and retention does not wait. Rows that
were removed before they were read are logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from trunkline.journal import Reader
from trunkline.journal.errors import JournalUnusable
from trunkline.plural import counted
from trunkline.spark.source import partitions
from trunkline.spark.source.damage import handler
from trunkline.spark.source.micro_batch import end_within
from trunkline.spark.source.options import SourceOptions
from trunkline.spark.source.row_filter import Condition
from trunkline.spark.source.spark_schema import KEYS, chosen

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, Any]
JOURNAL = "journal"
"""The identity of the journal. Checkpoints of older versions do not have it."""

log = logging.getLogger("trunkline.spark")


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader lives in a Python process of the driver while the query runs.

    Executors get copies, which only `read`.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = chosen(options.kind, schema)
        self._key = KEYS[options.kind]
        self._wanted = options.row_filter()
        if options.start.isdecimal():
            self._wanted = self._wanted.also(Condition(self._key, ">=", int(options.start)))
        self._reader: Reader | None = None
        self._until: int | None = None

    @property
    def _journal(self) -> Reader:
        """Opened on demand: executors get a copy of this object, and have no journal."""
        if self._reader is None:
            directory = self._options.directory
            self._reader = Reader(directory, on_damage=handler(directory, skip=self._options.skip_damaged))
        return self._reader

    def initialOffset(self) -> Offset:
        """Before the first stored row: rows that were removed before the query began are not a loss."""
        first, _ = self._wanted.numbers
        end = self._journal.highest(self._options.kind)
        if self._options.start == "end":
            return self._offset(end)
        heads = self._journal.heads(self._options.kind, first, end, limit=1)
        return self._offset(min(end, max(first, heads[0].first) - 1 if heads else end))

    def _offset(self, number: int) -> Offset:
        identity = self._journal.identity
        return {self._key: number} if identity is None else {self._key: number, JOURNAL: identity}

    def _number(self, offset: Offset) -> int:
        """The number in an offset; raises WrongJournal if it belongs to another journal."""
        self._journal.expect(offset.get(JOURNAL))
        return int(offset[self._key])

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        after = self._number(start)
        end = self._end(after)
        if end > after and isinstance(limit, ReadMaxRows):
            end = end_within(self._journal, self._wanted, after, end, limit.max_rows)
        return self._offset(max(after, end))

    def _end(self, after: int) -> int:
        highest = self._journal.highest(self._options.kind)
        if after > highest:
            raise JournalUnusable(
                str(self._options.directory),
                f"the query has read up to number {after}, but the last number is {highest}, so this is an older copy"
                " or another journal: restore the newer one, or use another checkpointLocation",
            )
        _, last = self._wanted.numbers
        return min(highest, last, highest if self._until is None else self._until)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._options.max_rows is None else ReadMaxRows(self._options.max_rows)

    def reportLatestOffset(self) -> Offset:
        return self._offset(self._journal.highest(self._options.kind))

    def prepareForTriggerAvailableNow(self) -> None:
        self._until = self._journal.highest(self._options.kind)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        after, upto = self._number(start), self._number(end)
        if upto <= after:
            return []
        found = partitions.partitions(
            self._journal,
            self._wanted.between(after + 1, upto),
            self._columns,
            skip_damaged=self._options.skip_damaged,
        )
        if gone := self._removed(after, upto):
            most = counted(gone, "message")
            log.warning("retention removed up to %s between %d and %d, unread", most, after + 1, upto)
        return found

    def _removed(self, after: int, upto: int) -> int:
        if self._options.kind != "messages":
            return 0
        fits = self._wanted.fits or (lambda topic: True)
        return sum(
            min(count, min(last, upto) - max(first, after + 1) + 1)
            for topic, first, last, count in self._journal.removals(after + 1, upto)
            if fits(topic)
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return partitions.read(partition)

    def commit(self, end: Offset) -> None:
        """Does nothing: the checkpoint of the query has the position."""

    def stop(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
