"""Anomalies: minutes in which a topic differs from the minutes before, and topics that fall silent.

A minute is compared with the earlier minutes of the same hour that had traffic, if there are at least ten. A row
therefore depends only on its own hour. Anomalies in the first minutes of an hour are not detected, and a silence ends
with its hour.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column as Expression
from pyspark.sql import Window
from pyspark.sql import functions as F

from trunkline.spark.tables.table import GOLD, Column, Inputs, QueryTable
from trunkline.spark.tables.times import minute_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, WindowSpec

RATE, LATENCY, SILENCE = "rate", "latency", "silence"
PAST = 10
"""The number of earlier minutes that a comparison needs."""
FAR = 4.0
"""A value is unusual if it is more than this many standard deviations from the mean."""
LEAST_MESSAGES = 10
LEAST_MS = 10.0
"""Smaller differences are ignored, however steady the values were before."""
LEAST_SILENT = 3
STEADY = 0.1
"""The least standard deviation that is assumed for latencies, as a share of their mean."""


def build(inputs: Inputs) -> DataFrame:
    minutes = inputs.table("topic_minute").select("topic", "minute", "messages", "latency_p95_ms", "hour")
    rows = minutes.join(F.broadcast(_seen(inputs.traffic)), "hour")
    found = F.array(*(expression.alias("found") for expression in (_rate(), _latency(), _silence())))
    rows = rows.withColumn("found", F.array_compact(found))
    return TABLE.shape(rows.select("topic", "hour", F.inline("found")))


def _seen(traffic: DataFrame) -> DataFrame:
    """The last known minute of each hour. A publisher whose clock is ahead does not advance it."""
    last = F.least(F.max("placed"), F.max("accepted"))
    return traffic.groupBy("hour").agg(minute_of(last).alias("seen"))


def _rate() -> Expression:
    value, mean = F.col("messages"), F.avg("messages").over(_before())
    z = (value - mean) / _spread(F.stddev_pop("messages").over(_before()), mean)
    # The last known minute may be incomplete: a fall in it is not reported.
    falls = (value < mean) & (F.col("minute") < F.col("seen"))
    far = (F.abs(z) > FAR) & (F.abs(value - mean) >= LEAST_MESSAGES) & ((value > mean) | falls)
    return F.when(_has_past("messages") & far, _row(RATE, F.col("minute"), 1, value, mean, z))


def _latency() -> Expression:
    value, mean = F.col("latency_p95_ms"), F.avg("latency_p95_ms").over(_before())
    z = (value - mean) / F.greatest(F.stddev_pop("latency_p95_ms").over(_before()), mean * STEADY, F.lit(1.0))
    far = (z > FAR) & (value - mean >= LEAST_MS)
    return F.when(_has_past("latency_p95_ms") & far, _row(LATENCY, F.col("minute"), 1, value, mean, z))


def _silence() -> Expression:
    """No traffic after ten consecutive minutes with traffic, for longer than chance explains."""
    minute = F.col("minute")
    steady = F.lag("minute", PAST - 1).over(_of_topic()) == minute - F.expr(f"interval {PAST - 1} minutes")
    next_one = F.coalesce(F.lead("minute").over(_of_topic()), F.col("hour") + F.expr("interval 1 hour"))
    silent = F.timestamp_diff("MINUTE", minute, F.least(next_one, F.col("seen"))) - 1
    mean = F.avg("messages").over(_lately())
    missed = mean * silent
    z = -missed / (_spread(F.stddev_pop("messages").over(_lately()), mean) * F.sqrt(silent))
    long = (silent >= LEAST_SILENT) & (missed >= LEAST_MESSAGES) & (z < -FAR)
    return F.when(steady & long, _row(SILENCE, minute + F.expr("interval 1 minute"), silent, F.lit(0), missed, z))


def _of_topic() -> WindowSpec:
    return Window.partitionBy("topic", "hour").orderBy("minute")


def _before() -> WindowSpec:
    return _of_topic().rowsBetween(Window.unboundedPreceding, -1)


def _lately() -> WindowSpec:
    return _of_topic().rowsBetween(1 - PAST, 0)


def _has_past(name: str) -> Expression:
    return F.count(name).over(_before()) >= PAST


def _spread(deviation: Expression, mean: Expression) -> Expression:
    """The usual deviation of counts: at least the square root of the mean, as for random arrivals."""
    return F.greatest(deviation, F.sqrt(mean))


def _row(
    what: str, minute: Expression, minutes: Expression | int, value: Expression, expected: Expression, z: Expression
) -> Expression:
    lasted = F.lit(minutes) if isinstance(minutes, int) else minutes
    return F.struct(
        F.lit(what).alias("what"),
        minute.alias("minute"),
        lasted.cast("int").alias("minutes"),
        value.cast("double").alias("value"),
        expected.cast("double").alias("expected"),
        z.alias("z"),
    )


TABLE = QueryTable(
    "anomalies",
    GOLD,
    "A row is a minute in which a topic behaved unusually, compared with the earlier minutes of the same hour, if there"
    " are at least ten",
    (
        Column("topic", "string", "the topic"),
        Column("minute", "timestamp", "the minute, or the first one of a silence"),
        Column(
            "what", "string", f"{RATE} (more or fewer messages), {LATENCY} (slower answers), or {SILENCE} (no messages)"
        ),
        Column("minutes", "int", "how long a silence lasted, within the hour; otherwise 1"),
        Column(
            "value", "double", f"messages, or the 95th percentile of the {LATENCY} in milliseconds; 0 in a {SILENCE}"
        ),
        Column("expected", "double", f"the mean of that before; in a {SILENCE}, how many messages were expected"),
        Column("z", "double", f"how many standard deviations lie between the two; {FAR:g} are usual"),
        Column("hour", "timestamp", "the hour of the minute"),
    ),
    build,
    needs=("topic_minute",),
    has_rows=lambda contents: contents.minutes >= PAST,
    rules=(
        f"{RATE}: the past of a minute is the earlier minutes of its hour with messages on the topic, at least {PAST}."
        f" The spread is the larger of their standard deviation (of a population) and the root of their mean. There is"
        f" a row if `z` is beyond {FAR:g} and the difference is at least {LEAST_MESSAGES} messages; a fall counts only"
        " before the last minute of the hour that is known, which is that of the last `placed` of its messages on any"
        " topic, or of their last `accepted` if that is earlier",
        f"{LATENCY}: the past is the earlier minutes of its hour with a latency, at least {PAST}. The spread is the"
        f" largest of their standard deviation, a tenth of their mean, and 1 ms. There is a row if `z` is above"
        f" {FAR:g} and the difference is at least {LEAST_MS:g} ms",
        f"{SILENCE}: after {PAST} minutes in a row with messages, at least {LEAST_SILENT} without, before the next"
        f" message, the end of the hour and its last minute that is known. The spread is that of the rate in these"
        f" {PAST} minutes, times the root of the silent minutes. There is a row if `z` is below -{FAR:g} and at least"
        f" {LEAST_MESSAGES} messages were expected",
    ),
)
