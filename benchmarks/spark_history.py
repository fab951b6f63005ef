"""How fast are messages of a sealed lake counted by topic, through `trunkline.spark.messages()`?

The peer is Spark's own reader on the directory, which contains only these files.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Case, Sample
from benchmarks.peers import rate
from benchmarks.servers import together
from benchmarks.spark_lakes import LAKES, SPARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NATIVE = "spark.read.parquet"
ROWS = 1_000_000


def by_topic(count: int, *, read: Callable[[SparkSession, Path], DataFrame]) -> Sample:
    with SPARK.running() as spark, LAKES.running() as lakes:
        journal = lakes.sealed(count)
        began = time.perf_counter()
        topics = read(spark, journal).groupBy("topic").count().collect()
        assert sum(row[1] for row in topics) == count
        return rate(count, began)


def ours(spark: SparkSession, journal: Path) -> DataFrame:
    from trunkline.spark.source.dataframe import messages

    return messages(spark, journal)


def native(spark: SparkSession, journal: Path) -> DataFrame:
    return spark.read.parquet(str(journal / "messages"))


CASE = Case(
    name="spark-history",
    question="messages of a sealed lake, counted by topic",
    unit="rows/s",
    better="more",
    ours=partial(by_topic, read=ours),
    peers={NATIVE: partial(by_topic, read=native)},
    target={NATIVE: 1.0},
    size=ROWS,
    fixed=True,
    around=partial(together, SPARK, LAKES),
)
