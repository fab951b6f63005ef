"""`trunkline pipeline` as people type it: several journals, Delta logs, how long hours are kept, and old warehouses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import trunkline as tl
from tests.spark.journals import HOUR_NS, START_NS
from trunkline.cli.main import run as run_command
from trunkline.journal import Journal
from trunkline.spark.pipeline.views import table
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.testing import Simulation, simulate, world

Call = Callable[..., dict[str, Any]]


def publish(directory: Path, count: int, *, hours: int = 0) -> Path:
    async def live(simulation: Simulation) -> None:
        there = world(simulation)
        with Journal(directory, world=there, threaded=False) as journal:
            async with tl.connect("memory:", name="shop", journal=journal, world=there) as bus:
                await bus.publish_many("orders", range(count))

    # The seed makes the journal's identity, too.
    simulate(live, seed=ord(directory.name[0]), start_ns=START_NS + hours * HOUR_NS)
    return directory


@pytest.fixture(autouse=True)
def stays(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command stops its session, and with it the Java of all other tests."""
    monkeypatch.setattr(spark, "stop", lambda: None)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """The output of a command that succeeds."""

    def run(*words: str | Path) -> dict[str, Any]:
        capsys.readouterr()
        assert run_command(["pipeline", *map(str, words), "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    return run


def test_several_journals_go_into_one_warehouse_that_others_can_read(
    call: Call, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    north, south, east = (publish(tmp_path / name, 2) for name in ("north", "south", "east"))
    place = tmp_path / "warehouse"
    both = ("--journal", north, "--journal", south, "--warehouse", place)
    assert call("run", *both, "--delta")["messages"] == 4
    rows = DeltaTable(place / "messages").to_pyarrow_table()
    assert sorted(rows.column("journal").to_pylist()) == ["north", "north", "south", "south"]

    assert run_command(["pipeline", "run", *map(str, both), "--journal", str(east)]) != 0
    assert "--add-journal" in capsys.readouterr().err
    publish(south, 1)
    assert call("run", *both, "--journal", east, "--add-journal")["messages"] == 3
    assert DeltaTable(place / "messages").to_pyarrow_table().num_rows == 7, "the choice of --delta stays"
    counts = table(spark, place, "topic_minute").groupBy("journal").sum("messages").collect()
    assert dict(map(tuple, counts)) == {"north": 2, "south": 3, "east": 2}

    assert call("run", *both, "--no-delta")["messages"] == 0
    assert not list(place.rglob("_delta_log"))


def test_what_was_replaced_is_removed_by_vacuum_when_it_is_old(call: Call, spark: SparkSession, tmp_path: Path) -> None:
    journal = publish(tmp_path / "journal", 2)
    call("run", journal)
    publish(journal, 1)
    call("run", journal)
    place = journal / "warehouse"
    replaced = Warehouse(place).look().replaced
    assert {path.partition("/")[0] for path in replaced} == {"topic_minute", "sender_minute"}
    assert call("vacuum", journal) == {"files": 0}, "somebody may be reading"
    assert all((place / path).exists() for path in replaced)
    assert call("vacuum", journal, "--older-than-s", "0") == {"files": len(replaced)}
    assert not any((place / path).exists() for path in replaced)
    assert table(spark, place, "topic_minute").groupBy().sum("messages").collect() == [(3,)]


def test_hours_are_kept_for_so_many_days(
    call: Call, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = publish(tmp_path / "journal", 2)
    publish(journal, 1, hours=72)
    assert run_command(["pipeline", "run", str(journal), "--keep-days", "0.1"]) != 0
    said = capsys.readouterr().err
    assert said.startswith("error: --keep-days must be at least 0.125, not 0.1: ")
    assert said.count("\n") == 1
    assert call("run", journal, "--keep-days", "4")["messages"] == 3
    assert table(spark, journal / "warehouse", "messages").count() == 3
    assert call("run", journal, "--keep-days", "2")["messages"] == 0
    for name in ("messages", "topic_minute"):
        assert table(spark, journal / "warehouse", name).count() == 1, name


def test_a_warehouse_of_an_older_version_is_built_again(
    call: Call, spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, place = publish(tmp_path / "journal", 3), tmp_path / "warehouse"
    old = place / "requests" / "run=000003" / "part-0.parquet"
    old.parent.mkdir(parents=True)
    old.write_bytes(b"rows of an older version")
    (place / "manifest.json").write_text('{"layout": 1, "run": 3, "seq": 17}')
    for command in ("run", "status"):
        assert run_command(["pipeline", command, str(journal), "--warehouse", str(place)]) != 0
        said = capsys.readouterr().err
        assert "run `trunkline pipeline rebuild`" in said
        assert said.count("\n") == 1
    assert run_command(["pipeline", "rebuild", str(journal), "--warehouse", str(place)]) == 0
    said, errors = capsys.readouterr()
    assert said == "1 hour rebuilt\n"
    assert errors.startswith(f"the tables of an older version are in {place / 'layout-1'}")
    assert (place / "layout-1" / old.relative_to(place)).read_bytes() == b"rows of an older version"
    assert table(spark, place, "messages").count() == 3
    assert call("run", journal, "--warehouse", place)["messages"] == 0
    assert len(call("rebuild", journal, "--warehouse", place)["hours"]) == 1, "and now as any other"
