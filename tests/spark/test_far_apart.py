"""Events hours after a message was ingested: its id is repeated, or an orphan is claimed."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import trunkline as tl
from tests.spark.journals import HOUR_NS, START_NS
from trunkline.journal import Journal
from trunkline.message import MessageType
from trunkline.spark.pipeline import ingest, repeats
from trunkline.spark.pipeline.outlook import last_run
from trunkline.spark.pipeline.repeats import Suspect, left_out, suspects
from trunkline.spark.pipeline.run import Pipeline
from trunkline.spark.pipeline.views import names, table
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.testing import Simulation, simulate, world

CLAIMED = 10


def shop(journal: Path, later: int) -> None:
    """An orphan arrives that is claimed only hours later, when nothing else happens."""

    async def live(simulation: Simulation) -> None:
        there = world(simulation)
        with Journal(journal, world=there, threaded=False) as kept:
            async with tl.connect("memory:", name="shop", journal=kept, world=there) as bus:
                if later == CLAIMED:
                    assert bus.replay_orphans().count == 1
                    assert await bus.wait_reply("asked", timeout_s=5) == 9
                    return
                now_ns = simulation.time_ns()
                await bus.post(tl.Message(id="again", topic="ticks", sender="bank", timestamp_ns=now_ns))
                if not later:
                    await bus.post(tl.Message(type=MessageType.RESPONSE, request_id="asked", payload=9))
                    await asyncio.sleep(3 * 3600)
                    await bus.publish("ticks", 1)  # what came before is no longer at the end of the stream
                await bus.quiet()
                await bus.flush()

    simulate(live, start_ns=START_NS + later * HOUR_NS)


def rows(spark: SparkSession, warehouse: Path) -> dict[str, list[str]]:
    found = names(Warehouse(warehouse).look())
    return {name: sorted(map(repr, table(spark, warehouse, name).collect())) for name in found}


def test_two_runs_are_as_one(spark: SparkSession, tmp_path: Path) -> None:
    journal, parts, whole = tmp_path / "journal", tmp_path / "parts", tmp_path / "whole"
    shop(journal, 0)
    with Pipeline(spark, journal, parts) as pipeline:
        pipeline.run()
    assert table(spark, parts, "orphans").count() == 1
    shop(journal, 5)
    with Pipeline(spark, journal, parts) as pipeline:
        assert pipeline.run().messages == 1
    shop(journal, CLAIMED)
    assert last_run([journal], parts) is None, "there is something to do"
    for place in (parts, whole):
        with Pipeline(spark, journal, place) as pipeline:
            assert pipeline.run().steps == 1
            assert pipeline.run().steps == 0
    assert last_run([journal], parts) == 3
    assert rows(spark, parts) == rows(spark, whole)
    assert table(spark, whole, "orphans").count() == 0, "it was claimed"
    assert table(spark, whole, "messages").where("id = 'again'").count() == 2, "they are hours apart"


def test_an_id_is_left_out_if_it_is_near_one_that_was_kept() -> None:
    hours = {1: 10, 2: 10, 3: 11, 4: 12, 5: 9, 6: 20}
    every = [Suspect(seq, "a", at, True) for seq, at in hours.items()]
    assert left_out([*every, Suspect(7, "b", 20, True)], 1) == [2, 3, 5]
    for taken in range(1, 6):
        before = left_out(every[:taken], 1)
        kept = [each._replace(is_new=False) for each in every[:taken] if each.seq not in before]
        assert [*before, *left_out([*kept, *every[taken:]], 1)] == [2, 3, 5], "however they are divided"


@pytest.mark.parametrize("sorted_here", [3, 1000])
def test_ids_that_occur_more_than_once_are_found_however_many_there_are(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, sorted_here: int
) -> None:
    monkeypatch.setattr(repeats, "SORTED_HERE", sorted_here)
    rows = [Suspect(seq, f"id {seq * seq % 17}" if seq % 3 else f"only {seq}", seq // 5, seq > 6) for seq in range(20)]
    frame = driver_frame(spark, rows, "seq long, id string, at long, is_new boolean")
    given = frame.selectExpr("seq", "id", "timestamp_seconds(at * 3600) hour", "is_new")
    counts = Counter(row.id for row in rows)
    expected = [row for row in rows if counts[row.id] > 1]
    assert expected
    assert sorted(suspects(given, len(rows))) == expected
    assert suspects(given.where("seq % 3 = 0"), 7) == [], "each of them once"


def test_many_messages_are_compared_as_few_are(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, places = tmp_path / "journal", [tmp_path / "few", tmp_path / "many"]
    found = []
    for later in (0, 5, 5):
        shop(journal, later)
    for place, limit in zip(places, (ingest.COMPARED_HERE, 0), strict=True):
        monkeypatch.setattr(ingest, "COMPARED_HERE", limit)
        with Pipeline(spark, journal, place) as pipeline:
            found.append(pipeline.run())
    assert found[0].duplicates == 1
    assert found[1] == found[0]
    assert rows(spark, places[1]) == rows(spark, places[0])
