"""The figures of a report: a few thousand values that Spark has aggregated, as plain Python."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as F

from trunkline.plural import counted
from trunkline.spark.pipeline.views import table
from trunkline.spark.tables.related import ANSWERS
from trunkline.spark.tables.requests import ANSWERED
from trunkline.spark.tables.sketches import PERCENTS, merged

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TOPICS = 7
"""The number of series with their own colour; the others are combined."""
TALKERS = 12
LINKS = 40
FAILURES = 12
BARS = 30
OTHERS = "others"
BINS = 120


class Talker(NamedTuple):
    name: str
    messages: int
    bytes: int


class FailureGroup(NamedTuple):
    fingerprint: str
    cause: str
    reason: str
    subscribers: str
    letters: int
    first: str
    last: str


class Bar(NamedTuple):
    """One message of the waterfall: milliseconds from the beginning of its conversation."""

    label: str
    start_ms: float
    end_ms: float
    failed: bool


class MessageFlow(NamedTuple):
    source: str
    topic: str
    target: str
    messages: int


class Alarm(NamedTuple):
    topic: str
    subscriber: str
    hour: str
    unaccounted: int


class Figures(NamedTuple):
    made: str
    since: str
    until: str
    messages: int
    bytes: int
    senders: int
    topics: int
    requests: int
    answered: int
    without_latency: dict[str, int]
    """Unanswered requests by outcome. The latency does not include them."""
    dead: int
    start_s: int
    """The start of the charts over time, in seconds since 1970; their bins are `bin_s` wide."""
    bin_s: int
    bins: int
    traffic: dict[str, list[int]]
    """Messages in each bin, by topic; the busiest first."""
    latency: dict[str, list[float | None]]
    """Milliseconds in each bin: p50, p95, p99."""
    talkers: list[Talker]
    failures: list[FailureGroup]
    waterfall: list[Bar]
    waterfall_of: str
    links: list[MessageFlow]
    alarms: list[Alarm]
    removed: dict[str, int]
    """By topic: messages that retention removed before the pipeline read them. No other figure includes them."""
    slow: list[tuple[str, str, float, int]]


def gather(spark: SparkSession, warehouse: str | Path, since: datetime | None, until: datetime | None) -> Figures:
    def of(name: str) -> DataFrame:
        return table(spark, warehouse, name, since=since, until=until)

    minutes = of("topic_minute")
    span = minutes.agg(
        F.min(F.unix_seconds("minute")).alias("first"),
        F.max(F.unix_seconds("minute")).alias("last"),
        F.sum("messages").alias("messages"),
        F.sum("bytes").alias("bytes"),
        F.countDistinct("topic").alias("topics"),
    ).first()
    assert span is not None
    first, last = span["first"] or 0, span["last"] or 0
    bin_s = _width(last - first + 60)
    start_s = first - first % bin_s
    bins = (last - start_s) // bin_s + 1
    outcomes = {row["outcome"]: row["count"] for row in of("requests").groupBy("outcome").count().collect()}
    talkers = _talkers(of("sender_minute"))
    failures, dead = _failures(of("dead_letters"))
    waterfall_of, waterfall = _waterfall(of("conversations"), of("messages"))
    return Figures(
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        since=_clock(first),
        until=_clock(last + 60),
        messages=span["messages"] or 0,
        bytes=span["bytes"] or 0,
        senders=of("sender_minute").select("sender").distinct().count(),
        topics=span["topics"] or 0,
        requests=sum(outcomes.values()),
        answered=outcomes.pop(ANSWERED, 0),
        without_latency=outcomes,
        dead=dead,
        start_s=start_s,
        bin_s=bin_s,
        bins=bins,
        traffic=_traffic(minutes, start_s, bin_s, bins),
        latency=_latency(minutes, start_s, bin_s, bins),
        talkers=talkers,
        failures=failures,
        waterfall=waterfall,
        waterfall_of=waterfall_of,
        links=_links(of("deliveries")),
        alarms=_alarms(of("accounting")),
        removed=_removed(of("accounting")),
        slow=_slow(of("slow_consumers")),
    )


def _clock(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def _width(span_s: int) -> int:
    """The width of a bin: a round number of minutes that gives a suitable number of bins."""
    for minutes in (1, 2, 5, 10, 15, 30, 60, 120, 240, 480, 1440):
        if span_s <= minutes * 60 * BINS:
            return minutes * 60
    return 86_400 * (1 + span_s // (86_400 * BINS))


def _bin(column: str, start_s: int, bin_s: int) -> Column:
    return F.expr(f"cast((unix_seconds({column}) - {start_s}) div {bin_s} as int)")


def _traffic(minutes: DataFrame, start_s: int, bin_s: int, bins: int) -> dict[str, list[int]]:
    # Reply topics are left out: there are many of them, and they carry no information.
    own = F.col("topic").startswith("_")
    minutes = minutes.withColumn("topic", F.when(own, F.substring_index("topic", ".", 1)).otherwise(F.col("topic")))
    busiest = [
        row["topic"]
        for row in minutes.groupBy("topic").agg(F.sum("messages").alias("n")).orderBy(F.desc("n"), "topic").take(TOPICS)
    ]
    name = F.when(F.col("topic").isin(busiest), F.col("topic")).otherwise(F.lit(OTHERS))
    rows = (
        minutes.groupBy(name.alias("name"), _bin("minute", start_s, bin_s).alias("bin"))
        .agg(F.sum("messages").alias("n"))
        .collect()
    )
    found: dict[str, list[int]] = {topic: [0] * bins for topic in busiest}
    for row in rows:
        found.setdefault(row["name"], [0] * bins)[row["bin"]] = row["n"]
    return found


def _latency(minutes: DataFrame, start_s: int, bin_s: int, bins: int) -> dict[str, list[float | None]]:
    """The percentiles from `topic_minute` for all topics, merged into bins."""
    binned = minutes.where("latency_sketch is not null").select(
        _bin("minute", start_s, bin_s).alias("bin"), "latency_sketch"
    )
    names = {f"p{percent}": f"latency_p{percent}_ms" for percent in PERCENTS}
    found: dict[str, list[float | None]] = {name: [None] * bins for name in names}
    for row in merged(binned, ["bin"]).collect():
        for name, column in names.items():
            found[name][row["bin"]] = row[column]
    return found


def _talkers(senders: DataFrame) -> list[Talker]:
    rows = senders.groupBy("sender").agg(F.sum("messages").alias("n"), F.sum("bytes").alias("b"))
    return [Talker(row["sender"], row["n"], row["b"]) for row in rows.orderBy(F.desc("n"), "sender").take(TALKERS)]


def _failures(letters: DataFrame) -> tuple[list[FailureGroup], int]:
    from trunkline.spark.tables.dead_letters import failures

    rows = failures(letters).orderBy(F.desc("count"), "fingerprint").take(FAILURES)
    found = [
        FailureGroup(
            row["fingerprint"],
            row["cause"] or "",
            row["reason"] or "",
            ", ".join(sorted(row["subscribers"])),
            row["count"],
            _clock(row["first_s"]),
            _clock(row["last_s"]),
        )
        for row in (_with_seconds(each) for each in rows)
    ]
    return found, letters.count()


def _with_seconds(row: Any) -> dict[str, Any]:
    values: dict[str, Any] = row.asDict()
    for name in ("first", "last"):
        moment = values[f"{name}_seen"]
        values[f"{name}_s"] = int(moment.timestamp()) if moment is not None else 0
    return values


def _waterfall(conversations: DataFrame, messages: DataFrame) -> tuple[str, list[Bar]]:
    """The conversation with the most messages; of several, the one that took longest."""
    chosen = conversations.orderBy(F.desc("messages"), F.desc("total_ms"), "key").first()
    if chosen is None:
        return "", []
    key, root = chosen["key"], chosen["root_id"]
    began = F.lit(chosen["began"])
    direct = (F.col("id") == F.lit(root)) | (F.col("correlation_id") == F.lit(key))
    ids = [row["id"] for row in messages.where(direct).orderBy("seq").select("id").take(BARS)]
    asked = [row["request_id"] for row in messages.where(direct & F.col("request_id").isNotNull()).take(BARS)]
    part = direct | F.col("correlation_id").isin(ids) | F.col("request_id").isin(asked)
    rows = (
        messages.where(part)
        .orderBy("seq")
        .select(
            "topic",
            "sender",
            "type",
            ((F.unix_micros("placed") - F.unix_micros(began)) / 1000).alias("at_ms"),
            ((F.unix_micros("accepted") - F.unix_micros(began)) / 1000).alias("accepted_ms"),
            "request_id",
        )
        .take(BARS)
    )
    ends = {row["request_id"]: row["accepted_ms"] for row in rows if row["type"] in ANSWERS}
    return f"{chosen['topic']} ({key})", [
        Bar(
            f"{row['type']} {row['topic']} by {row['sender']}",
            row["at_ms"],
            max(
                ends.get(row["request_id"], row["accepted_ms"]) if row["type"] == "request" else row["accepted_ms"],
                row["at_ms"],
            ),
            row["type"] == "error",
        )
        for row in rows
    ]


def _links(deliveries: DataFrame) -> list[MessageFlow]:
    rows = (
        deliveries.where("fate = 'delivered'")
        .groupBy("sender", "topic", "subscriber")
        .agg(F.count("*").alias("n"))
        .orderBy(F.desc("n"), "sender", "topic", "subscriber")
        .take(LINKS)
    )
    return [MessageFlow(row["sender"], row["topic"], row["subscriber"], row["n"]) for row in rows]


def _alarms(accounting: DataFrame) -> list[Alarm]:
    rows = accounting.where("unaccounted <> 0").orderBy(F.desc(F.abs("unaccounted")), "topic").take(FAILURES)
    return [
        # Spark returns times in the time zone of this machine.
        Alarm(row["topic"], row["subscriber"], _clock(int(row["hour"].timestamp())), row["unaccounted"])
        for row in rows
    ]


def _removed(accounting: DataFrame) -> dict[str, int]:
    rows = accounting.where("removed > 0").groupBy("topic").agg(F.sum("removed").alias("n"))
    return {row["topic"]: row["n"] for row in rows.orderBy(F.desc("n"), "topic").collect()}


def _slow(consumers: DataFrame) -> list[tuple[str, str, float, int]]:
    rows = (
        consumers.groupBy("subscriber")
        .agg(
            F.count("*").alias("minutes"),
            F.max("lag_p99_ms").alias("worst"),
            F.sum("dropped").alias("dropped"),
        )
        .orderBy(F.desc("minutes"), "subscriber")
        .take(FAILURES)
    )
    return [(row["subscriber"], counted(row["minutes"], "minute"), row["worst"] or 0.0, row["dropped"]) for row in rows]
