"""A warehouse of a hundred hours with the same number of messages each, and its journal, which can grow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.servers import Server, directory
from benchmarks.spark_hours import BEGIN_NS, HOUR_NS, HOURS, HourlyJournal
from benchmarks.spark_lakes import SPARK

if TYPE_CHECKING:
    from trunkline.spark.pipeline.run import Pipeline


class HourlyWarehouse:
    """Built once from `count` messages. `grow` adds an hour to the journal, and `pipeline` ingests it."""

    def __init__(self, place: Path, count: int) -> None:
        self.per_hour = max(1, count // HOURS)
        self.warehouse = place / "warehouse"
        self._journal = HourlyJournal(place, self.per_hour)
        self.grow = self._journal.grow

    def make(self) -> None:
        """Build all tables."""
        self._journal.fill()
        with self.pipeline() as pipeline:
            pipeline.run()

    def make_messages(self) -> None:
        """Build only the messages, the first part of a run."""
        from trunkline.spark.pipeline.ingest import Ingest
        from trunkline.spark.pipeline.outlook import Ends

        self._journal.fill()
        with self.pipeline() as pipeline:
            manifest = pipeline.warehouse.manifest.copy()
            manifest.run += 1
            (journal,) = pipeline.journals
            ingest = Ingest(pipeline.spark, journal, pipeline.warehouse, pipeline.settings, manifest)
            ingest.messages(Ends(journal.directory).seq)
            pipeline.warehouse.commit(manifest)

    def pipeline(self) -> Pipeline:
        from trunkline.spark.pipeline.run import Pipeline

        with SPARK.running() as spark:
            return Pipeline(spark, self._journal.directory, self.warehouse)

    def hour_us(self, number: int) -> int:
        """The beginning of an hour, in microseconds since 1970."""
        return (BEGIN_NS + number * HOUR_NS) // 1000


class HourlyWarehouses:
    def __init__(self, place: Path) -> None:
        self._place = place
        self._made: dict[Path, HourlyWarehouse] = {}

    def of(self, count: int) -> HourlyWarehouse:
        return self._get("all tables", count, HourlyWarehouse.make)

    def messages_of(self, count: int) -> HourlyWarehouse:
        """A warehouse with only the table of messages."""
        return self._get("messages", count, HourlyWarehouse.make_messages)

    def _get(self, kind: str, count: int, make: Callable[[HourlyWarehouse], None]) -> HourlyWarehouse:
        place = self._place / kind / f"{count}"
        if place not in self._made:
            made = HourlyWarehouse(place, count)
            make(made)
            self._made[place] = made
        return self._made[place]


@contextmanager
def _warehouses(folder: Path) -> Iterator[HourlyWarehouses]:
    with directory() as place:
        yield HourlyWarehouses(place)


WAREHOUSES = Server(_warehouses)
