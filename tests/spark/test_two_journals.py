"""Two journals in one warehouse, messages that were refused, and other horizons: the tables against plain Python."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import trunkline as tl
from tests.spark import truth_content, truth_gold, truth_silver
from tests.spark.journals import HOUR_NS, START_NS, live
from tests.spark.test_whole_runs import like
from tests.spark.traffic import Row, Traffic
from tests.spark.truth_journal import traffic_of
from trunkline.errors import HookFailed
from trunkline.hooks import Persist, Stage, each
from trunkline.journal import Journal
from trunkline.message import MessageType
from trunkline.spark.pipeline.run import Pipeline
from trunkline.spark.pipeline.views import table
from trunkline.spark.settings import PipelineSettings
from trunkline.testing import Simulation, simulate, world

ROUNDS = 8


def refuse_some(directory: Path, start_ns: int) -> None:
    """A journal of events and requests. A hook after the journal refuses every third one.

    Every second answer comes after half an hour, and events refer to requests of an hour before.
    """

    def choosy(message: tl.Message) -> tl.Message:
        if bytes(message.payload) == b"no":
            raise ValueError("no")
        return message

    async def publish(simulation: Simulation) -> None:
        there = world(simulation)
        with Journal(directory, world=there, threaded=False) as journal:
            hooks = [Persist(journal, ">"), each(choosy, stage=Stage.LIMIT)]
            async with tl.connect(hooks=hooks, world=there, name="shop") as bus, bus.subscribe(">", name="all"):
                for number in range(ROUNDS):
                    await asyncio.sleep(HOUR_NS / 5e9)
                    await say(bus, simulation, number)

    async def say(bus: tl.Bus, simulation: Simulation, number: int) -> None:
        name = f"{start_ns}-{number}"
        said: dict[str, Any] = {"payload": b"no" if number % 3 == 0 else b"yes", "sender": "shop"}
        asked: dict[str, Any] = {"type": MessageType.REQUEST, "request_id": name}
        answered: dict[str, Any] = {"type": MessageType.RESPONSE, "request_id": name}
        earlier = {"correlation_id": f"q-{start_ns}-{number - 3}"}
        for kind, topic, fields in (("q", "pricing", asked), ("a", "prices", answered), ("e", "orders.paid", earlier)):
            if kind == "a" and number % 2:
                await asyncio.sleep(1800)
            moment: dict[str, Any] = {"id": f"{kind}-{name}", "timestamp_ns": simulation.time_ns()}
            try:
                await bus.post(tl.Message(topic=topic, **said, **moment, **fields))
            except HookFailed:
                assert said["payload"] == b"no"

    simulate(publish, seed=1, start_ns=start_ns)


def rows(spark: SparkSession, warehouse: Path, name: str, journal: Path) -> list[Row]:
    found = table(spark, warehouse, name).where(f"journal = '{journal.name}'").drop("journal").collect()
    return [row.asDict(recursive=True) for row in found]


def expected(given: Traffic, settings: PipelineSettings) -> dict[str, tuple[list[Row], tuple[str, ...]]]:
    """By table: its rows, and the columns that identify them."""
    return {
        "messages": (given.messages, ("seq",)),
        "deliveries": (truth_silver.deliveries(given), ("seq", "subscriber")),
        "requests": (truth_silver.requests(given, settings), ("seq",)),
        "orphans": (truth_silver.orphans(given, settings), ("seq",)),
        "dead_letters": (truth_silver.dead_letters(given), ("subscriber", "seq")),
        "conversations": (truth_content.conversations(given, settings), ("root_id",)),
        "topic_minute": (truth_gold.topic_minute(given), ("topic", "minute")),
        "sender_minute": (truth_gold.sender_minute(given), ("sender", "minute")),
        "subscriber_minute": (truth_gold.subscriber_minute(given), ("subscriber", "minute")),
        "accounting": (truth_gold.accounting(given), ("topic", "subscriber", "hour")),
    }


@pytest.mark.long
@pytest.mark.parametrize(
    ("horizon_s", "few_rows", "outcomes"),
    [(600.0, 0, {"refused", "answered", "timed out"}), (5400.0, 50_000, {"refused", "answered"})],
    ids=["a short horizon, by Spark", "a long horizon, by the driver"],
)
def test_each_journal_has_the_rows_that_plain_python_makes(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    horizon_s: float,
    few_rows: int,
    outcomes: set[str],
) -> None:
    settings = PipelineSettings(horizon_s=horizon_s, watermark_s=1800, request_timeout_s=50, few_rows=few_rows)
    north, south, place = tmp_path / "north", tmp_path / "south", tmp_path / "warehouse"
    for number in range(2):
        start_ns = START_NS + number * HOUR_NS
        live(north, seed=number, size=40, start_ns=start_ns, gap_s=200.0)
        refuse_some(south, start_ns + number * 2 * HOUR_NS)
        with Pipeline(spark, [north, south], place, settings) as pipeline:
            assert pipeline.run().steps == 2
    monkeypatch.setattr(truth_gold, "requests", partial(truth_silver.requests, settings=settings))
    for journal in (north, south):
        given = traffic_of(journal, settings)
        refused = {row["fate"] for row in given.fates} & {"refused"}
        assert bool(refused) == (journal == south)
        for name, (wanted, key) in expected(given, settings).items():
            found = rows(spark, place, name, journal)
            try:
                like(found, wanted, key)
            except AssertionError as error:
                raise AssertionError(f"{name} of {journal.name}") from error
    assert {row["outcome"] for row in rows(spark, place, "requests", south)} == outcomes
