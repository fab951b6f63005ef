"""Bronze: what the journal holds, as it is; each message once, at the hour it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.spark.tables.table import BRONZE, Column, Table
from trunkline.spark.tables.times import hour_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


MESSAGES = Table(
    "messages",
    BRONZE,
    "A row is a message. In the order of their numbers, one is left out if a message that was kept has the same id and"
    " its hour is at most the horizon away",
    (
        Column("seq", "bigint", "its number in the journal: unique, rising, with gaps"),
        Column("id", "string", "the message's id"),
        Column("topic", "string", "where it was published"),
        Column("time", "timestamp", "when it was made, by the clock of its publisher"),
        Column("accepted", "timestamp", "when the journal took it"),
        Column("type", "string", "publish, direct, request, response, error, …"),
        Column("sender", "string", "who published it"),
        Column("recipient", "string", "the endpoint it was for"),
        Column("priority", "int", "0 to 100"),
        Column("ttl_s", "double", "seconds after `time` from which on it was not to be delivered"),
        Column("request_id", "string", "joins a request and its answers"),
        Column("correlation_id", "string", "joins messages as the publisher likes"),
        Column("reply_to", "string", "the topic on which an answer was expected"),
        Column("attempts", "bigint", "as published"),
        Column("requires_ack", "boolean", "whether it had to be acknowledged"),
        Column("content_type", "string", "the format of the payload"),
        Column("encoding", "string", "how the payload is packed: empty, or zlib"),
        Column("schema", "string", "the name of the payload's schema"),
        Column("trace", "string", "a W3C traceparent"),
        Column("headers", "map<string,string>", "texts by name"),
        Column("timestamp_ns", "bigint", "`time` in nanoseconds since 1970"),
        Column("payload", "binary", "the bytes that travelled"),
        Column("placed", "timestamp", "where it counts: `time`, or `accepted` if it is late"),
        Column("hour", "timestamp", "the hour of `placed`"),
        Column("late", "boolean", "whether `time` lies further from `accepted` than the watermark"),
    ),
)

FATES = Table(
    "fates",
    BRONZE,
    "A row is a range of messages that were delivered, or one message that was not, as the journal has it",
    (
        Column("number", "bigint", "the number of this row: unique, rising"),
        Column("subscriber", "string", "whose fate it is; the bus, if the message was refused"),
        Column("pattern", "string", "what the subscriber listens to"),
        Column("fate", "string", "delivered, filtered, expired, dropped, dead or refused"),
        Column("first", "bigint", "the first message it is about"),
        Column("last", "bigint", "the last"),
        Column("count", "bigint", "how many those are"),
        Column("reason", "string", "why, if it was not delivered"),
        Column("time", "timestamp", "when that was; of a range, when its last message was settled"),
        Column("hour", "timestamp", "the hour of `time`"),
    ),
)

LETTERS = Table(
    "letters",
    BRONZE,
    "A row is a message that a subscriber gave up on, as the journal recorded it then. It stays if it is replayed, and"
    " has another row if it is given up again. There is none about a message that is not in `messages`",
    (
        Column("subscriber", "string", "who failed on it"),
        Column("seq", "bigint", "the message"),
        Column("at", "timestamp", "when it was given up"),
        Column("topic", "string", "the topic of the message"),
        Column("id", "string", "the id of the message"),
        Column("cause", "string", "the kind of failure"),
        Column("reason", "string", "the last error"),
        Column("error_type", "string", "the class of the last error"),
        Column("traceback", "string", "where it was raised"),
        Column("attempts", "int", "how often it was tried"),
        Column("hour", "timestamp", "the hour of the message"),
    ),
)

TABLES = (MESSAGES, FATES, LETTERS)
AS_SEALED = {MESSAGES.name: MESSAGES, FATES.name: FATES}
"""Those that are made of the files of the lake."""
LYING = frozenset({"hour", "journal"})
"""Columns that follow from where a file lies: they are not in it."""
FOLLOWING = LYING | {"placed", "late"}
"""Those that are not in the files of messages, which are as the lake has them."""


PARTS = 16
"""Ids are compared in so many parts."""


def placed(name: str, rows: DataFrame, watermark_s: float) -> DataFrame:
    """Rows as they are stored, with the columns that follow from others."""
    return place(rows, watermark_s) if name == MESSAGES.name else rows


def stored(table: Table) -> str:
    """What is in the files of a table."""
    following = FOLLOWING if table is MESSAGES else LYING
    return ", ".join(f"`{each.name}` {each.type}" for each in table.columns if each.name not in following)


def place(messages: DataFrame, watermark_s: float) -> DataFrame:
    """With where each message counts. `pipeline/placement.py` says the same for Arrow."""
    apart_us = F.abs(F.unix_micros("time") - F.unix_micros("accepted"))
    late = apart_us > F.lit(int(watermark_s * 1e6))
    placed = F.when(late, F.col("accepted")).otherwise(F.col("time"))
    return messages.withColumns({"placed": placed, "late": late})


def repeated(messages: DataFrame, before: DataFrame | None) -> DataFrame:
    """The new messages whose ids occur more than once, among `messages` or in `before`, and those of `before`.

    The columns are those of `Suspect`.
    """
    # By a hash, which is shuffled in a quarter of the time that ids take; the few that share one are looked at closer.
    mark = F.xxhash64("id").alias("mark")
    new = messages.select(mark, "seq", F.lit(True).alias("new"))
    rows = new if before is None else new.unionByName(before.select(mark, "seq", F.lit(False).alias("new")))
    # Divided first, into parts that fit into a processor's cache: that halves the time.
    suspects = (
        rows.repartition(PARTS, "mark")
        .groupBy("mark")
        .agg(F.count("*").alias("n"), F.max("new").alias("any_new"))
        .where("n > 1 and any_new")
    )
    marks = F.broadcast(suspects.select("mark"))
    at = hour_number("hour").alias("at")
    known = messages.select("seq", "id", at, F.lit(True).alias("is_new"))
    if before is not None:
        known = known.unionByName(before.select("seq", "id", at, F.lit(False).alias("is_new")))
    return known.withColumn("mark", F.xxhash64("id")).join(marks, "mark", "left_semi").drop("mark")
