"""How long is a warm cycle of `--follow` that adds an hour of 10,000 messages to a warehouse of a hundred such hours?

The peer is a warm scan of the messages of that warehouse by Spark.
"""

from __future__ import annotations

import time
from functools import partial

from benchmarks.harness import Case, Sample
from benchmarks.servers import together
from benchmarks.spark_lakes import SPARK
from benchmarks.spark_warehouse import WAREHOUSES

SCAN = "one scan of the warehouse"
ROWS = 1_000_000


def cycle(count: int) -> Sample:
    with SPARK.running(), WAREHOUSES.running() as warehouses:
        place = warehouses.of(count)
        with place.pipeline() as pipeline:
            place.grow()
            began = time.perf_counter()
            assert pipeline.run().messages == place.per_hour
            took_s = time.perf_counter() - began
        return Sample(took_s, took_s)


def scan(count: int) -> Sample:
    from trunkline.spark.pipeline.views import table

    with SPARK.running() as spark, WAREHOUSES.running() as warehouses:
        place = warehouses.of(count)
        began = time.perf_counter()
        table(spark, place.warehouse, "messages").write.format("noop").mode("overwrite").save()
        took_s = time.perf_counter() - began
        return Sample(took_s, took_s)


CASE = Case(
    name="spark-follow",
    question="a warm cycle over 10,000 new messages into a warehouse of a million",
    unit="s",
    better="less",
    ours=cycle,
    peers={SCAN: scan},
    target={SCAN: 0.25},
    size=ROWS,
    fixed=True,
    rounds=5,
    round_s=15.0,
    around=partial(together, SPARK, WAREHOUSES),
)
