"""How long does a query of one hour of a hundred take, with `where hour = …`? The peer is a query of all hours."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.harness import Case, Sample
from benchmarks.servers import together
from benchmarks.spark_hours import HOURS
from benchmarks.spark_lakes import SPARK
from benchmarks.spark_warehouse import WAREHOUSES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WHOLE = "all hours"
ROWS = 1_000_000


def read(count: int, *, one_hour: bool) -> Sample:
    from pyspark.sql import functions as F

    from trunkline.spark.pipeline.views import table

    with SPARK.running() as spark, WAREHOUSES.running() as warehouses:
        place = warehouses.messages_of(count)
        messages = table(spark, place.warehouse, "messages")
        wanted = F.timestamp_micros(F.lit(place.hour_us(HOURS // 2)))
        rows = messages.where(F.col("hour") == wanted) if one_hour else messages
        began = time.perf_counter()
        _scan(rows)
        took_s = time.perf_counter() - began
        return Sample(took_s, took_s)


def _scan(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


CASE = Case(
    name="spark-prune",
    question="one hour of a hundred by `where hour =`",
    unit="s",
    better="less",
    ours=partial(read, one_hour=True),
    peers={WHOLE: partial(read, one_hour=False)},
    target={WHOLE: 10.0},
    size=ROWS,
    fixed=True,
    # Java compiles the queries during the first dozen rounds.
    rounds=40,
    round_s=0.6,
    around=partial(together, SPARK, WAREHOUSES),
)
