"""Accounting: for each subscriber, topic and hour, whether its messages and their fates add up.

The number of messages accepted for a subscriber is not stored. It is computed from the messages and the fates. Each
hour is computed on its own:

- The settled span of a subscriber goes from the lowest to the highest message number with a fate for it in that hour.
- Messages after the settled span, on topics to which it subscribes, are in flight.
- Messages within the settled span that have no fate are unaccounted. This does not apply to a subscriber without a
  range in that hour. It settles messages one by one, like a member of a group, which receives only some of them: a
  message without a row may belong to another member.
- If a range covers more messages than its count, the surplus is unaccounted. It is taken from the topic of the last
  message first.
- If a range covers fewer messages, the others may be in another hour: a range can extend over several hours and topics.
  Its whole count is `claimed` at the topic and hour of its last message in the table. A message that was left out
  because of a repeated id is not in the table. A fate is claimed even if a later fate superseded it. The sum of
  `claimed` over all hours is therefore the sum of the subscriber's fates. If that is more than the number of messages,
  the fates refer to messages that are not in the table.
- A refused message was not accepted for any subscriber.
- Messages that retention removed from the journal before the pipeline read them are in no other table. They have a
  separate row for each topic, in the earliest hour of the messages ingested when the loss was found.
"""

from __future__ import annotations

from functools import reduce

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.spark.tables.patterns import matching
from trunkline.spark.tables.table import GOLD, Column, Inputs, QueryTable, seconds

FATES = ("delivered", "filtered", "expired", "dropped", "dead")
KEYS = ["subscriber", "topic", "hour"]
PARTS = [*KEYS, "pattern", "fate", "range"]
PIPELINE = "(pipeline)"
"""The subscriber in rows about messages that are missing in the tables themselves."""
FEW = 200_000
"""Up to this many rows are broadcast. With more rows, both sides of a join are shuffled."""


def build(inputs: Inputs) -> DataFrame:
    refused = _refused(inputs)
    # Much smaller than the deliveries, and sufficient for most of what follows.
    parts = inputs.hold(_parts(inputs, refused)).rows
    listens = matching(inputs.topics, inputs.fates.select("pattern").distinct()).withColumn("listens", F.lit(True))
    rows = inputs.hold(_subscribers(_claimed(parts, inputs.fates), listens)).rows
    rows = rows.join(_unsettled(inputs, refused, rows), KEYS, "left").fillna(0, ["within", "beyond"])
    rows = _with_more_claims(rows, [_superseded(inputs), *_ends_elsewhere(inputs, parts)])
    gaps = F.when(F.col("ranged") & F.col("listens"), F.col("within") - F.col("found")).otherwise(0)
    rows = rows.withColumns({"in_flight": F.col("beyond"), "unaccounted": F.col("surplus") + gaps})
    accepted = F.expr(" + ".join((*FATES, "in_flight", "unaccounted")))
    rows = rows.withColumns({"accepted": accepted, "adds_up": F.expr("unaccounted = 0"), "removed": F.lit(0)})
    made = TABLE.shape(rows)
    return made.unionByName(_unread(inputs)) if inputs.unread else made


def _unread(inputs: Inputs) -> DataFrame:
    """Messages that retention removed before they were read: one row per topic and hour."""
    rows = [(topic, count, seconds(hour)) for topic, count, hour in inputs.unread]
    found = driver_frame(inputs.spark, rows, "topic string, removed bigint, at bigint")
    sums = found.groupBy("topic", F.timestamp_seconds("at").alias("hour")).agg(F.sum("removed").alias("removed"))
    none = {column.name: F.lit(0) for column in TABLE.own_columns if column.type == "bigint"}
    del none["removed"]
    return TABLE.shape(sums.withColumns({**none, "subscriber": F.lit(PIPELINE), "adds_up": F.lit(False)}))


def _refused(inputs: Inputs) -> DataFrame | None:
    """The numbers of refused messages; None if there are none."""
    refused = inputs.fates.where("fate = 'refused' and first = last")
    seqs, size = inputs.hold(refused.select(F.col("first").alias("seq")).distinct())
    if not size:
        return None
    return F.broadcast(seqs) if size <= FEW else seqs


def _parts(inputs: Inputs, refused: DataFrame | None) -> DataFrame:
    """Settled messages, counted by all columns that later sums need."""
    if refused is None:
        rows = inputs.settled().withColumn("found", F.col("count"))
    else:
        # Refused messages have to be left out of `found` one by one.
        rows = inputs.table("deliveries").join(refused.withColumn("refused", F.lit(True)), "seq", "left")
        known = F.expr("if(refused is null, 1, 0)")
        seq = F.col("seq")
        rows = rows.withColumns({"count": F.lit(1), "found": known, "lowest": seq, "highest": seq})
    return (
        rows.where("fate <> 'refused'")
        .groupBy(*PARTS)
        .agg(
            *(F.sum(name).alias(name) for name in ("count", "found")),
            F.min("lowest").alias("lowest"),
            F.max("highest").alias("highest"),
        )
    )


def _claimed(parts: DataFrame, fates: DataFrame) -> DataFrame:
    """Add `ranged`, `claimed` and `surplus` to each part.

    `claimed` is the count of the range, in the part with its last message. `surplus` is how many messages of the part
    exceed that count.
    """
    ranges = fates.select(F.col("number").alias("range"), "last", F.col("count").alias("claim"))
    parts = parts.join(ranges.where("first < last"), "range", "left")
    of_range = Window.partitionBy("range", "hour")
    later = of_range.orderBy(F.col("highest").desc()).rowsBetween(Window.unboundedPreceding, -1)
    too_many = F.sum("count").over(of_range) - F.col("claim")
    # The surplus is taken from the part with the last message first, then from the part with the next highest number.
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


def _with_more_claims(rows: DataFrame, claims: list[DataFrame | None]) -> DataFrame:
    found = [each for each in claims if each is not None]
    if not found:
        return rows
    more = reduce(DataFrame.unionByName, found).groupBy(*KEYS).agg(F.sum("claim").alias("more"))
    added = F.col("claimed") + F.coalesce("more", F.lit(0))
    return rows.join(more, KEYS, "left").withColumn("claimed", added).drop("more")


def _superseded(inputs: Inputs) -> DataFrame | None:
    """Claims of fates of a single message that another fate has superseded, for example after a replay."""
    alone = inputs.fates.where("first = last and fate <> 'refused'")
    told = alone.groupBy("subscriber", F.col("first").alias("seq")).agg(F.count("*").alias("told"))
    told, size = inputs.hold(told)
    if not size:
        return None
    own = F.expr("if(range is null, 1, 0)")
    settled = inputs.table("deliveries").where("fate <> 'refused'").select(*KEYS, "seq", own.alias("own"))
    met = settled.join(F.broadcast(told) if size <= FEW else told, ["subscriber", "seq"]).where("told > own")
    return met.select(*KEYS, F.expr("told - own").alias("claim"))


def _ends_elsewhere(inputs: Inputs, parts: DataFrame) -> list[DataFrame]:
    """Claims of ranges whose last message has a fate from another row, or is not in the table."""
    ranges = inputs.fates.where("first < last and fate <> 'refused'").select(
        F.col("number").alias("range"), "subscriber", "pattern", "first", "last", F.col("count").alias("claim")
    )
    known = parts.where("range is not null").select("range", "highest")
    ended = ranges.join(known, "range").where("highest = last").select("range")
    left, size = inputs.hold(ranges.join(ended, "range", "left_anti"))
    if not size:
        return []
    nearby = inputs.wide.select("seq", "topic", "hour")
    pairs = F.broadcast(matching(nearby.select("topic").distinct(), left.select("pattern").distinct()))
    at_last = nearby.join(F.broadcast(left), nearby["seq"] == left["last"]).join(pairs, ["topic", "pattern"])
    gone = left.join(at_last.select("range"), "range", "left_anti").join(known.select("range"), "range", "left_semi")
    gone, size = inputs.hold(gone)
    hours = F.broadcast(inputs.traffic.select("hour").distinct())
    found = [at_last.select(*KEYS, "claim").join(hours, "hour", "left_semi")]
    if size:
        within = nearby.join(F.broadcast(gone.join(pairs, "pattern")), "topic").where("seq between first and last")
        highest = F.max(F.struct("seq", "topic", "hour")).alias("highest")
        ends = within.groupBy("range", "subscriber", "claim").agg(highest)
        ends = ends.select("subscriber", "highest.topic", "highest.hour", "claim")
        found.append(ends.join(hours, "hour", "left_semi"))
    return found


def _subscribers(parts: DataFrame, listens: DataFrame) -> DataFrame:
    """Sums of settled messages by subscriber, topic and hour, without the surplus of ranges."""
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
    """By subscriber, topic and hour: how many messages are within the settled span, and how many after it."""
    topics = inputs.traffic.groupBy("topic", "hour").agg(
        F.min("first").alias("first"), F.max("last").alias("last"), F.sum("count").alias("count")
    )
    stretches = subscribers.where("listens").select(*KEYS, "lowest", "highest").join(topics, ["topic", "hour"])
    # Traffic includes refused messages. If there are any, the messages themselves must be counted.
    covered = F.expr("lowest <= first and last <= highest") if refused is None else F.lit(False)
    stretches = inputs.hold(stretches.withColumn("covered", covered)).rows
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


TABLE = QueryTable(
    "accounting",
    GOLD,
    "A row is an hour of a topic for a subscriber, if at least one of the messages has a fate. A row that does not add"
    " up is an alarm",
    (
        Column("topic", "string", "the topic"),
        Column("subscriber", "string", "who"),
        Column("accepted", "bigint", "all fates that follow, in flight and unaccounted, together"),
        Column("delivered", "bigint", "how many messages were delivered to it"),
        Column("filtered", "bigint", "how many its filter rejected"),
        Column("expired", "bigint", "how many had expired"),
        Column("dropped", "bigint", "how many were dropped because there was no room"),
        Column("dead", "bigint", "how many could not be handled"),
        Column("in_flight", "bigint", "how many have no fate yet, with numbers above all that have one"),
        Column(
            "unaccounted",
            "bigint",
            "how many have no fate although later ones have, or are missing in the count of their range",
        ),
        Column("adds_up", "boolean", "whether nothing is unaccounted, and nothing was removed unread"),
        Column(
            "removed",
            "bigint",
            f"how many retention removed before the pipeline read them; the subscriber is `{PIPELINE}` then",
        ),
        Column(
            "claimed",
            "bigint",
            "how many the fates speak of whose last message in the table is here, superseded ones too; over all hours,"
            " all fates",
        ),
        Column("hour", "timestamp", "the hour of the messages"),
    ),
    build,
    needs=("deliveries",),
    has_rows=lambda contents: bool(contents.fates) or contents.unread,
    rules=(
        "There is a row for each subscriber, topic and hour with a row of `deliveries` that is not `refused`. Refused"
        " messages are not counted here",
        "What a subscriber has settled in an hour reaches from the lowest to the highest number that `deliveries` has"
        " of it in that hour, on any topic",
        "`in_flight`: messages of this hour and topic, after that, without a row of `deliveries`, if the `pattern`"
        " of one of its rows of `deliveries` of this hour and topic matches the topic; refused messages do not"
        " count",
        "`unaccounted`: the same, within that, if any of its rows of `deliveries` in that hour comes from a range; and"
        " what a range has too much. If more messages of an hour come from one range than its `count`, the surplus is"
        " taken from `delivered` (or what the range says) to `unaccounted`: on the topic of the last of these messages"
        " first, then on that of the last on another topic, and so on",
        "`adds_up` is `unaccounted = 0`; it is false in the rows about what retention removed unread",
        f"What retention removed unread has a row for each topic, with the subscriber `{PIPELINE}` and no counts but"
        " `removed`, at the earliest hour of the messages that this run took in",
        "`claimed`: each row of `fates` that is not `refused` counts with its `count` at the topic and hour of the last"
        " message in `messages` that it is about, also if another row counts for that message in `deliveries`",
    ),
)
