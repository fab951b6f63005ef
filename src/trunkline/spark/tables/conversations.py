"""Conversations: trees of messages that answer each other.

The parent of a message is the one whose id is its `correlation_id`; else, of an answer, its request; else the first
message with the same `correlation_id`, which then stands for whatever they all refer to. A parent came before (by
`seq`), so there are no circles; its hour is not after that of the child, and at most the horizon before it. A tree is
what hangs on a message without a parent, up to the horizon after it.

So whether a message begins a tree, and what belongs to it, is known from the hours around it: the rows of an hour are
the same whatever else is made with it, as long as the earlier hours that its messages refer to are there, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from trunkline.spark.tables.table import SILVER, Column, Inputs, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROUNDS = 10
"""Each looks twice as far up as the one before: what is more than 1,024 steps below its root is left out."""
FEW = 200_000
"""So many rows are sent to all who join with them; if there are more, both sides are sorted."""
HOUR_S = 3600
BY_ID, BY_REQUEST = "i", "r"
"""What a message is found by: its id, or that of the request it makes."""
PLACE = "struct<at: bigint, seq: bigint>"

Hint = Callable[["DataFrame"], "DataFrame"]


def build(inputs: Inputs) -> DataFrame:
    reach = math.ceil(inputs.settings.horizon_s / HOUR_S)
    # Mostly they are few, and all that follows is about them: so they are looked for once.
    replies = _replies(inputs.nearby).localCheckpoint()
    count = replies.count()
    if not count:
        return inputs.spark.createDataFrame([], TABLE.ddl)
    hint: Hint = F.broadcast if count <= FEW else _as_it_is
    tops = climbed(_links(inputs.nearby, replies, reach, hint), hint)
    members = replies.select("seq", "topic", "sender", "error", "placed", "at").join(hint(tops), "seq")
    trees = _roots(inputs).join(hint(members), "root").where(F.col("at") <= F.col("begun.at") + reach)
    return TABLE.shape(_summed(trees))


def _as_it_is(rows: DataFrame) -> DataFrame:
    return rows


def _hour_number() -> Expression:
    return F.expr(f"unix_seconds(hour) div {HOUR_S}").alias("at")


def _is_error() -> Expression:
    return (F.col("type") == "error").cast("int").alias("error")


def _replies(nearby: DataFrame) -> DataFrame:
    """The messages that may have a parent, and no more of them than is needed."""
    answers = F.col("type").isin("response", "error") & F.col("request_id").isNotNull()
    wanted = nearby.where(F.col("correlation_id").isNotNull() | answers)
    asked = F.when(answers, F.col("request_id")).alias("asked")
    return wanted.select("seq", "topic", "sender", "placed", "correlation_id", _is_error(), _hour_number(), asked)


# Parents


def _links(nearby: DataFrame, replies: DataFrame, reach: int, hint: Hint) -> DataFrame:
    """`seq`, and that of its `parent`, of all that have one."""
    asked = F.when(F.col("type") == "request", F.col("request_id")).alias("asked")
    named = nearby.select("seq", "id", _hour_number(), asked)
    place = F.struct("at", "seq").alias("place")
    targets = named.select(place, F.inline(_names("id", "asked")))
    pointers = replies.select("seq", "at", F.inline(_names("correlation_id", "asked")))
    near = (F.col("place.seq") < F.col("seq")) & F.col("place.at").between(F.col("at") - reach, F.col("at"))
    found = targets.join(hint(pointers), ["kind", "name"]).where(near)
    by_name = found.select(
        "seq",
        F.when(F.col("kind") == BY_ID, F.col("place")).alias("by_id"),
        F.when(F.col("kind") == BY_REQUEST, F.col("place")).alias("by_request"),
        F.lit(None).cast("bigint").alias("first"),
    )
    nowhere = F.lit(None).cast(PLACE)
    by_key = _firsts(replies, reach).select("seq", nowhere.alias("by_id"), nowhere.alias("by_request"), "first")
    # Of several requests with one id the last is meant.
    best = F.coalesce(F.max("by_id")["seq"], F.max("by_request")["seq"], F.min("first"))
    return by_name.unionByName(by_key).groupBy("seq").agg(best.alias("parent"))


def _names(id: str, asked: str) -> Expression:
    """By what a message is found, or what it points to."""
    both = F.array(
        F.struct(F.lit(BY_ID).alias("kind"), F.col(id).alias("name")),
        F.struct(F.lit(BY_REQUEST).alias("kind"), F.col(asked).alias("name")),
    )
    return F.filter(both, lambda each: each["name"].isNotNull())


def _firsts(replies: DataFrame, reach: int) -> DataFrame:
    """Of each message the `first` with its correlation id, if that is not itself.

    Hour by hour: there may be any number of messages with one correlation id, and they must not be paired.
    """
    keyed = replies.where(F.col("correlation_id").isNotNull()).select("seq", "at", "correlation_id")
    key = ["correlation_id", "at"]
    hourly = keyed.groupBy(*key).agg(F.min("seq").alias("first"))
    seen_from = F.explode(F.sequence(F.col("at"), F.col("at") + reach)).alias("at")
    firsts = hourly.select("correlation_id", "first", seen_from).groupBy(*key).agg(F.min("first").alias("first"))
    return keyed.join(firsts, key).where("first < seq").select("seq", "first")


# Trees


def climbed(links: DataFrame, hint: Hint = _as_it_is, rounds: int = ROUNDS) -> DataFrame:
    """`seq`, `parent`, `root` and the `steps` up to it, of all that have a parent.

    By pointer jumping: in each round everybody takes over from the one it points to where that points.
    """
    tops = links.select("seq", "parent", F.col("parent").alias("root"), F.lit(1).alias("steps")).localCheckpoint()
    for _ in range(rounds):
        above = tops.select(F.col("seq").alias("root"), F.col("root").alias("higher"), F.col("steps").alias("more"))
        moved = tops.join(hint(above), "root", "left").select(
            "seq",
            "parent",
            F.coalesce("higher", "root").alias("root"),
            (F.col("steps") + F.coalesce("more", F.lit(0))).alias("steps"),
            F.col("higher").isNotNull().alias("moved"),
        )
        moved = moved.localCheckpoint()
        tops = moved.drop("moved")
        if moved.where("moved").isEmpty():
            return tops
    below = tops.select(F.col("seq").alias("root"))
    return tops.join(hint(below), "root", "left_anti").select("seq", "parent", "root", "steps")


def _roots(inputs: Inputs) -> DataFrame:
    about = F.struct(
        "id",
        F.coalesce("correlation_id", "id").alias("key"),
        "topic",
        "sender",
        _is_error(),
        "placed",
        "hour",
        _hour_number(),
    )
    return inputs.messages.select(F.col("seq").alias("root"), about.alias("begun"))


def _summed(members: DataFrame) -> DataFrame:
    """A row per tree. First by parent, to see how many children each has."""
    families = members.groupBy("root", "parent").agg(
        F.first("begun").alias("begun"),
        F.count("*").alias("children"),
        F.max("steps").alias("steps"),
        F.collect_set("sender").alias("senders"),
        F.collect_set("topic").alias("topics"),
        F.max("placed").alias("ended"),
        F.sum("error").alias("errors"),
    )
    trees = families.groupBy("root").agg(
        F.first("begun").alias("begun"),
        (F.sum("children") + 1).alias("messages"),
        (F.max("steps") + 1).alias("depth"),
        F.max("children").alias("fan_out"),
        F.flatten(F.collect_list("senders")).alias("senders"),
        F.flatten(F.collect_list("topics")).alias("topics"),
        F.max("ended").alias("ended"),
        F.sum("errors").alias("errors"),
    )
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
    return F.array_sort(F.array_distinct(F.concat(F.col(several), F.array(one)))).alias(several)


TABLE = Table(
    "conversations",
    SILVER,
    "A row is a tree of at least two messages that refer to each other: by correlation id, or as request and answer."
    " It ends at the horizon after its root",
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
)
