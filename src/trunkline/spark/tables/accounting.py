"""Accounting: for each subscriber, topic and hour, whether its messages and their fates add up.

What was accepted for a subscriber is written down nowhere as such: it follows from the messages and the fates.
Everything here is about one hour, and depends on nothing else:

- What a subscriber settled reaches from the lowest to the highest number that has a fate for it in that hour.
- Messages beyond that, on topics that it listens to, are in flight.
- Messages within that, without a fate, are unaccounted. A subscriber that has no range there takes its messages one by
  one, as a member of a group does, which gets a part of them: what it has no row about may be that of others.
- If there are more messages in a range than it counts, so many are unaccounted, on the topic of its last message as
  far as there are enough.
- If there are fewer, the others may be in another hour: a range crosses hours, and topics. All that it counts is
  `claimed` where its last message is. So over all hours `claimed` of a subscriber is the sum of its fates; if it is
  more, then the books speak of messages that are not in the table.
- What was refused was accepted for nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from trunkline.spark.tables.patterns import matching
from trunkline.spark.tables.table import GOLD, Column, Inputs, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FATES = ("delivered", "filtered", "expired", "dropped", "dead")
KEYS = ["subscriber", "topic", "hour"]
PARTS = [*KEYS, "pattern", "fate"]
TOLD = ["subscriber", "pattern", "fate", "settled"]
"""What a delivery has in common with the row of fates that it comes from."""
FEW = 200_000
"""So many rows are sent to every task; beyond that, both sides of a join are."""


def build(inputs: Inputs) -> DataFrame:
    deliveries = inputs.table("deliveries")
    refused = _sent(deliveries.where("fate = 'refused'").select("seq").distinct())
    topics, patterns = inputs.messages.select("topic").distinct(), inputs.fates.select("pattern").distinct()
    listens = matching(topics, patterns).withColumn("listens", F.lit(True))
    # Looked at twice below, and small.
    rows = _subscribers(_settled(deliveries, refused, inputs.fates), listens).localCheckpoint()
    rows = rows.join(_unsettled(inputs.messages, refused, rows), KEYS, "left").fillna(0, ["within", "beyond"])
    gaps = F.when(F.col("ranged") & F.col("listens"), F.col("within") - F.col("found")).otherwise(0)
    rows = rows.withColumns({"in_flight": F.col("beyond"), "unaccounted": F.col("surplus") + gaps})
    accepted = F.expr(" + ".join((*FATES, "in_flight", "unaccounted")))
    return TABLE.shape(rows.withColumns({"accepted": accepted, "adds_up": F.expr("unaccounted = 0")}))


def _settled(deliveries: DataFrame, refused: DataFrame, fates: DataFrame) -> DataFrame:
    """What was settled, each with the range that it comes from: its `number`, how many it claims, and the `last`."""
    # One number is found several times as fast as three texts and a time.
    told = F.xxhash64(*TOLD).alias("told")
    rows = deliveries.where("fate <> 'refused'").select(*TOLD[:3], "topic", "hour", "seq", told)
    rows = rows.join(refused.withColumn("refused", F.lit(True)), "seq", "left")
    fates = fates.where("fate <> 'refused'").withColumnRenamed("time", "settled")
    fates = fates.select(told, "number", "first", "last", F.col("count").alias("claim"))
    before = Window.partitionBy("told").orderBy("first", "number").rowsBetween(Window.unboundedPreceding, -1)
    ranges = fates.where("first < last").withColumn("covered", F.max("last").over(before))
    # Two at the same moment about the same: as two subscribers of one name have them. One of them counts.
    ranges = _sent(ranges.where("covered is null or covered < first").drop("covered"))
    # Rows about one message may be as many as the messages: only those of the moment of a range could be taken for it.
    alone = fates.where("first = last").join(ranges, "told", "left_semi")
    alone = _sent(alone.select("told", F.col("first").alias("seq"), F.lit(True).alias("alone")).distinct())
    rows = rows.join(alone, ["told", "seq"], "left").alias("row")
    within = F.expr("row.told = range.told and alone is null and seq between first and last")
    return rows.join(ranges.alias("range"), within, "left").drop("told", "alone", "first")


def _sent(rows: DataFrame) -> DataFrame:
    return F.broadcast(rows) if rows.limit(FEW + 1).count() <= FEW else rows


def _surplus(settled: DataFrame) -> DataFrame | None:
    """What is more than its range counts, taken from the topic of its last message first; None if there is nothing."""
    found = settled.where("number is not null").groupBy("number", "hour", "claim").agg(F.count("*").alias("found"))
    ranges = found.where("found > claim").select("number", "hour", F.expr("found - claim").alias("too_many"))
    ranges = ranges.localCheckpoint()
    if ranges.isEmpty():
        return None
    of_range = Window.partitionBy("number", "hour").orderBy(F.col("highest").desc())
    later = F.coalesce(F.sum("count").over(of_range.rowsBetween(Window.unboundedPreceding, -1)), F.lit(0))
    rows = settled.join(F.broadcast(ranges), ["number", "hour"])
    parts = rows.groupBy("number", *PARTS, "too_many").agg(F.count("*").alias("count"), F.max("seq").alias("highest"))
    taken = F.greatest(F.lit(0), F.least(F.col("count"), F.col("too_many") - later))
    return parts.withColumn("surplus", taken).groupBy(*PARTS).agg(F.sum("surplus").alias("surplus"))


def _subscribers(settled: DataFrame, listens: DataFrame) -> DataFrame:
    """By subscriber, topic and hour: the sums of what was settled, less what its ranges do not count."""
    ranged = F.col("number").isNotNull()
    # All that a range counts is where its last message is.
    claimed = F.when(~ranged, 1).when(F.expr("seq = last"), F.col("claim"))
    parts = settled.groupBy(*PARTS).agg(
        F.count("*").alias("count"),
        F.count_if(F.col("refused").isNull()).alias("found"),
        F.sum(claimed).alias("claimed"),
        F.max(ranged).alias("ranged"),
        F.min("seq").alias("lowest"),
        F.max("seq").alias("highest"),
    )
    surplus = _surplus(settled)
    parts = parts.withColumn("surplus", F.lit(0)) if surplus is None else parts.join(surplus, PARTS, "left")
    parts = parts.join(F.broadcast(listens), ["topic", "pattern"], "left").fillna(0, ["surplus", "claimed"])
    booked = F.col("count") - F.col("surplus")
    sums = parts.groupBy(*KEYS).agg(
        *(F.sum(F.when(F.col("fate") == fate, booked).otherwise(0)).alias(fate) for fate in FATES),
        *(F.sum(name).alias(name) for name in ("surplus", "claimed", "found")),
        F.max(F.coalesce("listens", F.lit(False))).alias("listens"),
        *(F.max(name).alias(name) for name in ("ranged", "highest")),
        F.min("lowest").alias("lowest"),
    )
    of_hour = Window.partitionBy("subscriber", "hour")
    return sums.withColumns(
        {
            "ranged": F.max("ranged").over(of_hour),
            "lowest": F.min("lowest").over(of_hour),
            "highest": F.max("highest").over(of_hour),
        }
    )


def _unsettled(messages: DataFrame, refused: DataFrame, subscribers: DataFrame) -> DataFrame:
    """By subscriber, topic and hour: how many messages are within what it settled, and how many beyond."""
    stretches = F.broadcast(subscribers.where("listens").select(*KEYS, "lowest", "highest"))
    accepted = messages.select("seq", "topic", "hour").join(refused, "seq", "left_anti")
    return (
        accepted.join(stretches, ["topic", "hour"])
        .groupBy(*KEYS)
        .agg(
            F.count_if(F.expr("seq between lowest and highest")).alias("within"),
            F.count_if(F.expr("seq > highest")).alias("beyond"),
        )
    )


TABLE = Table(
    "accounting",
    GOLD,
    "A row is an hour of a topic for a subscriber to which something became of its messages; one that does not add up"
    " is an alarm",
    (
        Column("topic", "string", "the topic"),
        Column("subscriber", "string", "who"),
        Column("accepted", "bigint", "all that follows, together"),
        Column("delivered", "bigint", "how many messages were delivered to it"),
        Column("filtered", "bigint", "how many it did not want"),
        Column("expired", "bigint", "how many were too old when their turn came"),
        Column("dropped", "bigint", "how many had no room"),
        Column("dead", "bigint", "how many could not be handled"),
        Column("in_flight", "bigint", "how many have no fate, and come after all that have one"),
        Column(
            "unaccounted", "bigint", "how many have no fate though later ones have, or are not counted by their range"
        ),
        Column("adds_up", "boolean", "whether nothing is unaccounted"),
        Column(
            "claimed", "bigint", "how many the fates speak of whose last message is here; over all hours, all fates"
        ),
        Column("hour", "timestamp", "the hour of the messages"),
    ),
    build,
)
