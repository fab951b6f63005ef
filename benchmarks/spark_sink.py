"""How many rows per second go from a DataFrame to a durable channel of a hub?

Rows have 100 bytes, and come from memory in two partitions. The time ends when all are on the hub's disk. The peer is
the usual way without a sink: `foreach`, with a blocking bus that each partition opens, and a publish for each row.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.durable import PAYLOAD_BYTES, TOPIC
from benchmarks.harness import Case, Sample
from benchmarks.servers import together
from benchmarks.spark_servers import HUB, PARTITIONS, SPARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

    from trunkline import BlockingBus

FOREACH = "foreach with a publish per row"
SINK_ROWS = 150_000
FOREACH_ROWS = 4000


def measure(count: int, most: int, work: Callable[[DataFrame, str], None]) -> Sample:
    """Rows per second. A few rows are sent before, to start Spark's Python processes."""
    with HUB.running() as hub, SPARK.running() as spark:
        rows = _rows(spark, min(count, most)).cache()
        total = rows.count()
        work(_rows(spark, 10), hub.address)
        began = time.perf_counter()
        work(rows, hub.address)
        took_s = time.perf_counter() - began
        rows.unpersist(blocking=True)
        return Sample(total / took_s, took_s)


def _rows(spark: SparkSession, count: int) -> DataFrame:
    from pyspark.sql import functions

    payload = functions.to_binary(
        functions.lpad(functions.col("id").cast("string"), PAYLOAD_BYTES, "x"), functions.lit("utf-8")
    )
    return spark.range(0, count, 1, PARTITIONS).select(payload.alias("payload"))


def save(rows: DataFrame, address: str) -> None:
    rows.write.format("trunkline").mode("append").options(bus=address, topic=TOPIC).save()


def publish_each(rows: DataFrame, address: str) -> None:
    rows.foreach(_publisher(address))


def _publisher(address: str) -> Callable[[Row], None]:
    opened: list[BlockingBus] = []
    """Each partition gets an empty copy, and opens its own bus."""

    def publish(row: Row) -> None:
        from trunkline import connect_blocking

        if not opened:
            opened.append(connect_blocking(address).__enter__())
        opened[0].publish(TOPIC, bytes(row.payload))

    return publish


CASE = Case(
    name="spark-sink",
    question="rows of a DataFrame onto a durable channel, 100 bytes",
    unit="rows/s",
    better="more",
    ours=partial(measure, most=10 * SINK_ROWS, work=save),
    peers={FOREACH: partial(measure, most=FOREACH_ROWS, work=publish_each)},
    target={FOREACH: 5.0},
    size=SINK_ROWS,
    fixed=True,
    rounds=5,
    around=partial(together, HUB, SPARK),
)
