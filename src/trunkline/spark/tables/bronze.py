"""Bronze: what the journal holds, as it is; each message once, at the hour it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.spark.tables.table import BRONZE, Column, Inputs, Table
from trunkline.spark.tables.times import hour_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def _given(inputs: Inputs) -> DataFrame:
    raise AssertionError("bronze is what a run begins with")


MESSAGES = Table(
    "messages",
    BRONZE,
    "A row is a message, once whatever its publisher repeated: of several with one id the first is kept",
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
    _given,
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
    _given,
)

LETTERS = Table(
    "letters",
    BRONZE,
    "A row is a dead letter as the journal kept it, also after it was replayed",
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
    _given,
)

TABLES = (MESSAGES, FATES, LETTERS)
AS_SEALED = {MESSAGES.name: MESSAGES, FATES.name: FATES}
"""Those that are made of the files of the lake."""
FOLLOWING = frozenset({"placed", "hour", "late"})
"""Columns that follow from the others: they are not in the files."""


PARTS = 16
"""Ids are compared in so many parts."""


def placed(name: str, rows: DataFrame, watermark_s: float) -> DataFrame:
    """The rows of messages or fates as they are stored, with what follows from them."""
    return place(rows, watermark_s) if name == MESSAGES.name else rows.withColumn("hour", hour_of("time"))


def stored(table: Table) -> str:
    """What is in the files: the columns of the lake, whose files these are, for the most part."""
    return ", ".join(f"`{column.name}` {column.type}" for column in table.columns if column.name not in FOLLOWING)


def place(messages: DataFrame, watermark_s: float) -> DataFrame:
    """With where each message counts."""
    apart_us = F.abs(F.unix_micros("time") - F.unix_micros("accepted"))
    late = apart_us > F.lit(int(watermark_s * 1e6))
    placed = F.when(late, F.col("accepted")).otherwise(F.col("time"))
    return messages.withColumns({"placed": placed, "hour": hour_of(placed), "late": late})


def repeated(messages: DataFrame, before: DataFrame | None) -> DataFrame:
    """The numbers of messages whose id came before: among `messages`, or in `before`."""
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
    known = messages.select("id", "seq", F.lit(True).alias("new"))
    if before is not None:
        known = known.unionByName(before.select("id", "seq", F.lit(False).alias("new")))
    close = known.withColumn("mark", F.xxhash64("id")).join(marks, "mark", "left_semi")
    firsts = close.groupBy("id").agg(F.min("seq").alias("first"))
    return close.join(firsts, "id").where("new and seq > first").select("seq")
