"""`df.write.format("trunkline")` and `df.writeStream.format("trunkline")`: rows become messages on a bus.

Spark makes a writer in a Python process on the driver, one for each write or epoch, and sends it to the executors,
where only `write` is called; `commit` and `abort` run on the driver again. So a writer holds no connection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from trunkline.clock import World
from trunkline.errors import InvalidSettings
from trunkline.hub.serve import run
from trunkline.plural import counted
from trunkline.spark.sink.options import Check, read_sink_options
from trunkline.spark.sink.row_columns import columns_of
from trunkline.spark.sink.task import SinkTask, Written, too_many
from trunkline.spark.sink.task_position import SeenEpochs, TaskPosition

log = logging.getLogger("trunkline.spark")

QUERY = "sql.streaming.queryId"
EPOCH = "streaming.sql.batchId"
RUN = "spark.jobGroup.id"
_seen = SeenEpochs()
"""The epochs seen by this process. For other epochs, the hub must search its journal."""


def batch_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> DataSourceArrowWriter:
    """Raises InvalidSettings if the options or columns are invalid."""
    return BatchWriter(WriterPlan(schema, options, overwrite))


def stream_writer(schema: StructType, options: Mapping[str, str], overwrite: bool) -> DataSourceStreamArrowWriter:
    """Raises InvalidSettings if the options or columns are invalid."""
    return StreamWriter(WriterPlan(schema, options, overwrite))


class WriterPlan:
    """The common part of both writers."""

    def __init__(self, schema: StructType, options: Mapping[str, str], overwrite: bool) -> None:
        if overwrite:
            raise InvalidSettings(
                'published messages cannot be overwritten: write with .mode("append"), '
                'or a stream with .outputMode("append") or "update"'
            )
        self.options = read_sink_options(options)
        self._columns = columns_of(schema, self.options.topic, self.options.content_type)
        # Chosen once, on the driver, so that a retried task creates the same ids.
        self.query = self.options.query or World().uuid7()

    def write(self, place: TaskPosition, batches: Iterator[pa.RecordBatch], *, suspected: bool) -> Written:
        """Publish the rows of a task. If it is `suspected` to be a repetition, the hub checks what it already has."""
        check = self.options.check
        suspected = check is Check.ALWAYS or (suspected and check is Check.AUTO)
        return run(SinkTask(self.options, self._columns, place, suspected=suspected).send(batches))

    def commit(self, messages: Sequence[WriterCommitMessage | None], what: str) -> None:
        written = [message for message in messages if isinstance(message, Written)]
        errors = sum(each.errors for each in written)
        log.log(
            logging.WARNING if errors else logging.INFO,
            "%s: %s published on %s, of which %d were already published; %s on %s",
            what,
            counted(sum(each.rows for each in written), "row"),
            self.options.bus,
            sum(each.repeated for each in written),
            counted(errors, "dead letter"),
            self.options.letters,
        )
        if (error := too_many(errors, self.options)) is not None:
            raise error

    def abort(self, what: str) -> None:
        log.error("%s failed: the messages it has published on %s stay published", what, self.options.bus)


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, sink: WriterPlan) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        partition, attempt = (0, 0) if task is None else (task.partitionId(), task.attemptNumber())
        return self.write_at(TaskPosition(self._sink.query, 0, partition, attempt), iterator)

    def write_at(self, place: TaskPosition, batches: Iterator[pa.RecordBatch]) -> Written:
        suspected = place.attempt > 0 or self._sink.options.query is not None
        return self._sink.write(place, batches, suspected=suspected)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._sink.commit(messages, "a write")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._sink.abort("a write")


class StreamWriter(DataSourceStreamArrowWriter):
    """Each task gets the id of the query, which is in its checkpoint, and the number of the epoch."""

    def __init__(self, sink: WriterPlan) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = TaskContext.get()
        epoch = None if task is None else task.getLocalProperty(EPOCH)
        if task is None or epoch is None:
            raise InvalidSettings("a stream is written in micro-batches: continuous processing is not supported")
        query = self._sink.options.query or task.getLocalProperty(QUERY) or self._sink.query
        run = task.getLocalProperty(RUN) or ""
        return self.write_at(TaskPosition(query, int(epoch), task.partitionId(), task.attemptNumber(), run), iterator)

    def write_at(self, place: TaskPosition, batches: Iterator[pa.RecordBatch]) -> Written:
        return self._sink.write(place, batches, suspected=_seen.may_repeat(place) or place.attempt > 0)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._sink.commit(messages, f"epoch {batchId}")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._sink.abort(f"epoch {batchId}")
