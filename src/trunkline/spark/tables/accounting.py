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
PARTS = [*KEYS, "pattern", "fate", "range"]
FEW = 200_000
"""So many rows are sent to every task; beyond that, both sides of a join are."""


def build(inputs: Inputs) -> DataFrame:
    refused = _refused(inputs.fates)
    # Small beside the deliveries, and all that is wanted of them.
    parts = _parts(inputs.table("deliveries"), refused).localCheckpoint()
    listens = matching(inputs.topics, inputs.fates.select("pattern").distinct()).withColumn("listens", F.lit(True))
    rows = _subscribers(_claimed(parts, inputs.fates), listens).localCheckpoint()
    rows = rows.join(_unsettled(inputs, refused, rows), KEYS, "left").fillna(0, ["within", "beyond"])
    gaps = F.when(F.col("ranged") & F.col("listens"), F.col("within") - F.col("found")).otherwise(0)
    rows = rows.withColumns({"in_flight": F.col("beyond"), "unaccounted": F.col("surplus") + gaps})
    accepted = F.expr(" + ".join((*FATES, "in_flight", "unaccounted")))
    return TABLE.shape(rows.withColumns({"accepted": accepted, "adds_up": F.expr("unaccounted = 0")}))


def _refused(fates: DataFrame) -> DataFrame | None:
    """The numbers of what was refused; None if nothing was."""
    seqs = fates.where("fate = 'refused' and first = last").select(F.col("first").alias("seq")).distinct()
    count = seqs.limit(FEW + 1).count()
    if not count:
        return None
    return F.broadcast(seqs) if count <= FEW else seqs


def _parts(deliveries: DataFrame, refused: DataFrame | None) -> DataFrame:
    """What was settled, by all that it is summed up by."""
    rows = deliveries.where("fate <> 'refused'").select(*PARTS, "seq")
    known = F.lit(True)
    if refused is not None:
        rows = rows.join(refused.withColumn("refused", F.lit(True)), "seq", "left")
        known = F.col("refused").isNull()
    return rows.groupBy(*PARTS).agg(
        F.count("*").alias("count"),
        F.count_if(known).alias("found"),
        F.min("seq").alias("lowest"),
        F.max("seq").alias("highest"),
    )


def _claimed(parts: DataFrame, fates: DataFrame) -> DataFrame:
    """With what the range of each part counts, where its last message is, and how many of the part that leaves out."""
    ranges = fates.select(F.col("number").alias("range"), "last", F.col("count").alias("claim"))
    parts = parts.join(ranges.where("first < last"), "range", "left")
    of_range = Window.partitionBy("range", "hour")
    later = of_range.orderBy(F.col("highest").desc()).rowsBetween(Window.unboundedPreceding, -1)
    too_many = F.sum("count").over(of_range) - F.col("claim")
    # Those on the topic of its last message first, then those on that of the last on another, and so on.
    left = too_many - F.coalesce(F.sum("count").over(later), F.lit(0))
    surplus = F.greatest(F.lit(0), F.least(F.col("count"), left))
    ranged = F.col("range").isNotNull()
    return parts.withColumns(
        {
            "ranged": ranged,
            "surplus": F.when(ranged, surplus).otherwise(0),
            "claimed": F.when(~ranged, F.col("count")).when(F.expr("highest = last"), F.col("claim")).otherwise(0),
        }
    )


def _subscribers(parts: DataFrame, listens: DataFrame) -> DataFrame:
    """By subscriber, topic and hour: the sums of what was settled, less what its ranges do not count."""
    parts = parts.join(F.broadcast(listens), ["topic", "pattern"], "left")
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


def _unsettled(inputs: Inputs, refused: DataFrame | None, subscribers: DataFrame) -> DataFrame:
    """By subscriber, topic and hour: how many messages are within what it settled, and how many beyond."""
    topics = inputs.traffic.groupBy("topic", "hour").agg(
        F.min("first").alias("first"), F.max("last").alias("last"), F.sum("count").alias("count")
    )
    stretches = subscribers.where("listens").select(*KEYS, "lowest", "highest").join(topics, ["topic", "hour"])
    # Counted as traffic is what was refused, too: if there is such, messages have to be looked at.
    covered = F.expr("lowest <= first and last <= highest") if refused is None else F.lit(False)
    stretches = stretches.withColumn("covered", covered).localCheckpoint()
    whole = stretches.where("covered").select(*KEYS, F.col("count").alias("within"), F.lit(0).alias("beyond"))
    cut = stretches.where("not covered")
    if cut.isEmpty():
        return whole
    accepted = inputs.messages.select("seq", "topic", "hour")
    if refused is not None:
        accepted = accepted.join(refused, "seq", "left_anti")
    counted = accepted.join(F.broadcast(cut), ["topic", "hour"]).groupBy(*KEYS)
    return whole.unionByName(
        counted.agg(
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
    needs=("deliveries",),
)
