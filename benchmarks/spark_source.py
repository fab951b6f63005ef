"""How fast is a full scan of journal and lake, all columns, with `format("trunkline")`? An eighth is not sealed.

The peer is Spark's own Parquet reader, on a lake with the same messages, all of them sealed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Case, Sample
from benchmarks.peers import rate
from benchmarks.servers import together
from benchmarks.spark_lakes import LAKES, SPARK, Lakes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NATIVE = "spark.read.parquet"
JOINED = "trunkline.spark.messages"
ROWS = 1_000_000


def scan(count: int, *, read: Callable[[SparkSession, Lakes, int], DataFrame]) -> Sample:
    with SPARK.running() as spark, LAKES.running() as lakes:
        lakes.sealed(count)
        began = time.perf_counter()
        read(spark, lakes, count).write.format("noop").mode("overwrite").save()
        return rate(count, began)


def ours(spark: SparkSession, lakes: Lakes, count: int) -> DataFrame:
    return spark.read.format("trunkline").option("journal", str(lakes.partly_sealed(count))).load()


def joined(spark: SparkSession, lakes: Lakes, count: int) -> DataFrame:
    from trunkline.spark.source.dataframe import messages

    return messages(spark, lakes.partly_sealed(count))


def native(spark: SparkSession, lakes: Lakes, count: int) -> DataFrame:
    return spark.read.parquet(str(lakes.sealed(count) / "messages"))


CASE = Case(
    name="spark-source",
    question="a full scan of journal and lake, an eighth of it not sealed",
    unit="rows/s",
    better="more",
    ours=partial(scan, read=ours),
    peers={NATIVE: partial(scan, read=native), JOINED: partial(scan, read=joined)},
    target={NATIVE: 0.38},
    aim={NATIVE: 0.6},
    size=ROWS,
    fixed=True,
    around=partial(together, SPARK, LAKES),
)
