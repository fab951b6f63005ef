"""Senders per minute: how much they published, and the outcomes of their requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.spark.tables import sketches
from trunkline.spark.tables.sketches import gathered, percentiles
from trunkline.spark.tables.table import GOLD, Column, Inputs, QueryTable
from trunkline.spark.tables.times import hour_of, minute_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS = ["sender", "minute"]
OUTCOMES = {"answered": "answered", "failed": "failed", "timed_out": "timed out"}


def build(inputs: Inputs) -> DataFrame:
    rows = _traffic(inputs.traffic).join(_requests(inputs.table("requests")), KEYS, "left").fillna(0, [*OUTCOMES])
    failed = F.col("failed") + F.col("timed_out")
    rows = rows.withColumns(
        {
            "hour": hour_of("minute"),
            "error_rate": F.when(F.col("requests") > 0, failed / F.col("requests")),
        }
    )
    return TABLE.shape(rows.select("*", *percentiles("latency")))


def _traffic(traffic: DataFrame) -> DataFrame:
    sums = [
        F.sum(name).alias(as_) for name, as_ in (("count", "messages"), ("bytes", "bytes"), ("requests", "requests"))
    ]
    return traffic.groupBy(*KEYS).agg(*sums, F.count_distinct("topic").alias("topics"))


def _requests(requests: DataFrame) -> DataFrame:
    counted = (
        requests.select("sender", minute_of("asked").alias("minute"), "outcome", sketches.bucket_of_ms("latency_ms"))
        .groupBy(*KEYS, "outcome", "bucket")
        .count()
    )
    answered = F.col("outcome") == OUTCOMES["answered"]
    return counted.groupBy(*KEYS).agg(
        *(F.sum(F.when(F.col("outcome") == value, F.col("count"))).alias(name) for name, value in OUTCOMES.items()),
        *gathered("latency", answered),
    )


TABLE = QueryTable(
    "sender_minute",
    GOLD,
    "A row is a minute of a sender in which it published something",
    (
        Column("sender", "string", "who"),
        Column("minute", "timestamp", "the minute in which its messages are placed"),
        Column("messages", "bigint", "how many there are"),
        Column("bytes", "bigint", "the size of their payloads"),
        Column("topics", "bigint", "on how many different topics they are"),
        Column("requests", "bigint", "how many of them are requests"),
        Column("answered", "bigint", "how many of these requests were answered"),
        Column("failed", "bigint", "how many of them got an error for an answer"),
        Column("timed_out", "bigint", "how many of them got no answer in time"),
        Column("error_rate", "double", "`failed` and `timed_out`, by request; null without requests"),
        *sketches.columns("latency", "the time to the answer, of its answered requests asked in this minute"),
        Column("hour", "timestamp", "the hour of the minute"),
    ),
    build,
    needs=("requests",),
)
