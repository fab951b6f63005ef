"""Few rows: the driver reads and writes them, and the tables are the same as those that Spark reads and writes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import trunkline as tl
from tests.spark.conftest import COMPILED
from tests.warm import NEW_PYTHON
from trunkline.journal import Journal
from trunkline.spark.pipeline import few_rows
from trunkline.spark.pipeline.affected import Near
from trunkline.spark.pipeline.few_rows import few
from trunkline.spark.pipeline.journals import JournalSource
from trunkline.spark.pipeline.rows import Place
from trunkline.spark.pipeline.run import Pipeline, session_settings
from trunkline.spark.pipeline.views import names, table
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.spark.settings import PipelineSettings


def rows(spark: SparkSession, place: Path) -> dict[str, list[str]]:
    """The rows of every table of a warehouse, as text."""
    found = names(Warehouse(place).look())
    return {name: sorted(map(repr, table(spark, place, name).collect())) for name in found}


@pytest.mark.parametrize("settings", [{}, pytest.param(COMPILED, marks=pytest.mark.long)])
def test_tables_are_the_same_whether_rows_are_few_or_many(
    spark: SparkSession, journal: Path, warehouse: Path, tmp_path: Path, settings: dict[str, str]
) -> None:
    """Also with one run instead of two."""
    place, many = tmp_path / "many", PipelineSettings(few_rows=0)
    with session_settings(spark, settings), Pipeline(spark, journal, place, many) as pipeline:
        assert pipeline.run().steps == 1
    by_driver, by_spark = rows(spark, warehouse), rows(spark, place)
    assert by_driver == by_spark
    empty = {name for name, rows in by_spark.items() if not rows}
    assert empty <= {"conformance", "anomalies", "slow_consumers"}, "so little was compared"
    written = [next(each.glob("requests/**/*.parquet")) for each in (warehouse, place)]
    by = [pq.read_metadata(path).created_by.partition(" ")[0] for path in written]
    assert by == ["parquet-cpp-arrow", "parquet-mr"]


def test_what_has_nothing_to_be_made_of_makes_no_query(spark: SparkSession, tmp_path: Path) -> None:
    async def publish() -> None:
        async with tl.connect("memory:", name="shop", journal=tmp_path / "journal") as bus:
            await bus.publish_many("orders", [{"n": number} for number in range(3)])

    asyncio.run(publish())
    jobs = spark.sparkContext.statusTracker().getJobIdsForGroup
    before = set(jobs(None))
    with Pipeline(spark, tmp_path / "journal", tmp_path / "warehouse") as pipeline:
        assert pipeline.run().messages == 3
    asked = set(jobs(None)) - before
    assert len(asked) <= 3, "traffic, and the minutes of topics and of senders"
    tables = Warehouse(tmp_path / "warehouse").look().tables()
    assert tables == {"messages", "topic_minute", "sender_minute"}


NOTHING_NEW = """
import sys
from trunkline.cli.main import run
assert run(["pipeline", "run", sys.argv[1], "--warehouse", sys.argv[2], "--json"]) == 0
assert not {"pyspark", "pyarrow"} & sys.modules.keys(), "that takes as long as all the rest"
"""


def test_nothing_new_is_said_without_java(journal: Path, warehouse: Path, tmp_path: Path) -> None:
    without = {**os.environ, "JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    command = [*NEW_PYTHON, "-c", NOTHING_NEW, str(journal), str(warehouse)]
    ran = subprocess.run(command, env=without, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(ran.stdout)["steps"] == 0
    assert ran.stderr == ""


def test_a_session_is_started_when_there_is_something_to_do(spark: SparkSession, tmp_path: Path) -> None:
    async def publish() -> None:
        async with tl.connect("memory:", name="shop", journal=tmp_path / "journal") as bus:
            await bus.publish("orders", 1)

    asked = []

    def start(few_rows: bool) -> SparkSession:
        asked.append(few_rows)
        return spark

    asyncio.run(publish())
    with Pipeline(start, tmp_path / "journal", tmp_path / "warehouse") as pipeline:
        assert asked == []
        assert pipeline.run().messages == 1
        assert pipeline.run().steps == 0
    assert asked == [True]
    with Pipeline(start, tmp_path / "journal", tmp_path / "warehouse") as pipeline:
        assert pipeline.run().steps == 0
    assert asked == [True]


def test_large_payloads_are_not_few_rows(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Journal(tmp_path / "journal") as journal:
        asyncio.run(_publish_large(journal))
    with Pipeline(spark, tmp_path / "journal", tmp_path / "warehouse") as pipeline:
        pipeline.run()
    warehouse = Warehouse(tmp_path / "warehouse")
    place = Place(warehouse, warehouse.look(), JournalSource("journal", tmp_path / "journal"))
    near = Near(place.state, sorted(place.state.hours), PipelineSettings())
    assert few(place, near, 2) is not None
    assert few(place, near, 1) is None, "two are more than one"
    monkeypatch.setattr(few_rows, "MAX_BYTES", 1000)
    assert few(place, near, 2) is None


async def _publish_large(journal: Journal) -> None:
    async with tl.connect("memory:", name="camera", journal=journal) as bus:
        await bus.publish_many("frames", [bytes(1000), bytes(1000)])
