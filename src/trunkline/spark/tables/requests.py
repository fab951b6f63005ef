"""Requests: each with the number of its answers, the latency of the first, and its outcome."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from trunkline.spark.tables.related import ANSWERS, REQUEST
from trunkline.spark.tables.table import SILVER, Column, Inputs, QueryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ANSWERED = "answered"


def build(inputs: Inputs) -> DataFrame:
    asked = inputs.of_built_hours(inputs.related.where(F.col("type") == REQUEST)).select(
        "seq", "id", "request_id", "topic", "sender", "placed", "accepted", "hour"
    )
    rows = _first_answers(inputs, asked, _answers(inputs))
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
    """`request_id` and `answer`, one row for each answer."""
    orphans = F.broadcast(inputs.orphans.select("seq", F.lit(True).alias("orphan")).distinct())
    answers = inputs.related.where(F.col("type").isin(*ANSWERS) & F.col("request_id").isNotNull())
    orphan = F.coalesce("orphan", F.lit(False)).alias("orphan")
    return answers.join(orphans, "seq", "left").select(
        "request_id", F.struct(orphan, "seq", "type", "id", "sender", "placed", "accepted").alias("answer")
    )


def _first_answers(inputs: Inputs, asked: DataFrame, answers: DataFrame) -> DataFrame:
    """The requests with `first`, the answer that counts, and `answers`, the number of answers."""
    # Sorting and comparing numbers is several times as fast as with ids, so a hash is the first key.
    mark = F.xxhash64("request_id").alias("mark")
    asked, answers = asked.withColumn("mark", mark), answers.withColumn("mark", mark)
    # Nearly all requests have one answer. A window would take longer than everything else.
    several, size = inputs.hold(answers.groupBy("mark").count().where("count > 1").select("mark"))
    met = partial(_met, horizon_s=inputs.settings.horizon_s)
    if not size:
        return met(asked, answers).transform(_only_answers)
    asked_once, answered_once = (rows.join(several, "mark", "left_anti") for rows in (asked, answers))
    asked_often, answered_often = (rows.join(several, "mark", "left_semi") for rows in (asked, answers))
    once = met(asked_once, answered_once).transform(_only_answers)
    return once.unionByName(met(asked_often, answered_often).transform(_lowest_answers))


def _met(asked: DataFrame, answers: DataFrame, horizon_s: float) -> DataFrame:
    """The requests with each `answer`. A request without an answer has one row."""
    # The result depends only on the request, not on which hours are built in the same run. If a clock is behind, an
    # answer can be placed before its request.
    apart_us = F.abs(F.unix_micros("answer.placed") - F.unix_micros("placed"))
    near = apart_us <= F.lit(int(horizon_s * 1e6))
    met = asked.join(answers, ["mark", "request_id"], "left")
    return met.withColumn("answer", F.when(near, F.col("answer")))


def _only_answers(met: DataFrame) -> DataFrame:
    count = F.when(F.col("answer").isNull(), 0).otherwise(1).alias("answers")
    return met.select("*", count).withColumnRenamed("answer", "first")


def _lowest_answers(met: DataFrame) -> DataFrame:
    rising = Window.partitionBy("mark", "request_id", "seq").orderBy(
        F.col("answer").isNull(), "answer.orphan", "answer.seq"
    )
    every = rising.rowsBetween(Window.unboundedPreceding, Window.unboundedFollowing)
    ranked = met.withColumns({"answers": F.count("answer").over(every), "rank": F.row_number().over(rising)})
    return ranked.where("rank = 1").drop("rank").withColumnRenamed("answer", "first")


TABLE = QueryTable(
    "requests",
    SILVER,
    "A row is a request, with the first answer that somebody waited for; requests that share an id share the answers",
    (
        Column("seq", "bigint", "the number of the request"),
        Column("id", "string", "the id of its message"),
        Column("request_id", "string", "the id that its answers refer to"),
        Column("topic", "string", "the topic of the request"),
        Column("sender", "string", "who asked"),
        Column("asked", "timestamp", "where the request is placed"),
        Column(
            "answered", "timestamp", "where its first answer is placed; orphans count only if all answers are orphans"
        ),
        Column("latency_ms", "double", "from when the journal accepted the request to when it accepted that answer"),
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
