"""One task of the sink: publishes the messages of one partition, and waits until the hub has them all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from msgspec.structs import replace
from pyspark.sql.datasource import WriterCommitMessage

from trunkline.brokers.hub.broker import HubBroker
from trunkline.brokers.hub.settings import ConnectionSettings
from trunkline.clock import World
from trunkline.connect import connect_hub
from trunkline.delivery.pending import Failures
from trunkline.errors import HubUnavailable, MessageTooLarge, NotConfirmed, PartlyRefused, PayloadError
from trunkline.message import Message
from trunkline.plural import counted
from trunkline.settings import Settings
from trunkline.spark.sink.hub_timeout import hub_timeout
from trunkline.spark.sink.options import SinkOptions
from trunkline.spark.sink.rejected_rows import FAULTS, letter
from trunkline.spark.sink.row_columns import RowColumns
from trunkline.spark.sink.rows import CHUNK, Bad, Chunk, Chunker, Encoder, Run, runs_of
from trunkline.spark.sink.task_position import Repeats, TaskPosition

IN_FLIGHT = 4
"""The number of chunks in flight: while the hub writes some, others are prepared."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The result of a task."""

    rows: int = 0
    """Rows that were published, now or at an earlier attempt."""
    errors: int = 0
    """Rows that became dead letters."""
    repeated: int = 0
    """Rows that the hub already had."""


def too_many(errors: int, options: SinkOptions) -> PayloadError | None:
    """The error if more rows than allowed are dead letters."""
    if options.max_errors is None or errors <= options.max_errors:
        return None
    return PayloadError(
        f"{counted(errors, 'row')} cannot be published, and max_errors is {options.max_errors}: the dead letters on "
        f"{options.letters} say what is wrong; what was published before stays published"
    )


class SinkTask:
    def __init__(self, options: SinkOptions, columns: RowColumns, place: TaskPosition, *, suspected: bool) -> None:
        self._options = options
        self._place = place
        self._world = World()
        settings = Settings.load()
        backpressure = replace(settings.backpressure, timeout_s=options.timeout_s)
        self._settings = replace(settings, backpressure=backpressure)
        self._encoder = Encoder(columns, place, options.name, settings.max_message_bytes)
        self._suspected = suspected
        self._repeats = Repeats((IN_FLIGHT + 1) * CHUNK, suspected=suspected)
        self._upto = 0
        """The hub's last message number when this task began. Lower numbers are from before."""
        self._broker: HubBroker
        self._begun: set[str] = set()
        """Topics whose first batch the hub has."""
        self._under_way: deque[asyncio.Task[None]] = deque()
        self._rows = self._errors = self._repeated = 0

    async def send(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Publish all rows. When it returns, the hub has them, and those on durable topics are on its disk.

        Waits up to `timeout_s` for subscribers without room, and then raises BackpressureTimeout. Raises HubUnavailable
        if the hub is unavailable for longer than `connect_s`; until then, unconfirmed messages are sent again.
        """
        reading = _read_ahead(batches)
        first = await anext(reading, None)
        if first is not None:
            options = self._options
            how = ConnectionSettings(connect_s=options.connect_s, keys=options.keys)
            async with (
                connect_hub(options.bus, name=options.name, settings=self._settings, connection=how) as self._broker,
                hub_timeout(self._broker.connection) as watch,
            ):
                await watch.over(self._send(first, reading))
        return Written(self._rows, self._errors, self._repeated)

    async def _send(self, first: pa.RecordBatch, others: AsyncIterator[pa.RecordBatch]) -> None:
        if self._suspected:
            self._upto = await self._broker.connection.sync()
        chunker = Chunker()
        try:
            for chunk in chunker.feed(first):
                await self._take(chunk)
            async for batch in others:
                for chunk in chunker.feed(batch):
                    await self._take(chunk)
            for chunk in chunker.rest():
                await self._take(chunk)
            while self._under_way:
                await self._under_way.popleft()
        finally:
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _take(self, chunk: Chunk) -> None:
        """Start sending a chunk. Waits for earlier ones if there are too many."""
        encoded = self._encoder.encode(chunk, self._world.time_ns())
        alone: list[Run] = []
        others: list[Run] = []
        for run in encoded.runs:
            # The first batch on a topic is confirmed before another is sent: see Repeats.
            (others if run.topic in self._begun else alone).append(run)
            self._begun.add(run.topic)
        if alone:
            await self._publish(alone, [], chunk)
        self._under_way.append(asyncio.create_task(self._publish(others, encoded.bad, chunk)))
        while len(self._under_way) >= IN_FLIGHT:
            await self._under_way.popleft()

    async def _publish(self, runs: Sequence[Run], bad: Sequence[Bad], chunk: Chunk) -> None:
        # Started in this order, which is kept.
        found = await asyncio.gather(*(self._publish_run(run) for run in runs))
        await self._bury([*bad, *(each for several in found for each in several)], chunk)

    async def _publish_run(self, run: Run) -> list[Bad]:
        """Publish a run. Returns the rows that the hub or the contract of a channel refuses."""
        messages = run.messages
        again = self._repeats.again(run.topic, run.rows[0])
        failures: Failures
        try:
            failures = await self._put(messages, again=again)
        except PartlyRefused as error:
            failures = list(error.refused)
        except MessageTooLarge as error:
            return await self._without_large(run, error.limit)
        except FAULTS as error:
            failures = [(messages[0], error)]
        rows = {id(message): row for message, row in zip(messages, run.rows, strict=True)}
        bad: list[Bad] = []
        for message, why in failures:
            if not isinstance(why, FAULTS):
                raise why
            bad.append(Bad(rows.pop(id(message)), run.topic, why))
        self._rows += len(rows)
        if again:
            numbers = [message.seq for message in messages if id(message) in rows and message.seq > 0]
            known = bool(numbers) and min(numbers) <= self._upto
            self._repeated += len(rows) if known else 0
            self._repeats.record(run.topic, run.rows[0], known=known)
        return bad

    async def _without_large(self, run: Run, limit: int) -> list[Bad]:
        """Remove messages that are too large for the frames of this hub."""
        pairs = list(zip(run.rows, run.messages, strict=True))
        rest = runs_of((row, message) for row, message in pairs if len(message.payload) <= limit)
        bad = [
            Bad(row, run.topic, MessageTooLarge(message.size, limit)) for row, message in pairs if message.size > limit
        ]
        for part in rest:
            bad += await self._publish_run(part)
        return bad

    async def _put(self, messages: list[Message], *, again: bool) -> Failures:
        """Send one frame until the hub has it. After a reconnection it is sent again, marked as a repetition."""
        connection = self._broker.connection
        while True:
            connects = connection.connects
            try:
                return await self._broker.lane(messages[0].topic).put_alone(messages, again=again)
            except (NotConfirmed, HubUnavailable):
                if connection.live and connection.connects == connects:
                    raise
                await connection.ready()
                again = True

    async def _bury(self, bad: Sequence[Bad], chunk: Chunk) -> None:
        if not bad:
            return
        now_ns = self._world.time_ns()
        letters = [
            (each.row, letter(self._options, self._place, each, chunk.batch.slice(each.row - chunk.first, 1), now_ns))
            for each in bad
        ]
        for run in runs_of(letters):
            await self._put(run.messages, again=self._suspected)
        self._errors += len(bad)
        if (error := too_many(self._errors, self._options)) is not None:
            raise error


async def _read_ahead(batches: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    """Read Spark's batches one ahead, in a thread, so that the connection can send heartbeats meanwhile."""
    loop = asyncio.get_running_loop()
    coming = loop.run_in_executor(None, next, batches, None)
    while (batch := await coming) is not None:
        coming = loop.run_in_executor(None, next, batches, None)
        yield batch
