"""The Spark session: its settings, when it is shared, and that it prints nothing and leaves nothing behind."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.conftest import FAST
from tests.warm import NEW_PYTHON
from trunkline.errors import MissingExtra
from trunkline.spark import session
from trunkline.spark.session import start
from trunkline.spark.session.class_archive import DIRECTORY, checksum
from trunkline.spark.session.java import find_java
from trunkline.spark.session.start import JAVA_OPTIONS

DEADLINE_S = 300

# Works, with a table that needs a place, and says which process is its Java.
PROGRAM = """
from trunkline.spark import session

# Only for speed: here no archive helps.
quick = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
with session("local[2]", settings=quick) as spark:
    print(spark.sparkContext._gateway.proc.pid)
    spark.sql("CREATE TABLE numbers USING parquet AS SELECT id FROM range(10)")
    assert spark.table("numbers").groupBy().sum("id").first()[0] == 45
"""


def run(program: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """In an empty directory, with an empty one for temporary files, and its own cache."""
    for name in ("cwd", "tmp", "cache"):
        (folder / name).mkdir(exist_ok=True)
    ours = {DIRECTORY: str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder / "cwd",
        env={**os.environ, **ours, **environ},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# What it is


def test_workers_are_this_python(spark: SparkSession) -> None:
    def who(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"who": [sys.executable]})

    rows = spark.range(1).mapInArrow(who, "who string").collect()
    assert {row.who for row in rows} == {sys.executable}


def test_times_are_utc_in_microseconds_and_filters_are_pushed(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
    assert spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"


def test_settings_go_before_ours(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.adaptive.enabled") == "false"
    options = spark.sparkContext.getConf().get("spark.driver.extraJavaOptions") or ""
    assert options.endswith(f" {FAST[JAVA_OPTIONS]}"), "the last one counts for Java"
    assert "log4j2" in options


@pytest.mark.parametrize(
    ("master", "parallel"),
    [
        ("local", 1),
        ("local[3]", 3),
        ("local[3, 2]", 3),
        ("local-cluster[2,3,1024]", 6),
        ("spark://host:7077", None),
        ("yarn", None),
        ("k8s://https://host", None),
    ],
)
def test_a_local_master_is_set_up_for_this_machine(master: str, parallel: int | None, tmp_path: Path) -> None:
    assert start.cores(master) == parallel
    wanted = start.defaults(master, tmp_path)
    assert wanted.get("spark.sql.shuffle.partitions") == parallel
    assert wanted.get("spark.driver.host") == (None if parallel is None else "127.0.0.1")
    assert wanted.get("spark.ui.enabled") is (None if parallel is None else False)


def test_all_cores_are_those_we_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 3, 5}, raising=False)
    assert start.cores("local[*]") == 3


# Joining one that is active


def test_an_active_session_is_used_as_it_is(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert session() is spark
        assert session("local[2]") is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2", "not the number of cores"
    assert not caplog.records


@pytest.mark.parametrize("by_environment", [False, True])
def test_another_master_is_said(
    by_environment: bool, spark: SparkSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_environment:
        monkeypatch.setenv(start.MASTER, "spark://elsewhere:7077")
    assert session(None if by_environment else "spark://elsewhere:7077") is spark
    assert "the active session on local[2] is used instead of spark://elsewhere:7077" in caplog.text


def test_settings_of_an_active_session_that_can_be_set_are(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    before = spark.conf.get("spark.sql.ansi.enabled")
    try:
        other = "false" if before == "true" else "true"
        fixed: dict[str, start.Setting] = {"spark.sql.warehouse.dir": "/elsewhere", "spark.cores.max": 3}
        assert session(settings={"spark.sql.ansi.enabled": other, **fixed}) is spark
        assert spark.conf.get("spark.sql.ansi.enabled") == other
        assert "/elsewhere" not in str(spark.conf.get("spark.sql.warehouse.dir"))
        assert [record.args for record in caplog.records] == [(name,) for name in fixed]
    finally:
        spark.conf.set("spark.sql.ansi.enabled", str(before))


# Without Spark


def test_without_pyspark_it_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingExtra, match=r"pip install 'trunkline\[spark\]'"):
        session()


def test_importing_it_does_not_import_pyspark() -> None:
    look = "import sys, trunkline.spark; print([name for name in ('pyspark', 'py4j', 'pandas') if name in sys.modules])"
    assert subprocess.check_output([*NEW_PYTHON, "-c", look], text=True) == "[]\n"


# In its own process


@pytest.mark.long
def test_it_is_quiet_and_leaves_nothing_even_with_an_archive_that_does_not_fit(tmp_path: Path) -> None:
    fitting = start.spark_archive(find_java())
    assert fitting is not None, "this Java can have one"
    archive = replace(fitting, folder=tmp_path / "cache")
    archive.folder.mkdir()
    fresh = archive.folder / "fresh"
    fresh.write_bytes(b"whole, as its checksum says, but nothing that a Java can use" * 100)
    stale = fresh.rename(archive.folder / archive.file_name(checksum(fresh)))
    assert archive.find() == stale
    done = run(PROGRAM, tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
    (pid,) = done.stdout.split()
    assert not Path(f"/proc/{pid}").exists(), "Java ends with the session"
    assert files(tmp_path / "cwd") == []
    assert files(tmp_path / "tmp") == []
    assert files(tmp_path / "cache") == [stale.name], "and no other was made"
