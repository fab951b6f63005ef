"""Several runs and several journals: the tables equal those of one run, and no loss is silent."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import trunkline as tl
from tests.spark.conftest import SharedSession
from tests.spark.stories import (
    ELEVEN_NS,
    HOUR_NS,
    KEPT,
    LOST,
    NARROW,
    WIDE,
    Shop,
    StubbornOrder,
    forgetful,
    keep_schema,
)
from tests.spark.test_whole_runs import ROUGH
from tests.spark.traffic import Row
from trunkline.journal.errors import WrongJournal
from trunkline.spark.pipeline import ingest
from trunkline.spark.pipeline.run import Pipeline
from trunkline.spark.pipeline.status import status
from trunkline.spark.pipeline.views import names, table
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.spark.replay.selection import messages_of, select
from trunkline.spark.report.figures import gather
from trunkline.spark.report.page import page
from trunkline.spark.settings import PipelineSettings


class Warehouses(NamedTuple):
    """The same journal in `parts`, with a run after each event, and in `whole`, with another, in one run."""

    parts: Path
    whole: Path
    north: Path
    south: Path


@pytest.fixture(scope="module")
def made(shared_session: SharedSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warehouses]:
    spark = shared_session.get()
    place = tmp_path_factory.mktemp("several")
    made = Warehouses(place / "parts", place / "whole", place / "north", place / "south")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ingest, "MANY_SMALL", 1)
        for number, schema in enumerate((NARROW, WIDE)):
            Shop(made.north, ELEVEN_NS + number * HOUR_NS - 60_000_000_000, mended=number > 0).open()
            keep_schema(made.north, schema)
            with Pipeline(spark, made.north, made.parts) as pipeline:
                assert pipeline.run().messages
    forgetful(made.south)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "link", cannot_link)
        settings = PipelineSettings(delta=True)
        with Pipeline(spark, [made.north, made.south], made.whole, settings) as pipeline:
            assert pipeline.run().steps == 2
    yield made
    shutil.rmtree(place)


def cannot_link(*_: object) -> None:
    raise OSError(errno.EXDEV, "another file system")


def rows(spark: SparkSession, warehouse: Path, name: str) -> list[Row]:
    """Rows of the journal `north`, without columns that depend on when a row was made."""
    found = table(spark, warehouse, name).where("journal = 'north'").drop("schema_hash", *ROUGH).collect()
    return sorted((row.asDict(recursive=True) for row in found), key=repr)


def test_two_runs_are_as_one(spark: SparkSession, made: Warehouses) -> None:
    """Also where letters were replayed in between, files were joined, and a schema was widened."""
    listed = names(Warehouse(made.parts).look())
    assert "typed_orders" in listed
    for name in listed:
        assert rows(spark, made.parts, name) == rows(spark, made.whole, name), name


def test_what_is_told_of_a_dead_letter_stays_when_it_is_replayed(spark: SparkSession, made: Warehouses) -> None:
    found = table(spark, made.whole, "dead_letters").orderBy("seq").collect()
    assert [(row["error_type"], row["attempts"], row["deaths"], row["replayed"]) for row in found] == [
        ("ValueError", 2, 1, True),
        ("ValueError", 2, 1, True),
    ]
    assert all("raise ValueError" in row["traceback"] for row in found)
    assert len({row["fingerprint"] for row in found}) == 1


def test_a_request_is_answered_by_what_is_placed_before_it(spark: SparkSession, made: Warehouses) -> None:
    found = {row["request_id"]: row for row in table(spark, made.parts, "requests").collect()}
    assert {name: row["outcome"] for name, row in found.items()} == {"behind": "answered", "early": "answered"}
    assert all(row["answered"] < row["asked"] for row in found.values())
    assert all(row["answered"].hour < row["asked"].hour for row in found.values())
    trees = table(spark, made.parts, "conversations").where("topic = 'pricing'").collect()
    assert sorted((row["root_id"], row["messages"]) for row in trees) == [("q-behind", 2), ("q-early", 2)]


def test_letters_stay_when_retention_has_removed_the_message(spark: SparkSession, tmp_path: Path) -> None:
    """The journal then has only the second death: the table of a channel without rows still exists."""
    order, place = StubbornOrder(tmp_path / "journal"), tmp_path / "warehouse"
    order.dies()
    keep_schema(order.directory, {"type": "object", "required": ["customer"]})
    with Pipeline(spark, order.directory, place) as pipeline:
        pipeline.run()
        order.dies_again_and_is_removed()
        pipeline.run()
    letters = table(spark, place, "letters").orderBy("at").collect()
    assert [(row["seq"], row["at"].hour, row["reason"]) for row in letters] == [
        (1, 11, "ValueError: bad order"),
        (1, 13, "ValueError: bad order"),
    ]
    (dead,) = table(spark, place, "dead_letters").collect()
    assert (dead["deaths"], dead["died"].hour, dead["attempts"], dead["replayed"]) == (2, 13, 1, False)
    assert table(spark, place, "conformance").select("ok").collect() == [(False,)]
    assert "typed_orders" in names(Warehouse(place).look())
    assert table(spark, place, "typed_orders").count() == 0


def test_a_typed_table_has_the_columns_of_the_schema_as_it_is_now(spark: SparkSession, made: Warehouses) -> None:
    found = table(spark, made.parts, "typed_orders").orderBy("seq")
    assert dict(found.dtypes)["total"] == "double"
    assert [(row["total"], row["note"]) for row in found.collect()] == [
        (5.0, None),
        (13.0, None),
        (5.0, None),
        (13.0, None),
        (13.0, "new"),
    ]


def test_small_files_are_joined(made: Warehouses) -> None:
    manifest = Warehouse(made.parts).look()
    counts = [len(files) for files in manifest.state("north").tables["messages"].values()]
    assert counts
    assert max(counts) == 1
    assert {path.partition("/")[0] for path in manifest.replaced} >= {"messages", "requests"}


def test_what_cannot_be_linked_is_copied(made: Warehouses) -> None:
    paths = [made.whole / path for path in Warehouse(made.whole).look().paths() if path.startswith("messages/")]
    assert {path.stat().st_nlink for path in paths} == {1}


def test_what_retention_removed_before_it_was_read_is_counted(spark: SparkSession, made: Warehouses) -> None:
    assert status(made.south, made.whole).removed_unread == {"log": LOST}
    assert status(made.north, made.whole).removed_unread == {}
    (row,) = table(spark, made.whole, "accounting").where("removed > 0").collect()
    assert (row["journal"], row["topic"], row["removed"], row["adds_up"]) == ("south", "log", LOST, False)
    assert table(spark, made.whole, "messages").where("topic = 'log'").count() == KEPT
    text = page(gather(spark, made.whole, None, None))
    assert f"<b>{LOST} messages are missing here:</b>" in text


def test_numbers_are_those_of_a_journal(spark: SparkSession, made: Warehouses) -> None:
    both = table(spark, made.whole, "messages").select("journal", "seq").collect()
    assert len({row["seq"] for row in both}) < len(both), "no number is in both"
    with pytest.raises(tl.UsageError, match="the query must also select `journal`"):
        select(spark, made.whole, "select seq from messages")
    chosen = select(spark, made.whole, "select seq, journal from messages where topic = 'ticks'")
    assert sorted(message.seq for message in messages_of(chosen)) == sorted(
        row["seq"] for row in table(spark, made.whole, "messages").where("topic = 'ticks'").collect()
    )


def test_another_journal_or_one_that_was_reset_is_refused(
    spark: SparkSession, made: Warehouses, tmp_path: Path
) -> None:
    reset = tmp_path / "north"
    forgetful(reset)
    with pytest.raises(WrongJournal, match=r"holds the journal north .*or was reset: use another warehouse"):
        Pipeline(spark, reset, made.parts).__enter__()
    with pytest.raises(tl.PipelineError, match="--add-journal"):
        status(reset, made.parts)
    moved = tmp_path / "moved"
    shutil.copytree(made.north, moved)
    with Pipeline(spark, moved, made.parts) as pipeline:
        assert [journal.name for journal in pipeline.journals] == ["north"]
        assert pipeline.run().steps == 0
    with Pipeline(spark, reset, made.parts, add_journals=True) as pipeline:
        assert [journal.name for journal in pipeline.journals] == ["north-2"]


def test_others_read_the_same_tables_by_their_delta_logs(spark: SparkSession, made: Warehouses) -> None:
    for name in names(Warehouse(made.whole).look()):
        rows = table(spark, made.whole, name).count()
        if not rows:
            continue
        found = DeltaTable(made.whole / name).to_pyarrow_table()
        assert found.num_rows == rows, name
        assert set(found.column("journal").to_pylist()) <= {"north", "south"}
    lake = DeltaTable(made.north / "messages").to_pyarrow_table()
    assert lake.num_rows == table(spark, made.whole, "messages").where("journal = 'north'").count()


def test_all_tables_can_be_made_anew(spark: SparkSession, made: Warehouses) -> None:
    with Pipeline(spark, made.north, made.parts) as pipeline:
        assert pipeline.rebuild()
        assert pipeline.warehouse.vacuum() == 0, "somebody may be reading"
        assert pipeline.warehouse.vacuum(older_than_s=0)
    for name in ("deliveries", "requests", "accounting", "typed_orders"):
        assert rows(spark, made.parts, name) == rows(spark, made.whole, name), name


def test_a_warehouse_forgets_what_is_older_than_it_keeps(spark: SparkSession, made: Warehouses) -> None:
    """The last of these tests: it removes hours."""
    with pytest.raises(tl.InvalidSettings, match="keep_s must be at least 10800"):
        PipelineSettings(keep_s=60)
    with Warehouse(made.parts) as warehouse:
        manifest = warehouse.manifest.copy()
        state = manifest.state("north")
        first, *later = sorted(state.hours)
        # As if it were much later: the first hour is beyond four hours then, and no other.
        state.upto_us += 3 * 3600 * 1_000_000
        warehouse.commit(manifest)
    settings = PipelineSettings(keep_s=4 * 3600, grace_s=0)
    with Pipeline(spark, made.north, made.parts, settings) as pipeline:
        assert pipeline.run().steps == 0
    for name in ("messages", "fates", "requests", "topic_minute", "typed_orders"):
        assert first not in Warehouse(made.parts).look().state("north").tables[name]
    hours = {row["hour"].strftime("%Y-%m-%dT%H") for row in table(spark, made.parts, "messages").collect()}
    assert hours == set(later)
    assert not list(made.parts.rglob(f"hour={first}")), "the directories are gone as well"
