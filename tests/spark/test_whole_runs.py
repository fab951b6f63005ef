"""Whole runs on real journals: the tables equal plain Python, in any number of steps and after crashes."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import trunkline as tl
from tests.spark import truth_content, truth_gold, truth_silver
from tests.spark.journals import HOUR_NS, START_NS, live
from tests.spark.traffic import Row, Traffic, inputs, message
from tests.spark.truth_journal import traffic_of
from trunkline.clock import World
from trunkline.journal import Journal, Reader
from trunkline.spark.pipeline.manifest import Manifest, StoredFile
from trunkline.spark.pipeline.run import Pipeline, session_settings
from trunkline.spark.pipeline.status import status
from trunkline.spark.pipeline.views import table
from trunkline.spark.pipeline.warehouse import Warehouse, hours_between
from trunkline.spark.settings import PipelineSettings
from trunkline.spark.tables import requests
from trunkline.spark.tables.catalog import every

TABLES = [each.name for each in every(())]
ROUGH = {"latency_sketch", "delay_sketch", "lag_sketch"}


def rows(spark: SparkSession, warehouse: Path, name: str) -> list[Row]:
    found = [row.asDict(recursive=True) for row in table(spark, warehouse, name).collect()]
    return sorted(({key: value for key, value in row.items() if key not in ROUGH} for row in found), key=repr)


def same(spark: SparkSession, one: Path, other: Path) -> None:
    for name in TABLES:
        assert rows(spark, one, name) == rows(spark, other, name), name


def like(found: list[Row], expected: list[Row], key: tuple[str, ...]) -> None:
    """Equal in all columns that plain Python computes."""

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
    mine = {(warehouse / path).stat().st_ino for path in Warehouse(warehouse).look().paths() if "messages/" in path}
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
from trunkline.spark.pipeline.manifest import Manifest, StoredFile
from trunkline.spark.pipeline.run import Pipeline, session_settings

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
        assert not list(place.rglob("*.parquet")), "what was begun is cleared away"


def test_a_disk_that_fills_up_while_spark_writes_is_said_in_one_line(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(shutil.disk_usage(tmp_path))(100, 100, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    failing = spark.sql("select now() as hour, raise_error('No space left on device') as why")
    with Warehouse(tmp_path) as warehouse, pytest.raises(tl.WarehouseUnusable, match="the disk is full: make room"):
        warehouse.write("requests", "main", 1, failing)


def test_a_setting_that_was_not_set_is_not_set_afterwards(spark: SparkSession) -> None:
    name = "spark.sql.maxConcurrentOutputFileWriters"
    spark.conf.unset(name)
    before = spark.conf.getAll
    with session_settings(spark, {name: "7"}):
        assert spark.conf.get(name) == "7"
    assert spark.conf.getAll == before


def test_hours_are_chosen_by_times_with_a_zone_and_without() -> None:
    hours = ["2026-11-16T09", "2026-11-16T10", "2026-11-16T11"]
    apart = timezone(timedelta(hours=2))
    since, until = datetime(2026, 11, 16, 12, tzinfo=apart), datetime(2026, 11, 16, 13, tzinfo=apart)
    assert hours_between(hours, since, until) == ["2026-11-16T10"]
    assert hours_between(hours, datetime(2026, 11, 16, 10), datetime(2026, 11, 16, 11)) == ["2026-11-16T10"]
    assert hours_between(hours, None, until) == hours[:2]


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
    """A copy with one truncated sealed file."""
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
    assert manifest["layout"] == 2
    assert manifest["journals"].keys() == {"journal"}
    assert manifest["journals"]["journal"]["tables"].keys() >= {"messages", "fates", "requests"}


def test_a_warehouse_of_an_older_layout_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"layout": 1, "run": 3}')
    with pytest.raises(tl.WarehouseUnusable, match="run `trunkline pipeline rebuild`"):
        Warehouse(tmp_path).look()


EARLY, LATE = "2026-11-16T09", "2026-11-16T10"


class Stepwise:
    """A warehouse with one table, committed by hand, at times that the test chooses."""

    def __init__(self, place: Path) -> None:
        self.now = 1000.0
        self.place = place
        self.warehouse = Warehouse(place, world=World(time_ns=lambda: int(self.now * 1e9)))

    def commit(self, run: int, hours: dict[str, int]) -> None:
        """`hours`: the run that made them."""
        manifest = Manifest(run=run)
        for hour, made in hours.items():
            file = StoredFile(f"{made:06d}-0.parquet", 1, 4)
            manifest.state("main").files("requests")[hour] = [file]
            if made == run:
                self.warehouse.place_of("requests", "main", hour, file).write_bytes(b"rows")
        self.warehouse.commit(manifest)

    def there(self) -> set[str]:
        return {path.relative_to(self.place).as_posix() for path in self.place.rglob("*.parquet")}


def part(run: int, hour: str) -> str:
    return f"requests/journal=main/hour={hour}/{run:06d}-0.parquet"


def test_what_was_replaced_stays_for_the_grace_period(tmp_path: Path) -> None:
    """A reader can continue while runs commit. Empty directories are removed."""
    steps = Stepwise(tmp_path)
    with steps.warehouse:
        steps.commit(1, {EARLY: 1, LATE: 1})
        steps.commit(2, {EARLY: 1, LATE: 2})
        steps.now += 3599
        steps.commit(3, {EARLY: 1, LATE: 3})
        assert steps.there() == {part(1, EARLY), part(1, LATE), part(2, LATE), part(3, LATE)}
        steps.now += 1
        steps.commit(4, {EARLY: 1})
        assert steps.there() == {part(1, EARLY), part(2, LATE), part(3, LATE)}
        assert steps.warehouse.vacuum() == 0
        steps.now += 3599
        assert steps.warehouse.vacuum() == 1
        assert steps.warehouse.vacuum(older_than_s=0) == 1
        assert steps.there() == {part(1, EARLY)}
    assert [path.name for path in (tmp_path / "requests" / "journal=main").iterdir()] == [f"hour={EARLY}"]


def test_what_a_run_that_died_left_is_cleared_away(tmp_path: Path) -> None:
    steps = Stepwise(tmp_path)
    with steps.warehouse as warehouse:
        steps.commit(1, {EARLY: 1})
        warehouse.staging(2)
        warehouse.place_of("requests", "main", LATE, StoredFile("000002-0.parquet", 1, 4)).write_bytes(b"rows")
    with Warehouse(tmp_path):
        assert steps.there() == {part(1, EARLY)}
        assert not (tmp_path / ".staging").exists()
