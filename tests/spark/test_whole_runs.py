"""Whole runs on real journals: the tables against plain Python, however the work was cut, whatever died meanwhile."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import trunkline as tl
from tests.spark import truth_content, truth_gold, truth_silver
from tests.spark.journals import HOUR_NS, START_NS, live
from tests.spark.traffic import Row, Traffic, inputs, message
from tests.spark.truth_journal import traffic_of
from trunkline.journal import Journal, Reader
from trunkline.spark.pipeline.manifest import Manifest
from trunkline.spark.pipeline.run import Pipeline
from trunkline.spark.pipeline.settings import PipelineSettings
from trunkline.spark.pipeline.status import status
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.spark.tables import requests
from trunkline.spark.tables.catalog import every
from trunkline.spark.tables.views import table

TABLES = [each.name for each in every(())]
ROUGH = {"latency_sketch", "delay_sketch", "lag_sketch"}


def rows(spark: SparkSession, warehouse: Path, name: str) -> list[Row]:
    found = [row.asDict(recursive=True) for row in table(spark, warehouse, name).collect()]
    return sorted(({key: value for key, value in row.items() if key not in ROUGH} for row in found), key=repr)


def same(spark: SparkSession, one: Path, other: Path) -> None:
    for name in TABLES:
        assert rows(spark, one, name) == rows(spark, other, name), name


def like(found: list[Row], expected: list[Row], key: tuple[str, ...]) -> None:
    """Equal in all that plain Python says."""

    def by(rows: list[Row]) -> dict[tuple[Any, ...], Row]:
        return {tuple(row[name] for name in key): row for row in rows}

    mine, theirs = by(found), by(expected)
    assert mine.keys() == theirs.keys()
    assert len(found) == len(expected)
    for place, row in theirs.items():
        for name, value in row.items():
            if name in ROUGH:
                continue
            seen = mine[place][name]
            if isinstance(value, float) and seen is not None:
                assert seen == pytest.approx(value, rel=0.011, abs=1e-6), (place, name)
            else:
                assert seen == value, (place, name)


@pytest.fixture(scope="module")
def truth(journal: Path) -> Traffic:
    return traffic_of(journal)


def test_bronze_is_what_the_journal_holds_once(
    spark: SparkSession, journal: Path, warehouse: Path, truth: Traffic
) -> None:
    like(rows(spark, warehouse, "messages"), truth.messages, ("seq",))
    with Reader(journal) as reader:
        assert len(truth.messages) < sum(1 for _ in reader.messages()), "nothing was repeated"
    assert any(row["late"] for row in truth.messages)
    found = [{k: v for k, v in row.items() if k != "hour"} for row in rows(spark, warehouse, "fates")]
    like(found, truth.fates, ("number",))


def test_sealed_files_are_not_copied(journal: Path, warehouse: Path) -> None:
    with Reader(journal) as reader:
        sealed = {(journal / file.path).stat().st_ino for file in reader.files()}
    manifest = Warehouse(warehouse).look()
    mine = {(warehouse / file.path).stat().st_ino for file in manifest.bronze["messages"]}
    assert sealed & mine, "they are the same files, under another name"
    assert mine - sealed, "a file in which an id comes again was written anew, and so was what is not sealed"


def test_the_watermark_of_a_warehouse_stays(spark: SparkSession, journal: Path, warehouse: Path) -> None:
    other = PipelineSettings(watermark_s=5)
    with pytest.raises(tl.PipelineError, match="3600 s, and not 5"), Pipeline(spark, journal, warehouse, other):
        pass
    with Pipeline(spark, journal, warehouse):
        pass  # nobody holds it


@pytest.mark.parametrize(
    ("name", "make", "key"),
    [
        ("deliveries", truth_silver.deliveries, ("seq", "subscriber")),
        ("requests", truth_silver.requests, ("seq",)),
        ("orphans", truth_silver.orphans, ("seq",)),
        ("dead_letters", truth_silver.dead_letters, ("subscriber", "seq")),
        ("conversations", truth_content.conversations, ("key",)),
        ("topic_minute", truth_gold.topic_minute, ("topic", "minute")),
        ("sender_minute", truth_gold.sender_minute, ("sender", "minute")),
        ("subscriber_minute", truth_gold.subscriber_minute, ("subscriber", "minute")),
        ("accounting", truth_gold.accounting, ("topic", "subscriber", "hour")),
    ],
)
def test_tables_are_what_plain_python_makes(
    spark: SparkSession,
    warehouse: Path,
    truth: Traffic,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    make: Any,
    key: tuple[str, ...],
) -> None:
    # Gold is made of silver: of the whole of it, not of the short versions that are enough for its own tests.
    monkeypatch.setattr(truth_gold, "requests", truth_silver.requests)
    expected = make(truth)
    assert expected
    like(rows(spark, warehouse, name), expected, key)


def test_the_time_zone_of_the_machine_does_not_matter(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    start = datetime(2025, 11, 16, 23)
    asked = [message(seq, start, type="request", request_id=f"r{seq}") for seq in (1, 2)]
    later = message(3, start + timedelta(seconds=20), type="response", request_id="r2")
    given = inputs(spark, Traffic([*asked, later], [], [], []))
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        outcomes = {row["seq"]: row["outcome"] for row in requests.build(given).collect()}
    finally:
        monkeypatch.undo()
        time.tzset()
    assert outcomes == {1: "open", 2: "answered"}, "20 s are not yet too late"


def test_the_books_add_up(spark: SparkSession, warehouse: Path) -> None:
    assert table(spark, warehouse, "accounting").where("not adds_up").collect() == []


@pytest.mark.long
def test_small_runs_give_what_one_large_run_gives(spark: SparkSession, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    parts = tmp_path / "parts"
    for number in range(3):
        live(journal, seed=number, size=30, start_ns=START_NS + number * HOUR_NS * 2 // 3)
        with Pipeline(spark, journal, parts, PipelineSettings(step_rows=40)) as pipeline:
            assert pipeline.run().messages
        if number == 1:
            with Journal(journal) as owned:
                owned.seal(everything=True)
    with Pipeline(spark, journal, tmp_path / "whole") as pipeline:
        pipeline.run()
    same(spark, parts, tmp_path / "whole")
    with Pipeline(spark, journal, parts) as pipeline:
        assert pipeline.run().steps == 0
        assert pipeline.rebuild()
    same(spark, parts, tmp_path / "whole")


CHILD = """
import os, signal, sys
from trunkline.spark import session
from trunkline.spark.pipeline.manifest import Manifest
from trunkline.spark.pipeline.run import Pipeline

journal, warehouse, stage = sys.argv[1:]

def die(what, done, of):
    if what == stage:
        os.kill(os.getpid(), signal.SIGKILL)

with session("local[2]", settings={"spark.sql.shuffle.partitions": 2}) as spark:
    with Pipeline(spark, journal, warehouse, progress=die) as pipeline:
        pipeline.run()
"""
STAGES = ["messages", "fates", *TABLES[3:], "commit"]


@pytest.mark.parametrize("stage", [pytest.param(each, marks=pytest.mark.long) for each in STAGES])
def test_a_driver_that_is_killed_leaves_nothing_wrong(
    spark: SparkSession, journal: Path, warehouse: Path, tmp_path: Path, stage: str
) -> None:
    place = tmp_path / "warehouse"
    ended = subprocess.run(
        [sys.executable, "-c", CHILD, str(journal), str(place), stage], capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert not Warehouse(place).look().run, "it is visible before it is whole"
    with Pipeline(spark, journal, place) as pipeline:
        pipeline.run()
    same(spark, place, warehouse)


def test_a_second_pipeline_is_refused_and_says_who_is_there(spark: SparkSession, journal: Path, tmp_path: Path) -> None:
    with Pipeline(spark, journal, tmp_path / "warehouse"):
        with pytest.raises(tl.WarehouseLocked) as refused, Pipeline(spark, journal, tmp_path / "warehouse"):
            pass
        assert refused.value.pid == os.getpid()


def test_a_full_disk_is_said_to_be_that_of_the_warehouse(
    spark: SparkSession, journal: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "rename", full)
    place = tmp_path / "warehouse"
    with Pipeline(spark, journal, place) as pipeline, pytest.raises(tl.WarehouseUnusable, match="the disk is full"):
        pipeline.run()
    monkeypatch.undo()
    with Warehouse(place) as warehouse:
        assert not warehouse.manifest.run
        assert not list(place.glob("bronze/run=*")), "what was begun is cleared away"


@pytest.mark.long
def test_status_tells_how_far_it_is(spark: SparkSession, tmp_path: Path) -> None:
    journal, place = tmp_path / "journal", tmp_path / "warehouse"
    live(journal, seed=5, size=12)
    with pytest.raises(tl.WarehouseUnusable, match="pipeline run"):
        status(journal, place)
    with Pipeline(spark, journal, place) as pipeline:
        pipeline.run()
    found = status(journal, place)
    assert (found.behind, found.lag_s, found.left_out) == (0, 0.0, [])
    assert {each.table for each in found.tables if each.hours} >= {"messages", "fates", "deliveries", "topic_minute"}
    live(journal, seed=6, size=5, start_ns=START_NS + 2 * HOUR_NS)
    later = status(journal, place)
    assert later.behind > 0
    assert later.lag_s > 3600


@pytest.fixture
def damaged(journal: Path, tmp_path: Path) -> tuple[Path, str]:
    """A copy in which one sealed file is cut short."""
    copy = tmp_path / "journal"
    shutil.copytree(journal, copy)
    with Reader(copy) as reader:
        file = reader.files()[1]
    path = copy / file.path
    path.write_bytes(path.read_bytes()[: file.bytes // 2])
    return copy, file.path


@pytest.mark.long
def test_a_damaged_file_is_named_and_can_be_left_out(
    spark: SparkSession, damaged: tuple[Path, str], tmp_path: Path
) -> None:
    journal, path = damaged
    with Pipeline(spark, journal, tmp_path / "warehouse") as pipeline, pytest.raises(tl.JournalDamaged) as refused:
        pipeline.run()
    assert path in str(refused.value)
    settings = PipelineSettings(skip_damaged=True)
    with Pipeline(spark, journal, tmp_path / "warehouse", settings) as pipeline:
        pipeline.run()
    found = status(journal, tmp_path / "warehouse")
    assert [each.path for each in found.left_out] == [path]
    gone = found.left_out[0]
    seqs = [row["seq"] for row in rows(spark, tmp_path / "warehouse", "messages")]
    assert seqs
    assert not any(gone.first <= seq <= gone.last for seq in seqs)


def test_only_some_hours(spark: SparkSession, warehouse: Path, truth: Traffic) -> None:
    hours = truth.hours()
    since: datetime = hours[len(hours) // 2]
    found = table(spark, warehouse, "messages", since=since).count()
    assert found == sum(row["hour"] >= since for row in truth.messages)
    with pytest.raises(tl.UsageError, match="there are messages, fates"):
        table(spark, warehouse, "message")


def test_the_manifest_can_be_read_by_others(warehouse: Path) -> None:
    manifest = json.loads((warehouse / "manifest.json").read_text())
    assert manifest["layout"] == 1
    assert set(manifest["bronze"]) == {"messages", "fates"}
    assert "requests" in manifest["tables"]


def test_what_was_replaced_stays_for_one_more_run_and_then_goes(tmp_path: Path) -> None:
    """Who reads while a run commits goes on reading. Directories that this leaves empty go, too; others stay."""
    early, late = "2026-11-16T09", "2026-11-16T10"

    def commit(warehouse: Warehouse, run: int, hours: dict[str, int]) -> None:
        for hour, made in hours.items():
            if made == run:
                part = warehouse.part("requests", run, hour)
                part.mkdir(parents=True)
                (part / "rows.parquet").write_bytes(b"rows")
                (warehouse.place("requests", run) / "_SUCCESS").touch()
        listed = {"requests": {hour: [made] for hour, made in hours.items()}}
        warehouse.commit(Manifest(run=run, tables=listed))

    def there() -> set[str]:
        return {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("requests/*/*/*")}

    def part(run: int, hour: int) -> str:
        return f"requests/run={run:06d}/_day=2026-11-16/_hour={hour}"

    with Warehouse(tmp_path) as warehouse:
        commit(warehouse, 1, {early: 1, late: 1})
        commit(warehouse, 2, {early: 1, late: 2})
        assert there() == {part(1, 9), part(1, 10), part(2, 10)}, "somebody may still read what was replaced"
        commit(warehouse, 3, {early: 3, late: 2})
        assert there() == {part(1, 9), part(2, 10), part(3, 9)}
        commit(warehouse, 4, {early: 3, late: 2})
        assert there() == {part(2, 10), part(3, 9)}
    assert not (tmp_path / "requests" / "run=000001").exists()
    assert (tmp_path / "requests").is_dir()
