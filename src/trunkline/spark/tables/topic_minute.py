"""Topics per minute: messages, senders, delays and latencies, and errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.spark.tables import sketches
from trunkline.spark.tables.sketches import gathered, percentiles
from trunkline.spark.tables.table import GOLD, Column, Inputs, QueryTable
from trunkline.spark.tables.times import hour_of, minute_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS = ["topic", "minute"]


def build(inputs: Inputs) -> DataFrame:
    rows = _traffic(inputs.traffic).join(_senders(inputs.traffic), KEYS)
    rows = rows.join(_latencies(inputs.table("requests")), KEYS, "left")
    rows = rows.join(_dead(inputs.settled()), KEYS, "left").fillna(0, ["dead"])
    rows = rows.withColumns(
        {
            "hour": hour_of("minute"),
            "error_rate": (F.col("errors") + F.col("dead")) / F.col("messages"),
        }
    )
    return TABLE.shape(rows.select("*", *percentiles("delay"), *percentiles("latency")))


def _traffic(traffic: DataFrame) -> DataFrame:
    summed = [F.sum(name).alias(name) for name in ("count", "bytes", "requests", "errors")]
    counted = traffic.groupBy(*KEYS, "bucket").agg(*summed)
    return counted.groupBy(*KEYS).agg(
        F.sum("count").alias("messages"),
        *(F.sum(name).alias(name) for name in ("bytes", "requests", "errors")),
        *gathered("delay"),
    )


def _senders(traffic: DataFrame) -> DataFrame:
    return traffic.groupBy(*KEYS).agg(F.count_distinct("sender").alias("senders"))


def _latencies(requests: DataFrame) -> DataFrame:
    counted = (
        requests.where("outcome = 'answered'")
        .select("topic", minute_of("asked").alias("minute"), sketches.bucket_of_ms("latency_ms"))
        .groupBy(*KEYS, "bucket")
        .count()
    )
    return counted.groupBy(*KEYS).agg(*gathered("latency"))


def _dead(settled: DataFrame) -> DataFrame:
    return settled.where("fate = 'dead'").groupBy(*KEYS).agg(F.sum("count").alias("dead"))


TABLE = QueryTable(
    "topic_minute",
    GOLD,
    "A row is a minute of a topic in which something was published",
    (
        Column("topic", "string", "the topic"),
        Column("minute", "timestamp", "the minute in which its messages are placed"),
        Column("messages", "bigint", "how many there are"),
        Column("bytes", "bigint", "the size of their payloads"),
        Column("senders", "bigint", "how many different senders they have"),
        Column("requests", "bigint", "how many of them are requests"),
        Column("errors", "bigint", "how many of them are errors, as answers to requests"),
        Column("dead", "bigint", "how often one of them became a dead letter"),
        Column("error_rate", "double", "`errors` and `dead`, by message; more than 1 if many subscribers failed"),
        *sketches.columns("latency", "the time to the answer, of the answered requests asked in this minute"),
        *sketches.columns("delay", "the time from publisher to journal; 0 where the publisher's clock is ahead"),
        Column("hour", "timestamp", "the hour of the minute"),
    ),
    build,
    needs=(
        "requests",
        "deliveries",
    ),
)
