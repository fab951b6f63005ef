"""Percentiles that can be merged: minutes into hours, hours into days.

A sketch is how many values there were of each size: an array of buckets, each 2 % wide, so a percentile is right to
1 %, whatever the values are and however often sketches were merged. The same values give the same sketch, in any order
and on any number of machines. Spark's own (KLL) draw lots when they have more than some hundred values: a table that
is made twice would differ, and the 99th percentile may be anything from the 97th to the greatest.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from trunkline.spark.tables.table import Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TYPE = "array<struct<bucket:int,count:bigint>>"
PERCENTS = (50, 95, 99)
PER_E = 50
"""A bucket reaches from e^((bucket - 1) / 50) to e^(bucket / 50) microseconds."""
NONE_AT_ALL = -1
"""The bucket of what took no time."""
SUFFIX = "_sketch"
TOTAL = "_total"


def bucket(micros: Expression) -> Expression:
    """Of a number of microseconds; what is negative counts as 0, and null has none."""
    return F.when(micros >= 1, F.ceil(F.log(micros) * PER_E)).when(micros < 1, NONE_AT_ALL).cast("int")


def bucket_of_ms(name: str) -> Expression:
    """Of a column in milliseconds, as `bucket`."""
    return bucket(F.round(F.col(name) * 1000)).alias("bucket")


def gathered(stem: str, of: Expression | None = None) -> list[Expression]:
    """`{stem}_sketch` of rows of `bucket` and `count`, all or those `of` which this is true, as aggregates."""
    present = F.col("bucket").isNotNull() if of is None else F.col("bucket").isNotNull() & of
    entry = F.struct(F.col("bucket"), F.col("count"))
    total = F.sum(F.when(present, F.col("count")))
    entries = F.when(total > 0, F.sort_array(F.collect_list(F.when(present, entry)))).cast(TYPE)
    # The total goes with it: looked up in the sketch, it would be summed up again at each of its steps.
    return [entries.alias(stem + SUFFIX), total.alias(stem + TOTAL)]


def percentiles(stem: str) -> list[Expression]:
    """`{stem}_p50_ms` and so on, out of what was gathered."""
    return [_at(stem, percent).alias(f"{stem}_p{percent}_ms") for percent in PERCENTS]


def columns(stem: str, of: str) -> tuple[Column, ...]:
    """What a table says of its percentiles."""
    described = (
        Column(f"{stem}_p{percent}_ms", "double", f"the {percent}th percentile of {of}") for percent in PERCENTS
    )
    return (*described, Column(stem + SUFFIX, TYPE, f"{of}: how many by size, to be merged over longer times"))


def merged(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """By these keys: the percentiles and sketches of all sketches in these rows.

    `merged(table.withColumn("day", F.date_trunc("day", "minute")), ["topic", "day"])`
    """
    stems = [name.removesuffix(SUFFIX) for name in rows.columns if name.endswith(SUFFIX)]
    parts = [_merged(rows, list(keys), stem) for stem in stems]
    return reduce(lambda left, right: left.join(right, list(keys), "left"), parts, rows.select(*keys).distinct())


def _merged(rows: DataFrame, keys: list[str], stem: str) -> DataFrame:
    entries = rows.select(*keys, F.inline(stem + SUFFIX)).groupBy(*keys, "bucket").agg(F.sum("count").alias("count"))
    return entries.groupBy(*keys).agg(*gathered(stem)).select(*keys, *percentiles(stem), stem + SUFFIX)


def _at(stem: str, percent: int) -> Expression:
    """The middle of the bucket in which the value is that so many percent are not above."""
    rank = F.col(stem + TOTAL) * percent

    def step(state: Expression, entry: Expression) -> Expression:
        seen = state["seen"] + entry["count"]
        found = F.coalesce(state["bucket"], F.when(seen * 100 >= rank, entry["bucket"]))
        return F.struct(seen.alias("seen"), found.alias("bucket"))

    start = F.struct(F.lit(0).cast("bigint").alias("seen"), F.lit(None).cast("int").alias("bucket"))
    return F.aggregate(stem + SUFFIX, start, step, lambda state: _middle_ms(state["bucket"]))


def _middle_ms(bucket: Expression) -> Expression:
    return F.when(bucket == NONE_AT_ALL, 0.0).otherwise(F.exp((bucket - 0.5) / PER_E) / 1000)
