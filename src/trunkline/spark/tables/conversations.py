"""Conversations: trees of messages that answer each other.

The parent of a message is the one whose id is its `correlation_id`; else, of an answer, its request; else the first
message with the same `correlation_id`, which then stands for whatever they all refer to. A parent came before (by
`seq`), so there are no circles. Its hour is at most the horizon before that of the child, or after it: a clock that is
behind places an answer before its request. A tree is what hangs on a message without a parent, as long as all messages
on the way lie within the horizon of that one.

So whether a message begins a tree is known from the hours around it, and what belongs to it from those around these:
the rows of an hour are the same whatever else is made with it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.spark.tables.requests import ANSWERS
from trunkline.spark.tables.table import SILVER, BuiltTable, Column, Held, Hold, Inputs, checkpoint
from trunkline.spark.tables.times import HOUR_S, hour_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROUNDS = 10
"""Each looks twice as far up as the one before: what is more than 1,024 steps below its root is left out."""
FEW = 2_000_000
"""So many rows of numbers are sent to all who join with them; if there are more, both sides are divided by them."""


class Hints(NamedTuple):
    """How rows are joined that are of the size of the replies."""

    size: int

    def __call__(self, rows: DataFrame) -> DataFrame:
        # Not by sorting: these are what is looked up, and they fit into memory part by part.
        return F.broadcast(rows) if self.size <= FEW else rows.hint("shuffle_hash")


def build(inputs: Inputs) -> DataFrame:
    reach = math.ceil(inputs.settings.horizon_s / HOUR_S)
    # Mostly they are few, and all that follows is about them: so they are looked for once.
    replies, size = inputs.hold(_replies(inputs.wide))
    hints = Hints(size)
    if not hints.size:
        return driver_frame(inputs.spark, [], TABLE.own_ddl)
    tops = climbed(_links(inputs, replies, reach, hints), hints, inputs.hold)
    members = replies.select("seq", "topic", "sender", "error", "placed", "at").join(hints(tops), "seq")
    members = members.where(
        (F.least("at", "lowest_at") >= F.col("root_at") - reach)
        & (F.greatest("at", "highest_at") <= F.col("root_at") + reach)
    )
    return TABLE.shape(
        _described(_trees(members, inputs.hold(_larger(tops)), hints).join(_roots(inputs, tops, hints), "root"))
    )


def _hour_number() -> Expression:
    return hour_number("hour").alias("at")


def _is_error() -> Expression:
    return (F.col("type") == "error").cast("int").alias("error")


def _replies(nearby: DataFrame) -> DataFrame:
    """The messages that may have a parent, and no more of them than is needed."""
    answers = F.col("type").isin(*ANSWERS) & F.col("request_id").isNotNull()
    wanted = nearby.where(F.col("correlation_id").isNotNull() | answers)
    asked = F.when(answers, F.col("request_id")).alias("asked")
    return wanted.select("seq", "topic", "sender", "placed", "correlation_id", _is_error(), _hour_number(), asked)


# Parents


def _links(inputs: Inputs, replies: DataFrame, reach: int, hints: Hints) -> DataFrame:
    """`seq`, and of all that have a `parent` that, and its hour."""
    asked = inputs.wide.where("type = 'request'")
    by_id = _found(inputs.wide, "id", replies, "correlation_id", reach, hints)
    by_request = _found(asked, "request_id", replies, "asked", reach, hints)
    nowhere = F.lit(None).cast("bigint")
    found = by_id.select("seq", F.col("there").alias("by_id"), nowhere.alias("by_request"), "there_at").unionByName(
        by_request.select("seq", nowhere.alias("by_id"), F.col("there").alias("by_request"), "there_at")
    )
    # Of several requests with one id the last is meant.
    best = found.groupBy("seq").agg(
        F.max("by_id").alias("by_id"),
        F.max_by("there_at", "by_id").alias("id_at"),
        F.max("by_request").alias("by_request"),
        F.max_by("there_at", "by_request").alias("request_at"),
    )
    parent_at = F.when(F.col("by_id").isNotNull(), F.col("id_at")).otherwise(F.col("request_at")).alias("parent_at")
    by_name = inputs.hold(best.select("seq", F.coalesce("by_id", "by_request").alias("parent"), parent_at)).rows
    alone = replies.where(F.col("correlation_id").isNotNull()).join(hints(by_name), "seq", "left_anti")
    alone, lonely = inputs.hold(alone.select("seq", "at", "correlation_id"))
    if not lonely:
        return by_name
    return by_name.unionByName(_firsts(alone, replies, reach, hints))


def _found(targets: DataFrame, name: str, replies: DataFrame, column: str, reach: int, hints: Hints) -> DataFrame:
    """The replies that name a target: `seq`, and `there`, the number of the target, with its hour."""
    there = targets.where(F.col(name).isNotNull()).select(
        F.col("seq").alias("there"), _hour_number().alias("there_at"), *_key(name, "key", "more")
    )
    pointers = replies.where(F.col(column).isNotNull()).select("seq", "at", *_key(column, "key", "same"))
    # Looked up by one number, and compared by the other: not said as such, or both would be looked up, more slowly.
    met = there.join(hints(pointers), "key").where("(more ^ same) = 0")
    return met.where(f"there < seq and there_at between at - {reach} and at + {reach}").select(
        "seq", "there", "there_at"
    )


def _key(name: str, one: str, other: str) -> list[Expression]:
    # Numbers are compared far faster than texts; and that two texts share 128 bits does not happen.
    return [F.xxhash64(name).alias(one), F.xxhash64(F.lit(1), name).alias(other)]


def _firsts(alone: DataFrame, replies: DataFrame, reach: int, hints: Hints) -> DataFrame:
    """For those `alone` the first message with their correlation id, if that is not themselves.

    Hour by hour: there may be any number of messages with one correlation id, and they must not be paired.
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
    """`seq`, `parent`, `root`, the hour of that, and the `steps` up to it, of all that have a parent.

    Also the first and the last hour of those above.

    By pointer jumping: in each round everybody takes over from the one it points to where that points.
    """
    tops, _ = hold(
        links.select(
            "seq",
            "parent",
            F.col("parent").alias("root"),
            F.col("parent_at").alias("root_at"),
            F.lit(1).alias("steps"),
            F.col("parent_at").alias("lowest_at"),
            F.col("parent_at").alias("highest_at"),
        )
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


def _roots(inputs: Inputs, tops: DataFrame, hints: Hints) -> DataFrame:
    about = F.struct(
        "id",
        F.coalesce("correlation_id", "id").alias("key"),
        "topic",
        "sender",
        _is_error(),
        "placed",
        "hour",
    )
    found = inputs.messages.join(hints(tops.select(F.col("root").alias("seq"))), "seq", "left_semi")
    return found.select(F.col("seq").alias("root"), about.alias("begun"))


def _larger(tops: DataFrame) -> DataFrame:
    """The roots of trees of more than two."""
    return tops.groupBy("root").count().where("count > 1").select("root")


def _trees(members: DataFrame, larger: Held, hints: Hints) -> DataFrame:
    """A row per tree."""
    # Most are a message and one that refers to it. To put together what is only one costs as much as all the rest.
    pairs = members.join(hints(larger.rows), "root", "left_anti") if larger.size else members
    alone = pairs.select(
        "root",
        F.lit(2).alias("messages"),
        F.lit(2).alias("depth"),
        F.lit(1).alias("fan_out"),
        F.array("sender").alias("senders"),
        F.array("topic").alias("topics"),
        F.col("placed").alias("ended"),
        F.col("error").alias("errors"),
    )
    if not larger.size:
        return alone
    return alone.unionByName(_summed(members.join(hints(larger.rows), "root", "left_semi")))


def _summed(members: DataFrame) -> DataFrame:
    """Trees with several: first by parent, to see how many children each has."""
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
    return F.sort_array(F.array_distinct(F.concat(F.col(several), F.array(one)))).alias(several)


TABLE = BuiltTable(
    "conversations",
    SILVER,
    "A row is a tree of at least two messages that refer to each other: by correlation id, or as request and answer."
    " It holds what lies within the horizon of its root",
    (
        Column("root_id", "string", "the message that began it"),
        Column("key", "string", "what that refers to, if it has a correlation id; otherwise its own id"),
        Column("topic", "string", "the topic of the root"),
        Column("sender", "string", "the sender of the root"),
        Column("messages", "bigint", "how many messages belong to it, with the root"),
        Column("depth", "int", "how many messages the longest chain from the root has"),
        Column("fan_out", "bigint", "how many messages refer to one, at the most"),
        Column("senders", "array<string>", "who took part, in order"),
        Column("topics", "array<string>", "on which topics, in order"),
        Column("began", "timestamp", "where the root is placed"),
        Column("ended", "timestamp", "where the last message is placed"),
        Column("total_ms", "double", "from the one to the other"),
        Column("errors", "bigint", "how many of the messages are errors"),
        Column("hour", "timestamp", "the hour of the root"),
    ),
    build,
    has_rows=lambda contents: contents.correlated or not contents.types.isdisjoint(ANSWERS),
    rules=(
        "The parent of a message has a lower number, and its hour is at most the horizon before or after that of the"
        " message",
        "It is the message whose `id` is the `correlation_id`; else, of a response or an error, the request with its"
        " `request_id` and the highest number; else the message with the same `correlation_id` and the lowest number",
        "A root has no parent. A message belongs to the tree of the root above it if its own hour, and those of all"
        " messages between, are at most the horizon before or after that of the root",
    ),
)
