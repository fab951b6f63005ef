"""How a step has its rows read, kept and written, if they are many: by Spark. `FewRows` has the same for few."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from pyspark.sql import functions as F

from trunkline.spark.pipeline.journals import JournalSource
from trunkline.spark.pipeline.manifest import JournalState, Manifest, StoredFile
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.spark.tables.bronze import FATES, MESSAGES
from trunkline.spark.tables.table import Contents, Held, Table, checkpoint
from trunkline.spark.tables.traffic import traffic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS: Mapping[str, str] = {"spark.sql.maxConcurrentOutputFileWriters": "64"}
"""Otherwise all rows are sorted before they are written, by the hour that nearly all of them share."""


class Place:
    """Where a run reads and writes: the tables of one journal, as the manifest of this run has them."""

    def __init__(self, warehouse: Warehouse, manifest: Manifest, journal: JournalSource) -> None:
        self.warehouse = warehouse
        self.manifest = manifest
        self.journal = journal.name
        self.state: JournalState = manifest.state(journal.name)


class StepRows(Protocol):
    @property
    def settings(self) -> Mapping[str, str]:
        """What the session is to be set to."""

    @property
    def contents(self) -> Contents | None:
        """What there is in the messages and fates, if that is known."""

    def messages(self, hours: list[str]) -> DataFrame: ...

    def traffic(self, messages: DataFrame) -> DataFrame:
        """See traffic.py. It is looked at by many tables."""

    def fates(self, first: int, last: int) -> DataFrame:
        """Those that are about messages with these numbers."""

    def given(self, rows: pa.Table) -> DataFrame:
        """Rows that the driver has."""

    def write(self, table: Table, rows: DataFrame) -> dict[str, list[StoredFile]]:
        """Put rows into new files; returns them by hour. They do not count yet."""

    def made(self, table: Table) -> DataFrame:
        """What was written of a table in this run."""

    def hold(self, rows: DataFrame) -> Held:
        """Rows that are needed more than once."""

    def release(self) -> None:
        """What was kept is not needed any more."""


class ManyRows:
    """Read and written by Spark."""

    settings = SETTINGS
    contents = None

    def __init__(self, spark: SparkSession, place: Place) -> None:
        self._spark = spark
        self._place = place
        self._written: dict[str, set[str]] = {}
        self._kept: list[DataFrame] = []

    def messages(self, hours: list[str]) -> DataFrame:
        return self._read(MESSAGES, set(hours))

    def traffic(self, messages: DataFrame) -> DataFrame:
        self._kept.append(traffic(messages).persist())
        return self._kept[-1]

    def fates(self, first: int, last: int) -> DataFrame:
        found = self._read(FATES, hours_about(self._place.state, first, last))
        return found.where((F.col("last") >= first) & (F.col("first") <= last))

    def given(self, rows: pa.Table) -> DataFrame:
        return self._spark.createDataFrame(rows)

    def write(self, table: Table, rows: DataFrame) -> dict[str, list[StoredFile]]:
        place = self._place
        found = place.warehouse.write(table.name, place.journal, place.manifest.run, rows)
        self._written[table.name] = set(found)
        return found

    def made(self, table: Table) -> DataFrame:
        return self._read(table, self._written[table.name])

    def hold(self, rows: DataFrame) -> Held:
        return checkpoint(rows)

    def release(self) -> None:
        for each in self._kept:
            each.unpersist()

    def _read(self, table: Table, hours: set[str]) -> DataFrame:
        place = self._place
        return place.warehouse.read(self._spark, place.manifest, table, hours, place.journal).drop("journal")


def hours_about(state: JournalState, first: int, last: int) -> set[str]:
    """The hours of fates that may be about messages with these numbers."""
    return {hour for hour, span in state.fate_hours.items() if span.meets(first, last)}
