"""Traffic: message counts that several tables share, so that they do not have to read each message again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.spark.tables.sketches import bucket
from trunkline.spark.tables.times import hour_of, minute_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEYS = ["topic", "sender", "minute", "bucket"]


def traffic(messages: DataFrame) -> DataFrame:
    """Counts by topic, sender, minute, and the `bucket` of the delay from the publisher to the journal."""
    delay_us = F.unix_micros("accepted") - F.unix_micros("time")
    rows = messages.select(
        "topic",
        "sender",
        minute_of("placed").alias("minute"),
        bucket(delay_us).alias("bucket"),
        F.length("payload").alias("bytes"),
        "type",
        "seq",
        "placed",
        "accepted",
    )
    counted = rows.groupBy(*KEYS).agg(
        F.count("*").alias("count"),
        F.sum("bytes").alias("bytes"),
        F.count_if(F.col("type") == "request").alias("requests"),
        F.count_if(F.col("type") == "error").alias("errors"),
        F.min("seq").alias("first"),
        F.max("seq").alias("last"),
        F.max("placed").alias("placed"),
        F.max("accepted").alias("accepted"),
    )
    return counted.withColumn("hour", hour_of("minute"))
