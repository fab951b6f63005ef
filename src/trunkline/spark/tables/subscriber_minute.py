"""Subscribers per minute: the fates of the messages of that minute, and the lag of their delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.spark.tables import sketches
from trunkline.spark.tables.sketches import gathered, percentiles
from trunkline.spark.tables.table import GOLD, Column, Inputs, QueryTable
from trunkline.spark.tables.times import hour_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS = ["subscriber", "minute"]
FATES = ("delivered", "filtered", "expired", "dropped", "dead", "refused")


def build(inputs: Inputs) -> DataFrame:
    delivered = F.col("fate") == "delivered"
    counted = (
        inputs.settled()
        .groupBy(*KEYS, "fate", "bucket")
        .agg(F.sum("count").alias("count"), F.sum("bytes").alias("bytes"), F.max("lag_ms").alias("lag_ms"))
    )
    rows = counted.groupBy(*KEYS).agg(
        *(F.sum(F.when(F.col("fate") == fate, F.col("count")).otherwise(0)).alias(fate) for fate in FATES),
        F.sum("count").alias("all"),
        F.sum(F.when(delivered, F.col("bytes")).otherwise(0)).alias("bytes"),
        F.max(F.when(delivered, F.greatest("lag_ms", F.lit(0.0)))).alias("lag_max_ms"),
        *gathered("lag", delivered),
    )
    rows = rows.withColumns(
        {
            "hour": hour_of("minute"),
            "error_rate": (F.col("dropped") + F.col("dead") + F.col("expired")) / F.col("all"),
        }
    )
    return TABLE.shape(rows.select("*", *percentiles("lag")))


TABLE = QueryTable(
    "subscriber_minute",
    GOLD,
    "A row is a minute of a subscriber: the fates of the messages of that minute that are settled for it",
    (
        Column("subscriber", "string", "who"),
        Column("minute", "timestamp", "the minute in which the messages are placed"),
        Column("delivered", "bigint", "how many were delivered to it"),
        Column("filtered", "bigint", "how many its filter rejected"),
        Column("expired", "bigint", "how many had expired"),
        Column("dropped", "bigint", "how many were dropped because there was no room"),
        Column("dead", "bigint", "how many could not be handled"),
        Column("refused", "bigint", "how many a bus of this name refused to publish"),
        Column("bytes", "bigint", "the size of the payloads that were delivered"),
        Column("error_rate", "double", "`dropped`, `dead` and `expired`, by settled message"),
        *sketches.columns("lag", "the time from journal to settled, of what was delivered"),
        Column("lag_max_ms", "double", "the longest of these times; 0 if all are negative"),
        Column("hour", "timestamp", "the hour of the minute"),
    ),
    build,
    needs=("deliveries",),
    has_rows=lambda contents: bool(contents.fates),
)
