"""A real kernel on a bus with a journal: the pipeline makes a row for each execution."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import trunkline as tl
from trunkline.jupyter import start_kernel
from trunkline.spark.pipeline.run import Pipeline
from trunkline.spark.pipeline.views import table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.long
def test_executions_of_a_real_kernel_are_rows(spark: SparkSession, tmp_path: Path) -> None:
    journal, warehouse = tmp_path / "journal", tmp_path / "warehouse"

    async def live() -> str:
        async with tl.connect("memory:", journal=journal) as bus, start_kernel(bus=bus) as kernel:
            await kernel.run("print('hello'); 6 * 7")
            await kernel.run("1 / 0")
            return kernel.id

    kernel_id = asyncio.run(live())
    with Pipeline(spark, journal, warehouse) as pipeline:
        pipeline.run()
    rows = table(spark, warehouse, "executions").orderBy("asked").collect()
    assert [row.code for row in rows] == ["print('hello'); 6 * 7", "1 / 0"]
    good, bad = rows
    assert {row.kernel for row in rows} == {kernel_id}
    assert all(row.complete for row in rows)
    assert (good.status, good.stdout, good.outputs, good.mime_types) == ("ok", "hello\n", 1, ["text/plain"])
    assert good.duration_ms > 0
    assert (bad.status, bad.ename, bad.evalue) == ("error", "ZeroDivisionError", "division by zero")
