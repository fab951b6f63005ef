"""Rows of the driver become part of a plan, without a Python worker."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tests.spark.traffic import inputs, traffic
from trunkline.spark.tables import orphans
from trunkline.spark.tables.driver_frame import arrow_frame, driver_frame

DDL = "number int, name string, at timestamp, extra map<string,string>, several array<long>"


def plan_of(rows: DataFrame) -> str:
    return str(rows._jdf.queryExecution().executedPlan().toString())


def test_rows_are_what_was_given(spark: SparkSession) -> None:
    given = [
        (1, "a", datetime(2026, 11, 16, 22, 50, 1, 234567), {"k": "v"}, [1, 2**40]),
        (None, None, None, None, None),
    ]
    assert [tuple(row) for row in driver_frame(spark, given, DDL).collect()] == given
    nothing = driver_frame(spark, [], DDL)
    assert nothing.collect() == []
    assert nothing.schema.simpleString() == driver_frame(spark, given, DDL).schema.simpleString()


def test_empty_chunks_before_the_rows_change_nothing(spark: SparkSession) -> None:
    rows = pa.table({"n": pa.chunked_array([[], [], [1, 2]], pa.int64())})
    assert sorted(row["n"] for row in arrow_frame(spark, rows).collect()) == [1, 2]


def test_no_python_worker_is_needed(spark: SparkSession) -> None:
    built = orphans.build(inputs(spark, traffic(seed=3, size=20)))
    for rows in (driver_frame(spark, [], DDL), built):
        assert "LocalTableScan" in plan_of(rows)
        assert "ExistingRDD" not in plan_of(rows), "rows that pass through Python workers"
