"""Bronze: the data of the journal, unchanged. Each message occurs once, in the hour to which it belongs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.spark.tables.table import BRONZE, Column, Table

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
        Column("time", "timestamp", "when it was published, by the clock of its publisher"),
        Column("accepted", "timestamp", "when the journal accepted it"),
        Column("type", "string", "publish, direct, request, response, error, …"),
        Column("sender", "string", "who published it"),
        Column("recipient", "string", "the endpoint it was for"),
        Column("priority", "int", "0 to 100"),
        Column("ttl_s", "double", "seconds after `time` after which it expires"),
        Column("request_id", "string", "joins a request and its answers"),
        Column("correlation_id", "string", "joins related messages; set by the publisher"),
        Column("reply_to", "string", "the topic on which an answer was expected"),
        Column("attempts", "bigint", "as published"),
        Column("requires_ack", "boolean", "whether it had to be acknowledged"),
        Column("content_type", "string", "the format of the payload"),
        Column("encoding", "string", "the compression of the payload: empty, or zlib"),
        Column("schema", "string", "the name of the payload's schema"),
        Column("trace", "string", "a W3C traceparent"),
        Column("headers", "map<string,string>", "header fields: names and values"),
        Column("timestamp_ns", "bigint", "`time` in nanoseconds since 1970"),
        Column("payload", "binary", "the payload as it was sent"),
        Column("placed", "timestamp", "the time by which the tables place it: `time`, or `accepted` if it is late"),
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
        Column("pattern", "string", "the pattern of the subscriber"),
        Column("fate", "string", "delivered, filtered, expired, dropped, dead or refused"),
        Column("first", "bigint", "the first message it is about"),
        Column("last", "bigint", "the last"),
        Column("count", "bigint", "how many those are"),
        Column("reason", "string", "why, if it was not delivered"),
        Column("time", "timestamp", "when it was settled; for a range, when its last message was"),
        Column("hour", "timestamp", "the hour of `time`"),
    ),
)

LETTERS = Table(
    "letters",
    BRONZE,
    "A row is a message that a subscriber gave up on, as the journal recorded it then. It stays if it is replayed, and"
    " has another row if it is given up again. Messages that are not in `messages` have no row",
    (
        Column("subscriber", "string", "the subscriber that failed on it"),
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
"""The tables that consist of files of the lake."""
LYING = frozenset({"hour", "journal"})
"""Columns whose values are in the path of a file, not in the file."""
FOLLOWING = LYING | {"placed", "late"}
"""Columns that are not in the files of messages, which have the columns of the lake."""


def placed(name: str, rows: DataFrame, watermark_s: float) -> DataFrame:
    """Stored rows with the columns that are derived from others."""
    return place(rows, watermark_s) if name == MESSAGES.name else rows


def stored(table: Table) -> str:
    """The columns in the files of a table, as DDL."""
    following = FOLLOWING if table is MESSAGES else LYING
    return ", ".join(f"`{each.name}` {each.type}" for each in table.columns if each.name not in following)


def place(messages: DataFrame, watermark_s: float) -> DataFrame:
    """Add `placed` and `late`. `pipeline/placement.py` implements the same rule for Arrow."""
    apart_us = F.abs(F.unix_micros("time") - F.unix_micros("accepted"))
    late = apart_us > F.lit(int(watermark_s * 1e6))
    placed = F.when(late, F.col("accepted")).otherwise(F.col("time"))
    return messages.withColumns({"placed": placed, "late": late})
