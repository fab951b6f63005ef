"""Deliveries: what became of each message for each subscriber, made of rows about one message and rows about ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column as Expression
from pyspark.sql import Window
from pyspark.sql import functions as F

from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.spark.tables.patterns import matching
from trunkline.spark.tables.table import SILVER, BuiltTable, Column, Inputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FEW = 500_000
"""So many rows are sent to every task, so that the messages, which are many more, stay where they are."""

SHIFTS = (0, 2, 4, 6, 8, 10, 12, 14, 16, 20)
"""A range is found by the buckets it lies in, of 2^shift numbers each."""
ROOM = 50_000
"""So many buckets are few, whatever is in them."""

ALONE = 0
"""The place of the rows about one message. They are found by its number, whatever its topic."""


def build(inputs: Inputs) -> DataFrame:
    messages = inputs.messages.select(
        "seq", "id", "topic", "sender", "placed", "accepted", "hour", F.length("payload").alias("bytes")
    )
    fates = inputs.fates.withColumn("alone", F.expr("first = last"))
    places, few = _places(inputs, fates)
    rows = _rows(fates, places)
    near = matching(inputs.topics, places)
    settled = _settled(
        messages, F.broadcast(near.drop("pattern")), F.broadcast(rows) if few else rows, _disputed(fates)
    )
    return settled.select(
        "seq",
        "id",
        "topic",
        "sender",
        "subscriber",
        "pattern",
        "fate",
        F.expr("if(first < last, number, null)").alias("range"),
        "reason",
        F.col("placed").alias("published"),
        F.col("time").alias("settled"),
        ((F.unix_micros("time") - F.unix_micros("accepted")) / 1000).alias("lag_ms"),
        "bytes",
        "hour",
    )


def _places(inputs: Inputs, fates: DataFrame) -> tuple[DataFrame, bool]:
    """Where rows are looked for: patterns of ranges, numbered, with the size of their buckets; and if rows are few."""
    of_range = F.expr("if(alone, null, pattern)")
    buckets_by_size = (F.sum(F.expr(f"(last >> {shift}) - (first >> {shift}) + 1")) for shift in SHIFTS)
    found = fates.groupBy(of_range).agg(F.count("*"), *buckets_by_size).collect()
    places, size = [], 0
    for place, (pattern, count, *sizes) in enumerate(found, ALONE + 1):
        shift, buckets = (0, count) if pattern is None else _sized(count, sizes)
        places.append((ALONE, ">", 0) if pattern is None else (place, pattern, shift))
        size += buckets
    return driver_frame(inputs.spark, places, "place long, pattern string, shift int"), size <= FEW


def _sized(count: int, sizes: list[int]) -> tuple[int, int]:
    """The smallest buckets, in which the fewest ranges lie, that are not many more than the ranges."""
    fitting = (pair for pair in zip(SHIFTS, sizes, strict=True) if pair[1] <= 3 * count + ROOM)
    return next(fitting, (SHIFTS[-1], sizes[-1]))


def _rows(fates: DataFrame, places: DataFrame) -> DataFrame:
    """The fates, each once for each of its buckets."""
    of_ranges = fates.where("not alone").join(F.broadcast(places.where(F.col("place") != ALONE)), "pattern")
    alone = fates.where("alone").withColumns({"place": F.lit(ALONE).cast("long"), "shift": F.lit(0)})
    rows = of_ranges.unionByName(alone).withColumn(
        "bucket", F.explode(F.expr("sequence(first >> shift, last >> shift)"))
    )
    exact = F.expr("last - first + 1 = count").alias("exact")
    return rows.select(_key(), "subscriber", "pattern", "fate", "first", "last", "number", exact, "reason", "time")


def _key() -> Expression:
    # One number is found several times as fast as two and a text.
    return F.expr("bucket << 20 | place").alias("key")


class Disputed(NamedTuple):
    """The numbers that several rows of a subscriber may be about, if there are any."""

    seqs: DataFrame | None = None
    low: int = 0
    high: int = 0


def _disputed(fates: DataFrame) -> Disputed | None:
    """None if they are too many to be listed.

    All with rows of their own are taken for such: where there are ranges, they are few.
    """
    before = Window.partitionBy("subscriber").orderBy("first", "number").rowsBetween(Window.unboundedPreceding, -1)
    ranges = fates.where("not alone").select("subscriber", "first", "last", "number")
    overlaps = ranges.withColumn("last", F.least("last", F.max("last").over(before))).where("last >= first")
    spans = overlaps.select("first", "last").unionByName(fates.where("alone").select("first", "last"))
    count, low, high = spans.agg(F.sum(F.expr("last - first + 1")), F.min("first"), F.max("last")).collect()[0]
    if not count:
        return Disputed()
    if count > FEW:
        return None
    seqs = spans.select(F.explode(F.sequence("first", "last")).alias("seq")).distinct()
    return Disputed(F.broadcast(seqs), low, high)


def _settled(messages: DataFrame, near: DataFrame, rows: DataFrame, disputed: Disputed | None) -> DataFrame:
    """Each message with the rows that count, one for each subscriber."""
    candidates = _with_fates(messages, near, rows)
    if disputed is None:
        return _latest(candidates)
    if disputed.seqs is None:
        return candidates
    # Comparing all would shuffle all. So only the disputed are compared, by what is needed for that.
    some = messages.select("seq", "topic").where(F.col("seq").between(disputed.low, disputed.high))
    compared = _latest(_with_fates(some.join(disputed.seqs, "seq", "left_semi"), near, rows))
    count = compared.groupBy("seq").agg(F.collect_list("number").alias("numbers"))
    return candidates.join(F.broadcast(count), "seq", "left").where(
        "numbers is null or array_contains(numbers, number)"
    )


def _with_fates(messages: DataFrame, near: DataFrame, rows: DataFrame) -> DataFrame:
    """Each message with each row that is about it."""
    placed = messages.join(near, "topic").withColumn("bucket", F.expr("seq >> shift"))
    keyed = placed.select(*messages.columns, _key())
    return keyed.join(rows, "key").where("seq between first and last")


def _latest(candidates: DataFrame) -> DataFrame:
    """Of the rows that are about one message and subscriber the one that counts."""
    # A range that counts all its numbers knows each of them, like a row of its own: a replay of neighbours is such.
    rising = Window.partitionBy("seq", "subscriber").orderBy("exact", "number")
    return candidates.withColumn("next", F.lead("number").over(rising)).where("next is null").drop("next")


TABLE = BuiltTable(
    "deliveries",
    SILVER,
    "A row is what became of a message for a subscriber; what is not settled yet has none",
    (
        Column("seq", "bigint", "the number of the message"),
        Column("id", "string", "the message's id"),
        Column("topic", "string", "where it was published"),
        Column("sender", "string", "who published it"),
        Column("subscriber", "string", "whose fate it is; the bus, if the message was refused"),
        Column("pattern", "string", "what the subscriber listens to"),
        Column("fate", "string", "delivered, filtered, expired, dropped, dead or refused"),
        Column("range", "bigint", "the number of the row of `fates`, if that is about more than this message"),
        Column("reason", "string", "why, if it was not delivered"),
        Column("published", "timestamp", "where the message is placed"),
        Column("settled", "timestamp", "when its fate was known; in a range, when that of the last message was"),
        Column("lag_ms", "double", "from when the journal took it to `settled`"),
        Column("bytes", "bigint", "the size of its payload"),
        Column("hour", "timestamp", "the hour of the message"),
    ),
    build,
    has_rows=lambda contents: bool(contents.fates),
    rules=(
        "If several rows of `fates` of one subscriber are about a message, one that counts all its numbers"
        " (`last - first + 1 = count`) goes before one that does not, then the highest `number`",
    ),
)
