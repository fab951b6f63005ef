"""Conversations: trees of messages that answer each other.

The parent of a message is the message whose id is its `correlation_id`. If there is none, the parent of an answer is
its request. Otherwise it is the first message with the same `correlation_id`, in place of the unknown message to which
they all refer. A parent has a lower `seq` than its child, so there are no cycles. The hours of the two are at most the
horizon apart, in either direction: if a clock is behind, an answer can be placed before its request. A tree is a root,
which is a message without a parent, and the messages below it. All messages on the path from the root to a member must
be within the horizon of the root.

The hours around a message determine whether it is a root. The hours around those determine the members of its tree. The
rows of an hour therefore do not depend on which other hours are built in the same run.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column as Expression
from pyspark.sql import Window
from pyspark.sql import functions as F

from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.spark.tables.related import ANSWERS, REQUEST
from trunkline.spark.tables.table import SILVER, Column, Hold, Inputs, QueryTable, checkpoint
from trunkline.spark.tables.times import HOUR_S, hour_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROUNDS = 10
"""Each round doubles the distance. Messages more than 1,024 steps below their root are left out."""
FEW = 2_000_000
"""Up to this many rows of numbers are broadcast. With more rows, both sides of a join are shuffled."""
FEW_WIDE = 1_000_000
"""Up to this many rows with texts are broadcast."""


class Hints(NamedTuple):
    """Chooses the join strategy for a DataFrame with about as many rows as there are replies."""

    size: int

    def __call__(self, rows: DataFrame) -> DataFrame:
        # A hash join avoids the sort. These rows are the build side, and each partition of them fits into memory.
        return F.broadcast(rows) if self.size <= FEW else rows.hint("shuffle_hash")

    def wide(self, rows: DataFrame) -> DataFrame:
        """The same for rows with texts. Many of them may not fit into memory, so a hash join is not forced."""
        return F.broadcast(rows) if self.size <= FEW_WIDE else rows


def build(inputs: Inputs) -> DataFrame:
    reach = math.ceil(inputs.settings.horizon_s / HOUR_S)
    replies = _replies(inputs.related)
    size, naming, asking = replies.agg(F.count("*"), F.count("correlation_id"), F.count("asked")).collect()[0]
    if not size:
        return driver_frame(inputs.spark, [], TABLE.own_ddl)
    hints = Hints(size)
    by_id = _pairs(inputs.wide, "id", replies, "correlation_id", reach, Hints(naming))
    requests = inputs.related.where(F.col("type") == REQUEST)
    by_request = _pairs(requests, "request_id", replies, "asked", reach, Hints(asking))
    pairs = _unique(by_id, by_request, inputs.hold)
    siblings = _siblings(pairs, replies, reach, hints, inputs.hold)
    links = pairs.select("seq", "parent", "parent_at")
    if siblings is not None:
        links = links.unionByName(siblings)
    tops = climbed(links, hints, inputs.hold)
    larger, size = inputs.hold(_larger(tops, siblings))
    trees = _trees_of_two(pairs)
    if size:
        of_two = tops.join(hints(larger), "root", "left_anti").select("seq")
        trees = _trees_of_two(pairs.join(hints(of_two), "seq", "left_semi"))
        members = _members(replies, tops.join(hints(larger), "root", "left_semi"), reach, hints)
        begun = _begun_by(pairs, siblings, inputs.related).join(hints(larger), "root", "left_semi")
        roots = begun.groupBy("root").agg(F.any_value("begun").alias("begun"))
        trees = trees.unionByName(_summed(members).join(roots, "root").drop("root"))
    return TABLE.shape(inputs.of_built_hours(_described(trees)))


def _hour_number() -> Expression:
    return hour_number("hour")


def _is_error() -> Expression:
    return (F.col("type") == "error").cast("int")


def _replies(related: DataFrame) -> DataFrame:
    """The messages that may have a parent."""
    answers = F.col("type").isin(*ANSWERS) & F.col("request_id").isNotNull()
    wanted = related.where(F.col("correlation_id").isNotNull() | answers)
    return wanted.select(
        *("seq", "topic", "sender", "placed", "correlation_id"),
        _is_error().alias("error"),
        _hour_number().alias("at"),
        F.when(answers, F.col("request_id")).alias("asked"),
    )


# Parents


def _pairs(targets: DataFrame, name: str, replies: DataFrame, column: str, reach: int, hints: Hints) -> DataFrame:
    """The replies whose `column` is the `name` of a target.

    `parent` is the number of the target, `parent_at` its hour, and `begun` its columns: it may be the root of a tree.
    """
    there = targets.where(F.col(name).isNotNull()).select(
        *("id", "correlation_id", "topic", "sender", "type", "placed", "hour"),
        F.col(name).alias("name"),
        F.col("seq").alias("parent"),
        _hour_number().alias("parent_at"),
        _key(name, 0).alias("key"),
    )
    pointers = replies.where(F.col(column).isNotNull()).select(
        *("seq", "at", _key(column, 0).alias("key"), _key(column, 1).alias("other_key")),
        F.col("correlation_id").alias("naming"),
        F.struct("topic", "sender", "error", "placed").alias("reply"),
    )
    # The join uses one hash; the second is compared afterwards. XOR prevents Spark from using both as join keys, which
    # is slower. The second hash of a target is computed only if the first one matched.
    met = there.join(hints.wide(pointers), "key").where(_key("name", 1).bitwiseXOR(F.col("other_key")) == 0)
    met = met.where(f"parent < seq and parent_at between at - {reach} and at + {reach}")
    return met.select("seq", "parent", "parent_at", "naming", "reply", _begun().alias("begun"))


def _key(name: str, seed: int) -> Expression:
    # Comparing numbers is much faster than comparing texts. Two texts with the same 128 bits do not occur in practice.
    return F.xxhash64(F.lit(seed), name)


def _begun() -> Expression:
    """The columns of a message that a conversation has if the message is its root."""
    named = F.coalesce("correlation_id", "id").alias("key")
    return F.struct("id", named, "topic", "sender", _is_error().alias("error"), "placed", "hour")


def _unique(by_id: DataFrame, by_request: DataFrame, hold: Hold) -> DataFrame:
    """One pair for each reply that has a parent."""
    # An answer often names its request twice, by the request id and by the correlation id.
    by_request = by_request.where(~F.col("naming").eqNullSafe(F.col("begun.id")))
    pairs = by_id.withColumn("by_id", F.lit(True)).unionByName(by_request.withColumn("by_id", F.lit(False)))
    pairs = hold(pairs.drop("naming")).rows
    several = hold(pairs.groupBy("seq").count().where("count > 1").select("seq"))
    if not several.size:
        return pairs
    best = Window.partitionBy("seq").orderBy(F.desc("by_id"), F.desc("parent"))
    chosen = pairs.join(several.rows, "seq", "left_semi").withColumn("rank", F.row_number().over(best))
    alone = pairs.join(several.rows, "seq", "left_anti")
    return hold(alone.unionByName(chosen.where("rank = 1").drop("rank"))).rows


def _siblings(pairs: DataFrame, replies: DataFrame, reach: int, hints: Hints, hold: Hold) -> DataFrame | None:
    """Replies without a pair, whose parent is the first message with the same correlation id; None if there are none.

    The columns are `seq`, `parent` and `parent_at`.
    """
    alone = replies.where(F.col("correlation_id").isNotNull()).join(hints(pairs.select("seq")), "seq", "left_anti")
    alone, lonely = hold(alone.select("seq", "at", "correlation_id"))
    return hold(_firsts(alone, replies, reach, hints)).rows if lonely else None


def _firsts(alone: DataFrame, replies: DataFrame, reach: int, hints: Hints) -> DataFrame:
    """For each message in `alone`, the first message with its correlation id, if that is another message.

    Works on the first message of each hour: any number of messages can share a correlation id, and joining them with
    each other would give too many pairs.
    """
    keyed = replies.select("seq", "at", "correlation_id")
    keyed = keyed.join(hints(alone.select("correlation_id").distinct()), "correlation_id", "left_semi")
    key = ["correlation_id", "at"]
    hourly = keyed.groupBy(*key).agg(F.min("seq").alias("parent"))
    seen_from = F.explode(F.sequence(F.col("at") - reach, F.col("at") + reach)).alias("at")
    seen = hourly.select("correlation_id", "parent", F.col("at").alias("parent_at"), seen_from)
    firsts = seen.groupBy(*key).agg(F.min("parent").alias("parent"), F.min_by("parent_at", "parent").alias("parent_at"))
    return alone.join(hints(firsts), key).where("parent < seq").select("seq", "parent", "parent_at")


# Trees


def climbed(links: DataFrame, hints: Hints, hold: Hold = checkpoint, rounds: int = ROUNDS) -> DataFrame:
    """`seq`, `parent`, `root`, the hour of the root, and the `steps` up to it, for all messages with a parent.

    Also the first and the last hour of the messages above.

    The method is pointer jumping: in each round, every pointer is replaced by the pointer of its target.
    """
    tops = links.select(
        "seq",
        "parent",
        F.col("parent").alias("root"),
        F.col("parent_at").alias("root_at"),
        F.lit(1).alias("steps"),
        F.col("parent_at").alias("lowest_at"),
        F.col("parent_at").alias("highest_at"),
    )
    for _ in range(rounds):
        above = tops.select(
            F.col("seq").alias("root"),
            F.col("root").alias("higher"),
            F.col("root_at").alias("higher_at"),
            F.col("steps").alias("more"),
            F.col("lowest_at").alias("lower"),
            F.col("highest_at").alias("later"),
        )
        if tops.join(hints(above), "root", "left_semi").isEmpty():
            return tops
        higher = F.col("higher").isNotNull()
        tops, _ = hold(
            tops.join(hints(above), "root", "left").select(
                "seq",
                "parent",
                F.coalesce("higher", "root").alias("root"),
                F.when(higher, F.col("higher_at")).otherwise(F.col("root_at")).alias("root_at"),
                (F.col("steps") + F.coalesce("more", F.lit(0))).alias("steps"),
                F.least("lowest_at", "lower").alias("lowest_at"),
                F.greatest("highest_at", "later").alias("highest_at"),
            )
        )
    below = tops.select(F.col("seq").alias("root"))
    return tops.join(hints(below), "root", "left_anti")


def _larger(tops: DataFrame, siblings: DataFrame | None) -> DataFrame:
    """The roots of trees that are more than one of `pairs`."""
    roots = tops.groupBy("root").count().where("count > 1").select("root")
    if siblings is None:
        return roots
    return roots.unionByName(tops.join(siblings.select("seq"), "seq", "left_semi").select("root")).distinct()


def _trees_of_two(pairs: DataFrame) -> DataFrame:
    """One row per tree. Most trees are a root and one reply, and need no aggregation."""
    return pairs.select(
        "begun",
        F.lit(2).alias("messages"),
        F.lit(2).alias("depth"),
        F.lit(1).alias("fan_out"),
        F.array("reply.sender").alias("senders"),
        F.array("reply.topic").alias("topics"),
        F.col("reply.placed").alias("ended"),
        F.col("reply.error").alias("errors"),
    )


def _members(replies: DataFrame, tops: DataFrame, reach: int, hints: Hints) -> DataFrame:
    """The replies in the trees of these roots."""
    members = replies.select("seq", "topic", "sender", "error", "placed", "at").join(hints(tops), "seq")
    return members.where(
        (F.least("at", "lowest_at") >= F.col("root_at") - reach)
        & (F.greatest("at", "highest_at") <= F.col("root_at") + reach)
    )


def _begun_by(pairs: DataFrame, siblings: DataFrame | None, related: DataFrame) -> DataFrame:
    """`root` and `begun` of all messages that have a child. There can be several rows for a message."""
    found = pairs.select(F.col("parent").alias("root"), "begun")
    if siblings is None:
        return found
    return found.unionByName(related.select(F.col("seq").alias("root"), _begun().alias("begun")))


def _summed(members: DataFrame) -> DataFrame:
    """Trees with more than two messages, one row each. Grouped by parent first, to count the children of each."""
    families = members.groupBy("root", "parent").agg(
        F.count("*").alias("children"),
        F.max("steps").alias("steps"),
        F.collect_set("sender").alias("senders"),
        F.collect_set("topic").alias("topics"),
        F.max("placed").alias("ended"),
        F.sum("error").alias("errors"),
    )
    return families.groupBy("root").agg(
        (F.sum("children") + 1).alias("messages"),
        (F.max("steps") + 1).alias("depth"),
        F.max("children").alias("fan_out"),
        F.flatten(F.collect_list("senders")).alias("senders"),
        F.flatten(F.collect_list("topics")).alias("topics"),
        F.max("ended").alias("ended"),
        F.sum("errors").alias("errors"),
    )


def _described(trees: DataFrame) -> DataFrame:
    began, ended = F.col("begun.placed"), F.greatest("ended", "begun.placed")
    return trees.select(
        F.col("begun.id").alias("root_id"),
        "begun.key",
        "begun.topic",
        "begun.sender",
        "messages",
        "depth",
        "fan_out",
        _distinct("senders", "begun.sender"),
        _distinct("topics", "begun.topic"),
        began.alias("began"),
        ended.alias("ended"),
        ((F.unix_micros(ended) - F.unix_micros(began)) / 1000).alias("total_ms"),
        (F.col("errors") + F.col("begun.error")).alias("errors"),
        "begun.hour",
    )


def _distinct(several: str, one: str) -> Expression:
    """The distinct values, sorted, null first."""
    first, other = F.col(one), F.col(several)[0]
    # Nearly always there are two values. Comparing them takes a tenth of the time of sorting.
    is_before = first.isNull() | (first < other)
    two = F.when(first.eqNullSafe(other), F.array(first)).when(is_before, F.array(first, other))
    sorted_ = F.sort_array(F.array_distinct(F.concat(F.col(several), F.array(one))))
    return F.when(F.size(several) == 1, two.otherwise(F.array(other, first))).otherwise(sorted_).alias(several)


TABLE = QueryTable(
    "conversations",
    SILVER,
    "A row is a tree of at least two messages that refer to each other: by correlation id, or as request and answer."
    " It includes messages within the horizon of its root",
    (
        Column("root_id", "string", "the message that began it"),
        Column("key", "string", "the correlation id of the root; its own id if it has none"),
        Column("topic", "string", "the topic of the root"),
        Column("sender", "string", "the sender of the root"),
        Column("messages", "bigint", "how many messages belong to it, with the root"),
        Column("depth", "int", "the number of messages in the longest chain from the root"),
        Column("fan_out", "bigint", "the largest number of messages that refer to one message"),
        Column("senders", "array<string>", "the senders, in order"),
        Column("topics", "array<string>", "the topics, in order"),
        Column("began", "timestamp", "where the root is placed"),
        Column("ended", "timestamp", "where the last message is placed"),
        Column("total_ms", "double", "from `began` to `ended`"),
        Column("errors", "bigint", "how many of the messages are errors"),
        Column("hour", "timestamp", "the hour of the root"),
    ),
    build,
    has_rows=lambda contents: contents.correlated or not contents.types.isdisjoint(ANSWERS),
    rules=(
        "The parent of a message has a lower number, and its hour is at most the horizon before or after that of the"
        " message",
        "It is the message whose `id` is the `correlation_id`, of several the one with the highest number; else, of a"
        " response or an error, the request with its `request_id` and the highest number; else the message with the"
        " same `correlation_id` and the lowest number",
        "A root has no parent. A message belongs to the tree of the root above it if its own hour, and those of all"
        " messages between, are at most the horizon before or after that of the root",
    ),
)
