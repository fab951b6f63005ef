"""How long does a run take, from a journal to all tables? The peer is a full scan of the same rows by Spark."""

from __future__ import annotations

import shutil
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Case, Sample
from benchmarks.servers import together
from benchmarks.spark_lakes import SPARK
from benchmarks.spark_traffic import BUSY

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NATIVE = "spark.read.parquet, one full scan"
ROWS = 5_000_000


def run(count: int) -> Sample:
    with SPARK.running() as spark, BUSY.running() as journals:
        took_s = whole_run(spark, journals.partly_sealed(count), count)
        return Sample(took_s, took_s)


def whole_run(spark: SparkSession, journal: Path, count: int) -> float:
    """The seconds of a run into a new warehouse beside the journal, the default place of the command."""
    from trunkline.spark.pipeline.run import Pipeline

    warehouse = journal / "warehouse"
    shutil.rmtree(warehouse, ignore_errors=True)
    began = time.perf_counter()
    with Pipeline(spark, journal, warehouse) as pipeline:
        assert pipeline.run().messages == count
    took_s = time.perf_counter() - began
    shutil.rmtree(warehouse)
    return took_s


def scan(count: int) -> Sample:
    with SPARK.running() as spark, BUSY.running() as journals:
        lake = journals.sealed(count) / "messages"
        began = time.perf_counter()
        spark.read.parquet(str(lake)).write.format("noop").mode("overwrite").save()
        took_s = time.perf_counter() - began
        return Sample(took_s, took_s)


CASE = Case(
    name="spark-batch",
    question="one run over five million messages, journal to all tables",
    unit="s",
    better="less",
    ours=run,
    peers={NATIVE: scan},
    target={NATIVE: 0.06},
    aim={NATIVE: 0.1},
    size=ROWS,
    fixed=True,
    rounds=3,
    round_s=85.0,
    check_size=1_000_000,
    around=partial(together, SPARK, BUSY),
)
