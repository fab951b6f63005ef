"""Percentiles that can be merged: minutes into hours, hours into days.

A sketch counts values by size, in an array of buckets. Each bucket is 2 % wide, so a percentile is accurate to 1 %, for
any values and any number of merges. The same values give the same sketch, in any order and on any number of machines.
Spark's own sketches (KLL) sample at random if there are more than some hundred values. A table built twice would
differ, and the 99th percentile could be any value from the 97th percentile to the maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
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
"""The bucket of values below one microsecond."""
SUFFIX = "_sketch"
TOTAL = "_total"


def bucket(micros: Expression) -> Expression:
    """The bucket of a number of microseconds. Negative values count as 0. The bucket of null is null."""
    return F.when(micros >= 1, F.ceil(F.log(micros) * PER_E)).when(micros < 1, NONE_AT_ALL).cast("int")


def bucket_of_ms(name: str) -> Expression:
    """The bucket of a column in milliseconds, as a column `bucket`."""
    return bucket(F.round(F.col(name) * 1000)).alias("bucket")


def buckets_of_ms(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same for Arrow."""
    micros = pc.round(pc.multiply(values, 1000.0))
    found = pc.ceil(pc.multiply(pc.ln(micros), float(PER_E)))
    return pc.if_else(pc.greater_equal(micros, 1.0), found, float(NONE_AT_ALL)).cast(pa.int32())


def gathered(stem: str, of: Expression | None = None) -> list[Expression]:
    """Aggregates of rows with `bucket` and `count`: `{stem}_sketch` and the total. `of` is a filter on the rows."""
    present = F.col("bucket").isNotNull() if of is None else F.col("bucket").isNotNull() & of
    entry = F.struct(F.col("bucket"), F.col("count"))
    total = F.sum(F.when(present, F.col("count")))
    entries = F.when(total > 0, F.sort_array(F.collect_list(F.when(present, entry)))).cast(TYPE)
    # The total has its own column: computed from the sketch, it would be summed again at each step of `_at`.
    return [entries.alias(stem + SUFFIX), total.alias(stem + TOTAL)]


def percentiles(stem: str) -> list[Expression]:
    """`{stem}_p50_ms` and so on, from the columns of `gathered`."""
    return [_at(stem, percent).alias(f"{stem}_p{percent}_ms") for percent in PERCENTS]


def columns(stem: str, of: str) -> tuple[Column, ...]:
    """The declarations of the percentile columns and the sketch column of a table."""
    described = (
        Column(f"{stem}_p{percent}_ms", "double", f"the {percent}th percentile of {of}") for percent in PERCENTS
    )
    return (*described, Column(stem + SUFFIX, TYPE, f"{of}: how many by size, to be merged over longer times"))


def merged(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Merge all sketches in these rows by these keys. Returns the merged sketches and their percentiles.

    `merged(table.withColumn("day", F.date_trunc("day", "minute")), ["topic", "day"])`
    """
    stems = [name.removesuffix(SUFFIX) for name in rows.columns if name.endswith(SUFFIX)]
    parts = [_merged(rows, list(keys), stem) for stem in stems]
    return reduce(lambda left, right: left.join(right, list(keys), "left"), parts, rows.select(*keys).distinct())


def _merged(rows: DataFrame, keys: list[str], stem: str) -> DataFrame:
    entries = rows.select(*keys, F.inline(stem + SUFFIX)).groupBy(*keys, "bucket").agg(F.sum("count").alias("count"))
    return entries.groupBy(*keys).agg(*gathered(stem)).select(*keys, *percentiles(stem), stem + SUFFIX)


def _at(stem: str, percent: int) -> Expression:
    """The middle of the bucket with this percentile (nearest rank), in milliseconds."""
    rank = F.col(stem + TOTAL) * percent

    def step(state: Expression, entry: Expression) -> Expression:
        seen = state["seen"] + entry["count"]
        found = F.coalesce(state["bucket"], F.when(seen * 100 >= rank, entry["bucket"]))
        return F.struct(seen.alias("seen"), found.alias("bucket"))

    start = F.struct(F.lit(0).cast("bigint").alias("seen"), F.lit(None).cast("int").alias("bucket"))
    return F.aggregate(stem + SUFFIX, start, step, lambda state: _middle_ms(state["bucket"]))


def _middle_ms(bucket: Expression) -> Expression:
    return F.when(bucket == NONE_AT_ALL, 0.0).otherwise(F.exp((bucket - 0.5) / PER_E) / 1000)
