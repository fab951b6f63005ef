"""What-if analysis: passes recorded messages through changed handlers on a separate bus, and compares the outputs.

Nothing leaves the separate bus. Messages are processed one at a time: everything that is published until all handlers
are idle is the output of the message. The recorded output of the message consists of the answers to it, found by
request id, and the messages whose correlation id is its id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from trunkline.brokers.memory import MemoryBroker
from trunkline.brokers.recording import RecordingBroker
from trunkline.bus.bus import Bus
from trunkline.errors import RequestError, UsageError
from trunkline.message import Message, MessageType
from trunkline.spark.pipeline.views import table
from trunkline.spark.replay.selection import journals_of, messages_of, select
from trunkline.spark.tables.payloads import texts
from trunkline.spark.tables.related import ANSWERS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Attach = Callable[[Bus], object]
"""Registers the changed handlers on a bus: `def attach(bus): bus.handle("pricing", new_price)`."""

ANSWER = "answer"
OUTPUTS = pa.schema(
    [
        ("input", pa.int64()),
        ("place", pa.int32()),
        ("target", pa.string()),
        ("type", pa.string()),
        ("content_type", pa.string()),
        ("encoding", pa.string()),
        ("payload", pa.binary()),
        ("failed", pa.string()),
    ]
)


async def what_if(
    spark: SparkSession, warehouse: str | Path, query: str, attach: Attach, *, timeout_s: float = 30.0
) -> DataFrame:
    """One row for each output, recorded or new, of each message that `query` selects by `seq`.

    Columns: input (its number), topic, id, target (the topic of the output, or `answer`), place (its ordinal there),
    verdict (same, changed, missing: only the recorded run has it, new: only the new run has it), then (the recorded
    output) and now (the new output), both as JSON or text, failed (why a handler failed in the new run).
    """
    chosen = select(spark, warehouse, query)
    if len(journals := journals_of(chosen)) > 1:
        raise UsageError(f"the query selects messages of {len(journals)} journals: choose one with `where journal = …`")
    rows = [row async for row in _drive(messages_of(chosen), attach, timeout_s)]
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in OUTPUTS]
    now = _readable(spark.createDataFrame(pa.Table.from_arrays(columns, schema=OUTPUTS)), "now")
    then = _readable(_recorded(spark, warehouse, chosen), "then")
    return _compared(chosen, then.drop("failed"), now)


async def _drive(messages: Iterator[Message], attach: Attach, timeout_s: float) -> Any:
    broker = RecordingBroker(MemoryBroker())
    async with Bus(broker, name="what-if") as bus:
        attach(bus)
        for message in messages:
            broker.published.clear()
            failed = await _give(bus, message, timeout_s)
            await bus.quiet()
            letters = [letter.reason for letter in bus.dead_letters]
            bus.dead_letters.clear()
            for row in _outputs(message, broker.published, failed or next(iter(letters), None)):
                yield row


async def _give(bus: Bus, message: Message, timeout_s: float) -> str | None:
    """Publish the message, or send it as a request. Returns the reason if a request was not answered."""
    again = message.replace(id="", timestamp_ns=0, attempts=0, ttl_s=None)
    if message.type is not MessageType.REQUEST:
        await bus.post(again)
        return None
    try:
        await bus.request(
            message.topic, again.payload, reply=Message, timeout_s=timeout_s, content_type=again.content_type
        )
    except RequestError as error:
        return str(error)
    return None


def _outputs(message: Message, published: list[Message], failed: str | None) -> Iterator[dict[str, Any]]:
    places: dict[str, int] = {}
    found = [each for each in published[1:] if not each.topic.startswith("_dead.")]
    for each in found:
        target = ANSWER if each.type in (MessageType.RESPONSE, MessageType.ERROR) else each.topic
        place = places[target] = places.get(target, -1) + 1
        yield {
            "input": message.seq,
            "place": place,
            "target": target,
            "type": each.type.name.lower(),
            "content_type": each.content_type,
            "encoding": each.encoding,
            "payload": each.payload,
            "failed": failed,
        }
    if not found and failed is not None:
        yield dict.fromkeys(OUTPUTS.names) | {"input": message.seq, "failed": failed}


def _recorded(spark: SparkSession, warehouse: str | Path, chosen: DataFrame) -> DataFrame:
    inputs = chosen.select(F.col("seq").alias("input"), F.col("id").alias("of"), F.col("request_id").alias("asked"))
    # Message numbers and ids are unique only within their journal.
    messages = table(spark, warehouse, "messages").join(chosen.select("journal").distinct(), "journal", "left_semi")
    answers = messages.where(F.col("type").isin(*ANSWERS)).join(
        inputs.where("asked is not null"), F.col("request_id") == F.col("asked")
    )
    others = messages.where(~F.col("type").isin(*ANSWERS)).join(inputs, F.col("correlation_id") == F.col("of"))
    both = answers.withColumn("target", F.lit(ANSWER)).unionByName(others.withColumn("target", F.col("topic")))
    order = F.row_number().over(_by_target()) - 1
    return both.select(
        "input",
        order.alias("place"),
        "target",
        "type",
        "content_type",
        "encoding",
        "payload",
        F.lit(None).cast("string").alias("failed"),
    )


def _by_target() -> Any:
    from pyspark.sql import Window

    return Window.partitionBy("input", "target").orderBy("seq")


def _readable(outputs: DataFrame, name: str) -> DataFrame:
    """Outputs with their payloads as JSON text. Other payloads become plain text, or hexadecimal digits."""
    keys = ["input", "place", "target", "failed"]
    plain = F.coalesce(F.try_validate_utf8(F.col("payload").cast("string")), F.hex("payload"))
    some = outputs.where("payload is not null").withColumns({"topic": F.col("target"), "plain": plain})
    read = texts(some, [*keys, "plain"]).select(*keys, F.coalesce("text", "plain").alias(name))
    none = outputs.where("payload is null").select(*keys, F.lit(None).cast("string").alias(name))
    return read.unionByName(none)


def _compared(chosen: DataFrame, then: DataFrame, now: DataFrame) -> DataFrame:
    same = F.when(F.col("then").isNull() & F.col("now").isNull(), F.lit("same"))
    verdict = (
        same.when(F.col("then").isNull(), F.lit("new"))
        .when(F.col("now").isNull(), F.lit("missing"))
        .when(F.col("then") == F.col("now"), F.lit("same"))
        .otherwise(F.lit("changed"))
    )
    joined = then.join(now, ["input", "target", "place"], "full_outer")
    known = chosen.select(F.col("seq").alias("input"), "topic", "id")
    return (
        joined.join(known, "input")
        .select("input", "topic", "id", "target", "place", verdict.alias("verdict"), "then", "now", "failed")
        .orderBy("input", "target", "place")
    )
