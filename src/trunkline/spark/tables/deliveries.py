"""Deliveries: the fate of each message for each subscriber, from fates of single messages and of ranges."""

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
"""Up to this many rows are broadcast, so that the messages, which are many more, are not shuffled."""

SHIFTS = (0, 2, 4, 6, 8, 10, 12, 14, 16, 20)
"""Possible bucket sizes, 2^shift message numbers each. A range is found by the buckets that it overlaps."""
ROOM = 50_000
"""This many buckets are always acceptable, even for few ranges."""

ALONE = 0
"""The place of fates of a single message. They are found by its number, whatever its topic."""


def build(inputs: Inputs) -> DataFrame:
    messages = inputs.messages.select(
        "seq", "id", "topic", "sender", "placed", "accepted", "hour", F.length("payload").alias("bytes")
    )
    fates = inputs.fates.withColumn("alone", F.expr("first = last"))
    places, few = _places(inputs, fates)
    rows = _rows(fates, places)
    near = _marked(matching(inputs.topics, places))
    settled = _settled(messages, F.broadcast(near), F.broadcast(rows) if few else rows, _disputed(fates))
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
    """The places in which fates are looked up: the patterns of ranges, numbered, with the size of their buckets.

    Also returns whether there are few enough rows to broadcast them.
    """
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
    """The smallest bucket size that does not need many more buckets than there are ranges.

    Smaller buckets hold fewer ranges each. Returns the shift and the number of buckets.
    """
    fitting = (pair for pair in zip(SHIFTS, sizes, strict=True) if pair[1] <= 3 * count + ROOM)
    return next(fitting, (SHIFTS[-1], sizes[-1]))


def _rows(fates: DataFrame, places: DataFrame) -> DataFrame:
    """The fates, with one row for each of their buckets."""
    of_ranges = fates.where("not alone").join(F.broadcast(places.where(F.col("place") != ALONE)), "pattern")
    alone = fates.where("alone").withColumns({"place": F.lit(ALONE).cast("long"), "shift": F.lit(0)})
    rows = of_ranges.unionByName(alone).withColumn(
        "bucket", F.explode(F.expr("sequence(first >> shift, last >> shift)"))
    )
    exact = F.expr("last - first + 1 = count").alias("exact")
    return rows.select(_key(), "subscriber", "pattern", "fate", "first", "last", "number", exact, "reason", "time")


def _marked(near: DataFrame) -> DataFrame:
    """The places of each topic. The topic is given by two hashes: comparing numbers is faster than comparing texts."""
    return near.select(F.xxhash64("topic").alias("mark"), _other_mark().alias("other_mark"), "place", "shift")


def _other_mark() -> Expression:
    return F.xxhash64(F.lit(1), "topic")


def _key() -> Expression:
    # A join on one number is several times as fast as on two numbers and a text.
    return F.expr("bucket << 20 | place").alias("key")


class Disputed(NamedTuple):
    """The numbers of messages to which several fates of one subscriber may refer, if there are any."""

    seqs: DataFrame | None = None
    low: int = 0
    high: int = 0


def _disputed(fates: DataFrame) -> Disputed | None:
    """The disputed messages; None if they are too many to list.

    Every message with a fate of its own is included: where there are ranges, such messages are few.
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
    """Each message with its valid fate for each subscriber."""
    candidates = _with_fates(messages, near, rows)
    if disputed is None:
        return _latest(candidates)
    if disputed.seqs is None:
        return candidates
    # Comparing all rows would shuffle all rows. Only disputed messages are compared, with only the columns needed.
    some = messages.select("seq", "topic").where(F.col("seq").between(disputed.low, disputed.high))
    compared = _latest(_with_fates(some.join(disputed.seqs, "seq", "left_semi"), near, rows))
    count = compared.groupBy("seq").agg(F.collect_list("number").alias("numbers"))
    return candidates.join(F.broadcast(count), "seq", "left").where(
        "numbers is null or array_contains(numbers, number)"
    )


def _with_fates(messages: DataFrame, near: DataFrame, rows: DataFrame) -> DataFrame:
    """Each message with each fate that refers to it."""
    placed = messages.withColumn("mark", F.xxhash64("topic")).join(near, "mark")
    # XOR prevents Spark from using the second hash as a join key, too: a join on one number is the fastest.
    placed = placed.where(_other_mark().bitwiseXOR(F.col("other_mark")) == 0)
    keyed = placed.withColumn("bucket", F.expr("seq >> shift")).select(*messages.columns, _key())
    return keyed.join(rows, "key").where("seq between first and last")


def _latest(candidates: DataFrame) -> DataFrame:
    """The valid fate for each message and subscriber."""
    # A range that counts all its numbers is as exact as a fate of one message. Replaying adjacent messages writes one.
    rising = Window.partitionBy("seq", "subscriber").orderBy("exact", "number")
    return candidates.withColumn("next", F.lead("number").over(rising)).where("next is null").drop("next")


TABLE = BuiltTable(
    "deliveries",
    SILVER,
    "A row is the fate of a message for a subscriber. A message that is not settled yet has no row",
    (
        Column("seq", "bigint", "the number of the message"),
        Column("id", "string", "the message's id"),
        Column("topic", "string", "where it was published"),
        Column("sender", "string", "who published it"),
        Column("subscriber", "string", "whose fate it is; the bus, if the message was refused"),
        Column("pattern", "string", "the pattern of the subscriber"),
        Column("fate", "string", "delivered, filtered, expired, dropped, dead or refused"),
        Column("range", "bigint", "the number of the row of `fates`, if that is about more than this message"),
        Column("reason", "string", "why, if it was not delivered"),
        Column("published", "timestamp", "where the message is placed"),
        Column("settled", "timestamp", "when its fate was known; in a range, when that of the last message was"),
        Column("lag_ms", "double", "from when the journal accepted it to `settled`"),
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
