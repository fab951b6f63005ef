"""How a step reads, caches and writes its rows if they are many: with Spark. `FewRows` does the same for few rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from trunkline.spark.paths import for_reading
from trunkline.spark.pipeline.deliver import deliver, hours_about
from trunkline.spark.pipeline.journals import JournalSource
from trunkline.spark.pipeline.manifest import JournalState, Manifest, StoredFile
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.spark.tables import deliveries
from trunkline.spark.tables.bronze import FATES, MESSAGES
from trunkline.spark.tables.driver_frame import arrow_frame
from trunkline.spark.tables.related import related
from trunkline.spark.tables.table import Contents, Held, Table, checkpoint
from trunkline.spark.tables.traffic import traffic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTINGS: Mapping[str, str] = {
    # Otherwise Spark sorts all rows by hour before it writes them, although nearly all have the same hour.
    "spark.sql.maxConcurrentOutputFileWriters": "64",
    # If each partition after a shuffle is smaller than this, Spark uses a hash join, which needs no sort.
    "spark.sql.adaptive.maxShuffledHashJoinLocalMapThreshold": "64m",
}


class Place:
    """Where a step reads and writes: the tables of one journal, with the manifest of this run."""

    def __init__(self, warehouse: Warehouse, manifest: Manifest, journal: JournalSource) -> None:
        self.warehouse = warehouse
        self.manifest = manifest
        self.journal = journal.name
        self.state: JournalState = manifest.state(journal.name)


class StepRows(Protocol):
    @property
    def settings(self) -> Mapping[str, str]:
        """Settings of the Spark session during the step."""

    @property
    def contents(self) -> Contents | None:
        """A summary of the messages and fates; None if it is not known."""

    def messages(self, hours: list[str]) -> DataFrame: ...

    def traffic(self, messages: DataFrame) -> DataFrame:
        """See traffic.py. Many tables read it."""

    def related(self, messages: DataFrame) -> DataFrame:
        """See related.py. Several tables read it."""

    def fates(self, first: int, last: int) -> DataFrame:
        """Fates that refer to messages with these numbers."""

    def given(self, rows: pa.Table) -> DataFrame:
        """A DataFrame of rows that the driver has in memory."""

    def write(self, table: Table, rows: DataFrame) -> dict[str, list[StoredFile]]:
        """Write rows to new files. Returns the files by hour. They are not committed yet."""

    def made(self, table: Table) -> DataFrame:
        """The rows of a table that were written in this step."""

    def deliver(self, hours: list[str]) -> dict[str, list[StoredFile]]:
        """Write the deliveries of these hours. Returns the files by hour. They are not committed yet."""

    def settled(self) -> DataFrame:
        """See settled.py. Several tables read it, after the deliveries were written."""

    def hold(self, rows: DataFrame) -> Held:
        """Compute rows that are needed more than once, and keep the result."""

    def release(self) -> None:
        """Release all cached rows."""


class ManyRows:
    """Rows that Spark reads and writes."""

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
        return self._cached(traffic(messages))

    def related(self, messages: DataFrame) -> DataFrame:
        # Keeps rows. A cache of columns, as of `persist`, takes three times as long to fill, and all columns are read.
        return related(messages).localCheckpoint(eager=False)

    def fates(self, first: int, last: int) -> DataFrame:
        found = self._read(FATES, hours_about(self._place.state, first, last))
        return found.where((F.col("last") >= first) & (F.col("first") <= last))

    def given(self, rows: pa.Table) -> DataFrame:
        return arrow_frame(self._spark, rows)

    def write(self, table: Table, rows: DataFrame) -> dict[str, list[StoredFile]]:
        place = self._place
        found = place.warehouse.write(table.name, place.journal, place.manifest.run, rows)
        self._written[table.name] = set(found)
        return found

    def made(self, table: Table) -> DataFrame:
        return self._read(table, self._written[table.name])

    def deliver(self, hours: list[str]) -> dict[str, list[StoredFile]]:
        place = self._place
        files, counts = deliver(place, hours)
        self._written[deliveries.TABLE.name] = set(files)
        with place.warehouse.reports_errors():
            pq.write_table(counts, self._counts())
        return files

    def settled(self) -> DataFrame:
        return self._spark.read.parquet(for_reading(self._counts()))

    def _counts(self) -> Path:
        return self._place.warehouse.staging(self._place.manifest.run) / "settled.parquet"

    def hold(self, rows: DataFrame) -> Held:
        return checkpoint(rows)

    def release(self) -> None:
        for each in self._kept:
            each.unpersist()

    def _cached(self, rows: DataFrame) -> DataFrame:
        """The same rows, computed on first use and kept until the end of the step."""
        self._kept.append(rows.persist())
        return rows

    def _read(self, table: Table, hours: set[str]) -> DataFrame:
        place = self._place
        return place.warehouse.read(self._spark, place.manifest, table, hours, place.journal).drop("journal")
