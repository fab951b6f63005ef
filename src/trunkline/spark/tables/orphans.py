"""Orphans: answers for which no request was waiting, with the request to which they belong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.spark.tables.related import REQUEST
from trunkline.spark.tables.table import SILVER, Column, Inputs, QueryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def build(inputs: Inputs) -> DataFrame:
    kept = F.broadcast(inputs.orphans.select("seq", "why", F.col("at").alias("kept")))
    orphans = inputs.messages.select(
        "seq", "id", "topic", "type", "sender", "request_id", "placed", "accepted", "hour"
    ).join(kept, "seq")
    request = F.struct("seq", "topic", "sender", "placed", "accepted", "hour").alias("request")
    asked = inputs.related.where((F.col("type") == REQUEST) & F.col("request_id").isNotNull())
    asked = asked.select("request_id", request)
    # The result depends only on the answer, not on which hours are built in the same run.
    apart_us = F.abs(F.unix_micros("request.placed") - F.unix_micros("placed"))
    near = apart_us <= F.lit(int(inputs.settings.horizon_s * 1e6))
    met = asked.join(F.broadcast(orphans.select("request_id").distinct()), "request_id", "left_semi")
    first = F.min(F.when(near, F.col("request"))).alias("request")
    rows = orphans.join(met, "request_id", "left").groupBy(*orphans.columns).agg(first)
    return rows.select(
        "seq",
        "id",
        "request_id",
        "topic",
        "type",
        "sender",
        F.col("placed").alias("came"),
        "kept",
        "why",
        F.col("request.seq").alias("request_seq"),
        F.col("request.topic").alias("request_topic"),
        F.col("request.sender").alias("asker"),
        F.col("request.placed").alias("asked"),
        ((F.unix_micros("accepted") - F.unix_micros("request.accepted")) / 1000).alias("after_ms"),
        "hour",
    )


TABLE = QueryTable(
    "orphans",
    SILVER,
    "A row is an answer that nobody waited for, as long as the journal keeps it: until somebody claims it",
    (
        Column("seq", "bigint", "the number of the answer"),
        Column("id", "string", "the id of its message"),
        Column("request_id", "string", "the request that it names"),
        Column("topic", "string", "where it was sent"),
        Column("type", "string", "response or error"),
        Column("sender", "string", "who answered"),
        Column("came", "timestamp", "where the answer is placed"),
        Column("kept", "timestamp", "when it was found that nobody waited"),
        Column("why", "string", "why nobody waited"),
        Column(
            "request_seq", "bigint", "the first request of that name, up to the horizon before the answer or after it"
        ),
        Column("request_topic", "string", "the topic of that request"),
        Column("asker", "string", "who asked"),
        Column("asked", "timestamp", "where the request is placed"),
        Column("after_ms", "double", "how long after the request the journal took the answer; negative: before it"),
        Column("hour", "timestamp", "the hour of the answer"),
    ),
    build,
    has_rows=lambda contents: contents.orphans,
)
