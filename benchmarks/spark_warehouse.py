"""A warehouse of a hundred hours, each with as many messages, and its journal, which goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trunkline as tl
from benchmarks.durable import payloads
from benchmarks.servers import Server, directory
from benchmarks.spark_lakes import SPARK
from trunkline.clock import World
from trunkline.journal import Journal, JournalSettings
from trunkline.journal.settings import Sync

if TYPE_CHECKING:
    from trunkline.spark.pipeline.run import Pipeline

HOURS = 100
HOUR_NS = 3_600_000_000_000
BEGIN_NS = 1_763_290_800 * 1_000_000_000
TOPICS = 10
SETTINGS = JournalSettings(seal=False, sync=Sync.SYSTEM)


class HourlyWarehouse:
    """Made once of `count` messages; `grow` adds an hour to the journal, and `pipeline` takes it in."""

    def __init__(self, place: Path, count: int) -> None:
        self.journal = place / f"{count}"
        self.warehouse = self.journal / "warehouse"
        self.per_hour = max(1, count // HOURS)
        self._hours = 0

    def make(self) -> None:
        for _ in range(HOURS):
            self.grow()
        with Journal(self.journal, SETTINGS) as journal:
            journal.seal(everything=True)
        with self.pipeline() as pipeline:
            pipeline.run()

    def grow(self) -> None:
        with Journal(self.journal, SETTINGS, world=self._world()) as journal:
            asyncio.run(self._publish(journal))
        self._hours += 1

    def pipeline(self) -> Pipeline:
        from trunkline.spark.pipeline.run import Pipeline

        with SPARK.running() as spark:
            return Pipeline(spark, self.journal, self.warehouse)

    def hour_us(self, number: int) -> int:
        """The beginning of an hour, in microseconds since 1970."""
        return (BEGIN_NS + number * HOUR_NS) // 1000

    def _world(self) -> World:
        now_ns = BEGIN_NS + self._hours * HOUR_NS
        step_ns = HOUR_NS // (8 * self.per_hour)

        def time_ns() -> int:
            nonlocal now_ns
            now_ns += step_ns if now_ns < BEGIN_NS + (self._hours + 1) * HOUR_NS - step_ns else 0
            return now_ns

        return World(time_ns=time_ns)

    async def _publish(self, journal: Journal) -> None:
        world = self._world()
        async with tl.connect("memory:", name="shop", journal=journal, world=world) as bus, bus.subscribe(">") as heard:
            left = self.per_hour
            while left:
                some = min(left, 500)
                await bus.publish_many(f"events.{left % TOPICS}", payloads(some))
                for _ in range(some):
                    await heard.recv()
                left -= some


class HourlyWarehouses:
    def __init__(self, place: Path) -> None:
        self._place = place
        self._made: dict[int, HourlyWarehouse] = {}

    def of(self, count: int) -> HourlyWarehouse:
        if count not in self._made:
            made = HourlyWarehouse(self._place, count)
            made.make()
            self._made[count] = made
        return self._made[count]


@contextmanager
def _warehouses(folder: Path) -> Iterator[HourlyWarehouses]:
    with directory() as place:
        yield HourlyWarehouses(place)


WAREHOUSES = Server(_warehouses)
