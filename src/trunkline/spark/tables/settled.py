"""Settled: counts of deliveries that several tables share, so that they do not have to read each delivery again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.spark.tables import sketches
from trunkline.spark.tables.times import minute_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS = ["subscriber", "topic", "pattern", "fate", "range", "minute", "bucket", "hour"]


def settled(deliveries: DataFrame) -> DataFrame:
    """Counts by subscriber, topic, pattern, fate, range, minute, and the `bucket` of the lag of delivered messages."""
    rows = deliveries.select(
        *("subscriber", "topic", "pattern", "fate", "range", "hour", "seq", "bytes", "lag_ms"),
        minute_of("published").alias("minute"),
        F.when(F.col("fate") == "delivered", sketches.bucket_of_ms("lag_ms")).alias("bucket"),
    )
    return rows.groupBy(*KEYS).agg(
        F.count("*").alias("count"),
        F.sum("bytes").alias("bytes"),
        F.max("lag_ms").alias("lag_ms"),
        F.min("seq").alias("lowest"),
        F.max("seq").alias("highest"),
    )
