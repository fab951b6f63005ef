"""The warehouse: a directory of tables, each an hour's rows in files of one run. The manifest says which count."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from trunkline.errors import WarehouseLocked, WarehouseUnusable
from trunkline.journal.lock import Lock
from trunkline.spark.pipeline import manifest as manifests
from trunkline.spark.pipeline.manifest import Manifest, hour_of, name_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCK = "pipeline.lock"
DAY = "_day"
PART = "_hour"
"""Columns that only say where a row lies: they are in the names of directories, not in the files."""


class Warehouse:
    """`with Warehouse(directory) as warehouse`: the one pipeline that writes here. To read, `open` is not needed."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._lock = Lock(self.directory, LOCK, WarehouseLocked)
        self.manifest = Manifest()

    def open(self) -> Self:
        """Raises WarehouseLocked if another pipeline works here."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise WarehouseUnusable(str(self.directory), str(error)) from error
        self._lock.take()
        try:
            self.manifest = manifests.load(self.directory)
            self._clear_away()
        except BaseException:
            self._lock.release()
            raise
        return self

    def close(self) -> None:
        self._lock.release()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def look(self) -> Manifest:
        """What counts now, for those who only read."""
        if not self.directory.is_dir():
            raise WarehouseUnusable(
                str(self.directory), "there is no warehouse here: `trunkline pipeline run` makes one"
            )
        return manifests.load(self.directory)

    # Where things lie

    def place(self, table: str, run: int) -> Path:
        return self.directory / table / f"run={run:06d}"

    def part(self, table: str, run: int, hour: str) -> Path:
        day, _, number = hour.partition("T")
        return self.place(table, run) / f"{DAY}={day}" / f"{PART}={number}"

    def parts(self, manifest: Manifest, table: str, hours: Iterable[str] | None = None) -> list[str]:
        """The directories that count, of these hours or of all."""
        listed = manifest.tables.get(table, {})
        wanted = sorted(listed) if hours is None else [hour for hour in sorted(hours) if hour in listed]
        return [str(self.part(table, run, hour)) for hour in wanted for run in listed[hour]]

    # Reading and writing

    def read(
        self, spark: SparkSession, manifest: Manifest, table: str, ddl: str, hours: Iterable[str] | None = None
    ) -> DataFrame:
        paths = self.parts(manifest, table, hours)
        if not paths:
            return spark.createDataFrame([], ddl)
        return spark.read.schema(ddl).option("recursiveFileLookup", "true").parquet(*paths)

    def write(self, table: str, run: int, rows: DataFrame) -> set[str]:
        """Put rows, each with an `hour`, where this run's lie; returns the hours there are. Not visible yet."""
        from pyspark.sql import functions as F

        place = self.place(table, run)
        placed = rows.withColumn(DAY, F.date_format("hour", "yyyy-MM-dd")).withColumn(PART, F.date_format("hour", "HH"))
        placed.write.mode("overwrite").partitionBy(DAY, PART).parquet(str(place))
        return self.hours_in(table, run)

    def hours_in(self, table: str, run: int) -> set[str]:
        found = self.place(table, run).glob(f"{DAY}=*/{PART}=*")
        return {f"{path.parent.name.partition('=')[2]}T{path.name.partition('=')[2]}" for path in found}

    def commit(self, manifest: Manifest) -> None:
        """From here on, what the run wrote is what there is."""
        for run in range(self.manifest.run + 1, manifest.run + 1):
            self._sync(run)
        before, old = self.manifest, self.manifest.replaced
        manifest.replaced = sorted(
            str(self.part(table, number, hour).relative_to(self.directory))
            for table, hours in before.tables.items()
            for hour, numbers in hours.items()
            for number in numbers
            if number not in manifest.tables.get(table, {}).get(hour, ())
        )
        manifests.save(self.directory, manifest)
        self.manifest = manifest
        for path in old:
            self._remove(self.directory / path)

    def _sync(self, run: int) -> None:
        for place in self.directory.glob(f"*/run={run:06d}"):
            for path, _, files in os.walk(place):
                for file in files:
                    with (Path(path) / file).open("rb") as written:
                        os.fsync(written.fileno())
                manifests.sync_directory(Path(path))
            manifests.sync_directory(place.parent)

    def _clear_away(self) -> None:
        """What a run that did not come to its end has left."""
        for place in self.directory.glob("*/run=*"):
            number = place.name.partition("=")[2]
            if number.isdigit() and int(number) > self.manifest.run:
                shutil.rmtree(place)

    def _remove(self, part: Path) -> None:
        shutil.rmtree(part, ignore_errors=True)
        # And what that leaves empty: its day, and the place of its run.
        for above in (part.parent, part.parent.parent):
            try:
                (above / "_SUCCESS").unlink(missing_ok=True)
                above.rmdir()
            except OSError:
                return


def hours_between(manifest: Manifest, since: datetime | None, until: datetime | None) -> list[str]:
    """The hours there are, from `since` up to, and not with, `until`."""
    first = "" if since is None else name_of(since)
    return [hour for hour in sorted(manifest.hours) if hour >= first and (until is None or hour_of(hour) < until)]
