"""What happens hours after a message was taken in: its id comes again, or somebody claims an answer nobody wanted."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pyspark.sql import SparkSession

import trunkline as tl
from tests.spark.journals import HOUR_NS, START_NS
from trunkline.journal import Journal
from trunkline.message import MessageType
from trunkline.spark.pipeline.outlook import last_run
from trunkline.spark.pipeline.repeats import Suspect, left_out
from trunkline.spark.pipeline.run import Pipeline
from trunkline.spark.pipeline.views import names, table
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.testing import Simulation, simulate, world

CLAIMED = 10


def shop(journal: Path, later: int) -> None:
    """An answer comes that nobody waits for until hours later, when nothing else happens."""

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
