"""Executions of code by kernels, assembled from the messages on `kernel.<id>.<channel>.<message type>`.

A payload is a Jupyter message in JSON. The results of a request name it in their `parent_header`. A result can be
placed before its request, so results are searched up to the horizon before and after the hour of the request.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pyspark.sql import Column as Expression
from pyspark.sql import Window
from pyspark.sql import functions as F

from trunkline.codec import JSON
from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.spark.tables.payloads import texts
from trunkline.spark.tables.table import SILVER, Column, Inputs, QueryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PREFIX = "kernel."
MAX_CHARS = 10_000
"""The number of characters that are kept of each output stream of an execution."""
REQUEST, REPLY = "shell.execute_request", "shell.execute_reply"
STATUS, STREAM, ERROR, ECHO = "iopub.status", "iopub.stream", "iopub.error", "iopub.execute_input"
OUTPUTS = ("iopub.display_data", "iopub.execute_result", "iopub.update_display_data")
FACTS = (REPLY, STATUS, STREAM, ERROR, ECHO, *OUTPUTS)
STREAMS = ("stdout", "stderr")

JUPYTER = (
    "header struct<msg_id: string, session: string, username: string>, parent_header struct<msg_id: string>,"
    " content struct<code: string, silent: boolean, execution_count: bigint, execution_state: string, status: string,"
    " ename: string, evalue: string, traceback: array<string>, name: string, text: string, data: map<string, string>>"
)


def build(inputs: Inputs) -> DataFrame:
    if not inputs.hold(inputs.topics.where(F.col("topic").startswith(PREFIX))).size:
        return driver_frame(inputs.spark, [], TABLE.own_ddl)
    reach = F.expr(f"interval {math.ceil(inputs.settings.horizon_s / 3600)} hours")
    # Used twice, and small compared with their results.
    requests = inputs.hold(_requests(_read(inputs.messages, (REQUEST,)))).rows
    facts = _facts(_read(inputs.nearby, FACTS))
    near = facts["at"].between(F.col("hour") - reach, F.col("hour") + reach)
    keys = requests.select("asked_seq", "kernel", "msg_id", "hour")
    found = facts.join(keys, ["kernel", "msg_id"]).where(near)
    asked = ("kernel", "msg_id", "session", "username", "code", "silent", "asked", "hour")
    return TABLE.shape(requests.join(_summed(found), "asked_seq", "left").select(*asked, *_outcome()))


# Reading


def _read(rows: DataFrame, kinds: tuple[str, ...]) -> DataFrame:
    """Messages of kernels: `kernel`, `kind` and the parsed payload. An unreadable payload gives null fields."""
    tokens = F.split("topic", r"\.")
    kind = F.concat_ws(".", F.get(tokens, F.lit(2)), F.get(tokens, F.lit(3)))
    mine = rows.where(F.col("topic").startswith(PREFIX) & (F.size(tokens) == 4)).select(
        "seq",
        "topic",
        F.get(tokens, F.lit(1)).alias("kernel"),
        # Requests can use the shell or the control channel.
        F.regexp_replace(kind, r"^control\.", "shell.").alias("kind"),
        "placed",
        "hour",
        "content_type",
        "encoding",
        "payload",
    )
    mine = mine.where(F.col("kind").isin(*kinds))
    carried = ("seq", "kernel", "kind", "placed", "hour")
    plain = (F.col("content_type") == JSON) & (F.col("encoding") == "")
    # Invalid UTF-8 becomes null. Only payloads that are compressed or not JSON go through Python.
    as_text = mine.where(plain).select(*carried, F.try_validate_utf8(F.col("payload").cast("string")).alias("text"))
    packed = texts(mine.where(~plain), carried).select(*carried, "text")
    content = F.from_json("text", JUPYTER).alias("said")
    return as_text.unionByName(packed).select(*carried, content).select(*carried, "said.*")


def _requests(read: DataFrame) -> DataFrame:
    return read.where("header.msg_id is not null").select(
        F.col("seq").alias("asked_seq"),
        "kernel",
        "header.msg_id",
        "header.session",
        "header.username",
        "content.code",
        F.coalesce("content.silent", F.lit(False)).alias("silent"),
        F.col("placed").alias("asked"),
        "hour",
    )


def _facts(read: DataFrame) -> DataFrame:
    """The results of requests. Texts are cut to the length that is kept."""
    text = F.when(F.col("kind") == STREAM, F.col("content.text"))
    return read.where("parent_header.msg_id is not null").select(
        "seq",
        "kernel",
        "kind",
        "placed",
        F.col("hour").alias("at"),
        "parent_header.msg_id",
        *(f"content.{name}" for name in ("execution_count", "execution_state", "status", "ename", "evalue", "name")),
        F.array_join("content.traceback", "\n").alias("traceback"),
        F.substring(text, 1, MAX_CHARS).alias("text"),
        F.coalesce(F.length(text), F.lit(0)).cast("bigint").alias("length"),
        F.when(F.col("kind").isin(*OUTPUTS), F.map_keys("content.data")).alias("mime_types"),
    )


# Assembling


def _summed(facts: DataFrame) -> DataFrame:
    """One row per request."""
    before = Window.partitionBy("asked_seq").orderBy("seq").rowsBetween(Window.unboundedPreceding, -1)
    for stream in STREAMS:
        mine = _is(STREAM) & (F.col("name") == stream)
        written = F.sum(F.when(mine, F.col("length"))).over(before)
        # Output beyond the limit is not collected: its size is unbounded.
        kept = mine & (F.coalesce(written, F.lit(0)) < MAX_CHARS) & (F.col("length") > 0)
        facts = facts.withColumn(f"{stream}_part", F.when(kept, F.struct("seq", "text")))
    return facts.groupBy("asked_seq").agg(
        _first(_is(STATUS) & (F.col("execution_state") == "busy"), "placed").alias("busy"),
        _first(_is(STATUS) & (F.col("execution_state") == "idle"), "placed").alias("idle"),
        _first(_is(REPLY), "placed", "status", "execution_count", "ename", "evalue", "traceback").alias("reply"),
        _first(_is(ERROR), "ename", "evalue", "traceback").alias("error"),
        _first(_is(ECHO), "execution_count").alias("echo"),
        F.count_if(F.col("kind").isin(*OUTPUTS)).alias("outputs"),
        F.array_sort(F.array_distinct(F.flatten(F.collect_set("mime_types")))).alias("mime_types"),
        *(_joined(f"{stream}_part").alias(stream) for stream in STREAMS),
        *(_length(stream).alias(f"{stream}_length") for stream in STREAMS),
    )


def _is(kind: str) -> Expression:
    return F.col("kind") == kind


def _first(which: Expression, *names: str) -> Expression:
    """The first of the messages for which `which` is true."""
    return F.min(F.when(which, F.struct("seq", *names)))


def _joined(part: str) -> Expression:
    texts = F.transform(F.array_sort(F.collect_list(part)), lambda each: each["text"])
    return F.substring(F.array_join(texts, ""), 1, MAX_CHARS)


def _length(stream: str) -> Expression:
    return F.coalesce(F.sum(F.when(_is(STREAM) & (F.col("name") == stream), F.col("length"))), F.lit(0))


def _outcome() -> list[Expression]:
    """The columns about the results of a request, also for a request without any."""
    status = F.col("reply.status")
    started, ended = F.col("busy.placed"), F.greatest("idle.placed", "reply.placed")
    return [
        F.coalesce("reply.execution_count", "echo.execution_count").alias("execution_count"),
        started.alias("started"),
        ended.alias("ended"),
        ((F.unix_micros(ended) - F.unix_micros(F.coalesce(started, "asked"))) / 1000).alias("duration_ms"),
        F.when(F.col("reply").isNull(), "open")
        .when(status == "ok", "ok")
        .when(status.startswith("abort"), "aborted")  # older kernels send abort
        .otherwise("error")
        .alias("status"),
        *(F.coalesce(f"reply.{name}", f"error.{name}").alias(name) for name in ("ename", "evalue", "traceback")),
        *(F.coalesce(stream, F.lit("")).alias(stream) for stream in STREAMS),
        F.coalesce(F.greatest(*(f"{stream}_length" for stream in STREAMS)) > MAX_CHARS, F.lit(False)).alias(
            "truncated"
        ),
        F.coalesce("outputs", F.lit(0)).alias("outputs"),
        F.coalesce("mime_types", F.array().cast("array<string>")).alias("mime_types"),
        (F.col("reply").isNotNull() & F.col("idle").isNotNull()).alias("complete"),
    ]


TABLE = QueryTable(
    "executions",
    SILVER,
    "A row is a request to a kernel to execute code, with its reply and outputs. A request whose payload cannot be read"
    " has none",
    (
        Column("kernel", "string", "the kernel's id"),
        Column("msg_id", "string", "the id of the request, as Jupyter has it"),
        Column("session", "string", "the session of the client"),
        Column("username", "string", "who asked"),
        Column("code", "string", "the code"),
        Column("silent", "boolean", "whether it was not counted, and not kept in the history"),
        Column("execution_count", "bigint", "the number the kernel gave it"),
        Column("asked", "timestamp", "where the request is placed"),
        Column("started", "timestamp", "when the kernel reported that it was busy with it"),
        Column("ended", "timestamp", "when it was idle again, or had replied: whichever came later"),
        Column(
            "duration_ms",
            "double",
            "from `started` to `ended`; from `asked`, if the kernel never reported that it was busy",
        ),
        Column("status", "string", "`ok`, `error`, `aborted`; `open` if there is no reply"),
        Column("ename", "string", "the class of the error"),
        Column("evalue", "string", "the text of the error"),
        Column("traceback", "string", "where it was raised, a line per frame, as the kernel wrote it"),
        Column("stdout", "string", f"what it wrote, up to {MAX_CHARS:,} characters"),
        Column("stderr", "string", f"what it wrote as errors, up to {MAX_CHARS:,} characters"),
        Column("truncated", "boolean", "whether it wrote more than that"),
        Column("outputs", "int", "how many things it displayed, its result and updates included"),
        Column("mime_types", "array<string>", "the formats of these, in order"),
        Column("complete", "boolean", "whether the kernel has replied, and is idle again"),
        Column("hour", "timestamp", "the hour of the request"),
    ),
    build,
    has_rows=lambda contents: any(topic.startswith(PREFIX) for topic in contents.topics),
    rules=(
        "A request is a message on `kernel.ID.shell.execute_request` (or `control` for `shell`) whose payload is a"
        " message of Jupyter's with a `msg_id` in its header",
        "Its reply and outputs are messages on other topics of that kernel. Each names the request in its"
        " `parent_header`, and its hour is at most the horizon before or after that of the request."
        " Requests that share a `msg_id` share these messages",
        "The first by number counts: of `execute_reply` on `shell` or `control`, of `error` and `execute_input` on"
        " `iopub`, and of `status` with `busy` and with `idle`. `ename`, `evalue` and `traceback` are those of the"
        " reply, or else of the error; `execution_count` that of the reply, or else of the input. Texts are in the"
        " order of numbers",
        "A reply with neither `ok` nor `aborted` (or `abort`) is an `error`",
    ),
)
