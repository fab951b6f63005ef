"""Requests: each with the answers that came, how long the first took, and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.spark.tables.table import SILVER, BuiltTable, Column, Inputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

REQUEST = "request"
ANSWERS = ("response", "error")
ANSWERED = "answered"


def build(inputs: Inputs) -> DataFrame:
    asked = inputs.messages.where("type = 'request'").select(
        "seq", "id", "request_id", "topic", "sender", "placed", "accepted", "hour"
    )
    rows = _first_answers(asked, _answers(inputs), inputs.settings.horizon_s)
    refused = inputs.fates.where("fate = 'refused' and first = last").select(F.col("first").alias("seq")).distinct()
    rows = rows.join(F.broadcast(refused.withColumn("refused", F.lit(True))), "seq", "left")
    waited_us = F.lit(inputs.upto_us) - F.unix_micros("accepted")
    outcome = (
        F.when(F.col("refused"), "refused")
        .when(F.col("first.orphan"), "orphaned")
        .when(F.col("first.type") == "response", ANSWERED)
        .when(F.col("first.type") == "error", "failed")
        .when(waited_us >= F.lit(inputs.settings.request_timeout_s * 1e6), "timed out")
        .otherwise("open")
    )
    return rows.select(
        "seq",
        "id",
        "request_id",
        "topic",
        "sender",
        F.col("placed").alias("asked"),
        F.col("first.placed").alias("answered"),
        ((F.unix_micros("first.accepted") - F.unix_micros("accepted")) / 1000).alias("latency_ms"),
        outcome.alias("outcome"),
        F.col("first.sender").alias("responder"),
        F.col("first.seq").alias("answer_seq"),
        F.col("first.id").alias("answer_id"),
        "answers",
        "hour",
    )


def _answers(inputs: Inputs) -> DataFrame:
    """By request: `answer`, which compares by what counts, first those that somebody waited for, then by number."""
    orphans = F.broadcast(inputs.orphans.select("seq", F.lit(True).alias("orphan")).distinct())
    answers = inputs.nearby.where(F.col("type").isin(*ANSWERS) & F.col("request_id").isNotNull())
    orphan = F.coalesce("orphan", F.lit(False)).alias("orphan")
    return answers.join(orphans, "seq", "left").select(
        "request_id", F.struct(orphan, "seq", "type", "id", "sender", "placed", "accepted", "hour").alias("answer")
    )


def _first_answers(asked: DataFrame, answers: DataFrame, horizon_s: float) -> DataFrame:
    """The requests with `first`, the answer that counts, and how many there are."""
    # What is looked at depends on the request alone, and not on which hours happen to be made together. A clock that
    # is behind places an answer before its request.
    apart_us = F.abs(F.unix_micros("answer.placed") - F.unix_micros("placed"))
    near = apart_us <= F.lit(int(horizon_s * 1e6))
    # Numbers are sorted several times as fast as ids: so what is joined goes by a hash, and what is grouped by `seq`.
    mark = F.xxhash64("request_id").alias("mark")
    met = asked.withColumn("mark", mark).join(answers.withColumn("mark", mark), ["mark", "request_id"], "left")
    met = met.withColumn("answer", F.when(near, F.col("answer")))
    others = (name for name in asked.columns if name not in ("seq", "request_id"))
    return met.groupBy("seq", "mark", "request_id", *others).agg(
        F.min("answer").alias("first"), F.count("answer").alias("answers")
    )


TABLE = BuiltTable(
    "requests",
    SILVER,
    "A row is a request, with the first answer that somebody waited for; requests that share an id share the answers",
    (
        Column("seq", "bigint", "the number of the request"),
        Column("id", "string", "the id of its message"),
        Column("request_id", "string", "what its answers name"),
        Column("topic", "string", "where it was asked"),
        Column("sender", "string", "who asked"),
        Column("asked", "timestamp", "where the request is placed"),
        Column("answered", "timestamp", "where its first answer is placed: by number, an orphan only if all are"),
        Column("latency_ms", "double", "from when the journal took the request to when it took that answer"),
        Column("outcome", "string", "answered, failed (an error came), orphaned, timed out, refused or open"),
        Column("responder", "string", "who sent that answer"),
        Column("answer_seq", "bigint", "its number"),
        Column("answer_id", "string", "its id"),
        Column("answers", "int", "how many answers came, orphans too, up to the horizon before or after it"),
        Column("hour", "timestamp", "the hour of the request"),
    ),
    build,
    has_rows=lambda contents: "request" in contents.types,
    rules=(
        "The answers of a request are the messages of type `response` or `error` with its `request_id` that are placed"
        " at most the horizon before or after it, to the microsecond. An answer may be placed before its request, and"
        " may have a lower number",
        "The first answer is the one with the lowest number of those that are not in `orphans`; if all are, of all",
        "`outcome`, the first that is true: `refused` (there is such a row of `fates` about this message alone),"
        " `orphaned` (the first answer is an orphan), `answered` (it is a response), `failed` (it is an error),"
        " `timed out` (the last `accepted` of the stream is at least `request_timeout_s`, 30 s, after that of the"
        " request), `open`",
    ),
)
