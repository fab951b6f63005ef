"""Delta logs: beside the tables and beside the sealed files, read by others, repaired after a crash. Without Spark."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.spark.lakes import expected, expected_fates, random_journal
from trunkline.clock import World
from trunkline.journal import Journal
from trunkline.journal.delta_log import LOG, follow_lake
from trunkline.spark.pipeline import manifest as manifests
from trunkline.spark.pipeline.manifest import Manifest, StoredFile
from trunkline.spark.pipeline.warehouse import Warehouse

NINE, TEN = "2026-11-16T09", "2026-11-16T10"
Rows = list[dict[str, Any]]


def by_pyarrow(table: Path) -> Rows:
    found: Rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    return found


POLARS = "import pickle, sys, polars; sys.stdout.buffer.write(pickle.dumps(polars.read_delta(sys.argv[1]).to_dicts()))"


def by_polars(table: Path) -> Rows:
    """In its own process: its threads live as long as the process."""
    ended = subprocess.run([sys.executable, "-c", POLARS, str(table)], capture_output=True, timeout=120, check=True)
    found: Rows = pickle.loads(ended.stdout)
    return found


def by_duckdb(table: Path) -> Rows:
    there = DeltaTable(table).to_pyarrow_dataset()
    with duckdb.connect() as database:
        database.register("there", there)
        found: Rows = database.sql("select * from there").to_arrow_table().to_pylist()
        return found


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each of these engines starts threads at its first use, and keeps them."""
    steps = Steps(tmp_path_factory.mktemp("warm"))
    with steps.warehouse:
        steps.commit(1, {NINE: 1, TEN: 1})
        steps.commit(2, {NINE: 2})
    for read in (by_pyarrow, by_duckdb):
        assert steps.read(read) == [(NINE, 2)]


READERS = pytest.mark.parametrize("read", [by_pyarrow, by_polars, by_duckdb])


class Steps:
    """A warehouse with one table, committed by hand."""

    def __init__(self, place: Path, grace_s: float = 3600.0) -> None:
        self.place = place
        self.now = 1000.0
        world = World(time_ns=lambda: int(self.now * 1e9))
        self.warehouse = Warehouse(place, grace_s=grace_s, world=world)

    def commit(self, run: int, hours: dict[str, int], **columns: Any) -> None:
        """`hours`: the run that made them. A row names its run and hour."""
        self.warehouse.commit(self.manifest(run, hours, **columns))

    def manifest(self, run: int, hours: dict[str, int], **columns: Any) -> Manifest:
        manifest = Manifest(run=run, delta=True)
        for hour, made in hours.items():
            file = StoredFile(f"{made:06d}-0.parquet", 1, 0)
            path = self.warehouse.place_of("requests", "main", hour, file)
            if made == run:
                pq.write_table(pa.table({"run": [made], "tags": [["a"]], **columns}), path)
            manifest.state("main").files("requests")[hour] = [
                StoredFile(file.name, 1, path.stat().st_size),
            ]
        return manifest

    def read(self, read: Callable[[Path], Rows] = by_pyarrow) -> list[tuple[str, int]]:
        return sorted((row["hour"], row["run"]) for row in read(self.place / "requests"))


@READERS
def test_others_read_what_counts(tmp_path: Path, read: Callable[[Path], Rows]) -> None:
    steps = Steps(tmp_path)
    with steps.warehouse:
        steps.commit(1, {NINE: 1, TEN: 1})
        assert steps.read(read) == [(NINE, 1), (TEN, 1)]
        steps.commit(2, {NINE: 1, TEN: 2})
        assert steps.read(read) == [(NINE, 1), (TEN, 2)], "an hour was replaced, and its old file is still there"
        steps.commit(3, {TEN: 2})
        assert steps.read(read) == [(TEN, 2)]
    (row,) = read(tmp_path / "requests")
    assert row == {"run": 2, "tags": ["a"], "journal": "main", "hour": TEN}


def test_a_log_that_a_crash_left_behind_is_repaired(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    with steps.warehouse:
        steps.commit(1, {NINE: 1})
        # The manifest is replaced, and then the power fails.
        manifests.save(tmp_path, steps.manifest(2, {NINE: 2, TEN: 2}))
        assert steps.read() == [(NINE, 1)]
    with Warehouse(tmp_path):
        assert steps.read() == [(NINE, 2), (TEN, 2)]
        versions = len(list((tmp_path / "requests" / LOG).glob("*.json")))
    with Warehouse(tmp_path):
        assert len(list((tmp_path / "requests" / LOG).glob("*.json"))) == versions, "there was nothing to do"


def test_no_log_points_to_a_file_that_is_gone(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    with steps.warehouse:
        for run in range(1, 5):
            steps.commit(run, {NINE: run, TEN: run})
            steps.now += 2000
            uris = DeltaTable(tmp_path / "requests").file_uris()
            assert len(uris) == 2
            assert all(Path(uri).exists() for uri in uris)
        before = DeltaTable(tmp_path / "requests", version=DeltaTable(tmp_path / "requests").version() - 1)
        assert before.to_pyarrow_table().num_rows == 2, "who opened it a run ago can still read"
        assert len(list((tmp_path / "requests").rglob("*.parquet"))) < 8, "the first are gone"


def test_columns_may_change_and_logs_may_end(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    with steps.warehouse as warehouse:
        steps.commit(1, {NINE: 1})
        steps.commit(2, {NINE: 2}, note=["x"])
        (row,) = by_pyarrow(tmp_path / "requests")
        assert row["note"] == "x"
        warehouse.keep_logs(False)
        assert not list(tmp_path.glob(f"*/{LOG}"))
        warehouse.keep_logs(True)
        assert steps.read() == [(NINE, 2)]


@READERS
def test_the_sealed_files_of_a_journal(tmp_path: Path, read: Callable[[Path], Rows]) -> None:
    journal = random_journal(tmp_path, 7)
    with Journal(journal) as owned:
        owned.seal(everything=True)
    assert follow_lake(journal)
    found = read(journal / "messages")
    assert sorted(row["seq"] for row in found) == [row["seq"] for row in expected(journal)]
    assert {row["payload"] for row in found} == {row["payload"] for row in expected(journal)}
    assert sorted(row["number"] for row in read(journal / "fates")) == [
        row["number"] for row in expected_fates(journal)
    ]
    assert not follow_lake(journal), "nothing has changed"
    with Journal(journal):
        pass  # it does not mind the logs
    assert DeltaTable(journal / "messages").to_pyarrow_table().num_rows == len(found)
