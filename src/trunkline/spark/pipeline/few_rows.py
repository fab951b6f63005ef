"""How a step reads, caches and writes its rows if they are few: in the driver, with Arrow.

The tables and the code that builds them are the same as for many rows. The rows are part of Spark's query plan, in one
partition, so a query is one task without a shuffle or a broadcast. Even for three rows, Spark would need several
seconds to read and write small files and to compile code that runs once. This way avoids all of that.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trunkline.spark.pipeline import driver_rows
from trunkline.spark.pipeline.affected import Near
from trunkline.spark.pipeline.deliver import deliver, hours_about
from trunkline.spark.pipeline.driver_rows import DriverRows, micros, placed
from trunkline.spark.pipeline.manifest import StoredFile, hour_of, name_of_number
from trunkline.spark.pipeline.placement import Numbers
from trunkline.spark.pipeline.rows import Place
from trunkline.spark.tables import deliveries, settled
from trunkline.spark.tables.bronze import FATES, MESSAGES
from trunkline.spark.tables.channel_contracts import Finder
from trunkline.spark.tables.driver_frame import arrow_frame, arrow_schema
from trunkline.spark.tables.related import related
from trunkline.spark.tables.table import ChannelContract, Contents, Held, Table, seconds
from trunkline.spark.tables.times import HOUR_US, MINUTE_US
from trunkline.spark.tables.traffic import traffic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS: Mapping[str, str] = {
    # Compiling a small query and replanning it at run time take longer than running it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    # All rows are in one partition: no shuffle is needed.
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.leafNodeDefaultParallelism": "1",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.optimizer.disableHints": "true",
}
EPOCH = "1970-01-01T00"
MAX_BYTES = 64 * 1024 * 1024
DELIVERIES = 4
"""The limit for deliveries, as a multiple of the limit for messages."""
NEEDED = (
    *("seq", "id", "topic", "time", "accepted", "type", "sender", "request_id", "correlation_id"),
    *("content_type", "encoding", "payload"),
)
"""The columns of messages that the tables are built from."""


class Bronze:
    """The messages and fates of a step, in memory."""

    def __init__(self, messages: pa.Table, fates: pa.Table) -> None:
        self.messages = messages
        self.fates = fates

    def contents(self, channels: tuple[ChannelContract, ...], orphans: bool) -> Contents:
        def distinct(rows: pa.Table, name: str) -> frozenset[str]:
            return frozenset(pc.unique(rows.column(name)).to_pylist())

        topics = distinct(self.messages, "topic")
        find = Finder(channels).find
        found = (channel for topic in topics if (channel := find(topic)) is not None)
        return Contents(
            topics=topics,
            types=distinct(self.messages, "type"),
            correlated=self.messages.column("correlation_id").null_count < self.messages.num_rows,
            fates=distinct(self.fates, "fate"),
            orphans=orphans,
            minutes=_most_minutes(micros(self.messages.column("placed"))),
            channels=frozenset(channel.name for channel in found if channel.schema is not None),
        )


def _most_minutes(placed: Numbers) -> int:
    minutes = np.unique(placed // MINUTE_US)
    return int(np.unique(minutes // 60, return_counts=True)[1].max(initial=0))


def few(place: Place, near: Near, max_rows: int) -> Bronze | None:
    """The messages and fates that the step needs; None if they are too many."""
    state, (first, last) = place.state, near.numbers
    about = hours_about(state, first, last)
    if sum(state.hours[hour].count for hour in near.wide_hours) > max_rows:
        return None
    if sum(state.fate_hours[hour].count for hour in about) > max_rows:
        return None
    messages = _read(place, MESSAGES.name, set(near.wide_hours), list(NEEDED))
    fates = None if messages is None else _read(place, FATES.name, about, None)
    if messages is None or fates is None:
        return None
    fates = fates.filter((pc.field("last") >= first) & (pc.field("first") <= last))
    if (pc.sum(fates.column("count")).as_py() or 0) > DELIVERIES * max_rows:
        return None
    return Bronze(messages, fates)


def _read(place: Place, kind: str, hours: set[str], columns: list[str] | None) -> pa.Table | None:
    bronze = DriverRows(place.warehouse, place.journal, place.state)
    nothing = pa.RecordBatch.from_pylist([], driver_rows.schema_of(kind, columns))
    found, size = [placed(kind, EPOCH, nothing, 0)], 0
    for hour, batch in bronze.read(kind, hours, columns):
        found.append(placed(kind, hour, batch, place.manifest.watermark_s))
        size += batch.nbytes
        if size > MAX_BYTES:
            return None
    return pa.Table.from_batches(found)


class FewRows:
    """Rows that the driver reads and writes with Arrow."""

    settings = SETTINGS

    def __init__(self, spark: SparkSession, place: Place, bronze: Bronze, contents: Contents) -> None:
        self._spark = spark
        self._place = place
        self._bronze = bronze
        self.contents = contents
        self._made: dict[str, DataFrame] = {}
        self._settled = settled.SCHEMA.empty_table()
        self._one_by_one = threading.Lock()

    def messages(self, hours: list[str]) -> DataFrame:
        rows = self._bronze.messages
        moments = pa.array([seconds(hour_of(hour)) * 1_000_000 for hour in hours]).cast(driver_rows.MOMENT)
        return self.given(rows.filter(pc.is_in(rows.column("hour"), value_set=moments)))

    def traffic(self, messages: DataFrame) -> DataFrame:
        return self.hold(traffic(messages)).rows

    def related(self, messages: DataFrame) -> DataFrame:
        return related(messages)

    def fates(self, first: int, last: int) -> DataFrame:
        return self.given(self._bronze.fates)

    def given(self, rows: pa.Table) -> DataFrame:
        frame = arrow_frame(self._spark, rows)
        # Tells the planner that there is one partition. Not for an empty frame: the planner removes queries on it.
        return frame.coalesce(1) if rows.num_rows else frame

    def write(self, table: Table, rows: DataFrame) -> dict[str, list[StoredFile]]:
        found = rows.toArrow().cast(arrow_schema(table.own_ddl))
        self._keep(table, found)
        hours = micros(found.column("hour")) // HOUR_US
        inside = found.drop_columns(["hour"])
        files = {}
        for number in np.unique(hours).tolist():
            hour = name_of_number(number)
            files[hour] = [self._file(table, hour, inside.filter(pa.array(hours == number)))]
        return files

    def _file(self, table: Table, hour: str, rows: pa.Table) -> StoredFile:
        warehouse, run = self._place.warehouse, self._place.manifest.run
        path = warehouse.staging(run) / f"{table.name}-{hour}.parquet"
        with warehouse.reports_errors():
            pq.write_table(rows, path, compression="zstd", write_page_checksum=True)
            file = StoredFile(f"{run:06d}-0.parquet", rows.num_rows, path.stat().st_size)
            return warehouse.keep(path, table.name, self._place.journal, hour, file)

    def _keep(self, table: Table, rows: pa.Table) -> None:
        frame = self.given(rows)
        with self._one_by_one:
            self._made[table.name] = frame

    def made(self, table: Table) -> DataFrame:
        if table.name not in self._made:
            self._keep(table, arrow_schema(table.own_ddl).empty_table())
        return self._made[table.name]

    def deliver(self, hours: list[str]) -> dict[str, list[StoredFile]]:
        files, self._settled = deliver(self._place, hours)
        parts = [self._read_back(hour, file) for hour, several in files.items() for file in several]
        schema = arrow_schema(deliveries.TABLE.own_ddl)
        self._keep(deliveries.TABLE, pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)]))
        return files

    def _read_back(self, hour: str, file: StoredFile) -> pa.Table:
        place = self._place
        rows = pq.ParquetFile(place.warehouse.place_of(deliveries.TABLE.name, place.journal, hour, file)).read()
        return rows.append_column("hour", pa.array(np.full(rows.num_rows, seconds(hour_of(hour)) * 1_000_000)))

    def settled(self) -> DataFrame:
        return self.given(self._settled)

    def hold(self, rows: DataFrame) -> Held:
        found = rows.toArrow()
        return Held(self.given(found), found.num_rows)

    def release(self) -> None:
        self._made.clear()
