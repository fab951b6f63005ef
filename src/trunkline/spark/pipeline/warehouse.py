"""The warehouse: a directory of tables. The manifest says which files count.

Bronze is made of files as the lake has them. All other tables have, for each hour, the files of one run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Self

from trunkline.journal.database import sync_path
from trunkline.journal.lock import Lock
from trunkline.journal.sealed import File
from trunkline.spark.errors import WarehouseLocked, WarehouseUnusable
from trunkline.spark.paths import for_reading, for_writing
from trunkline.spark.pipeline import manifest as manifests
from trunkline.spark.pipeline.manifest import Manifest, at, hour_of, name_of
from trunkline.spark.source.dataframe import VERIFY
from trunkline.spark.tables.bronze import AS_SEALED, placed, stored
from trunkline.spark.tables.table import Table, seconds
from trunkline.spark.tables.times import HOUR_S, day_of, hour_number, hour_of_day

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCK = "pipeline.lock"
DAY = "_day"
PART = "_hour"
"""Columns that only say where a row lies: they are in the names of directories, not in the files."""
UNIQUE = ("seq", "id", "request_id", "answer_seq", "answer_id", "root_id", "key", "published", "asked", "answered")
"""Columns whose values rarely repeat: a dictionary of them takes longer than all the rest of writing."""


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

    def __exit__(self, *_: object) -> None:
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
        return self.place(table, run) / f"{DAY}={day}" / f"{PART}={int(number)}"

    def parts(self, manifest: Manifest, table: str, hours: Iterable[str] | None = None) -> list[str]:
        """The directories that count, of these hours or of all."""
        listed = manifest.tables.get(table, {})
        wanted = sorted(listed) if hours is None else [hour for hour in sorted(hours) if hour in listed]
        return [for_reading(self.part(table, run, hour)) for hour in wanted for run in listed[hour]]

    def reach(self, manifest: Manifest, file: File) -> tuple[str, str]:
        """The hours between which the rows of a file of bronze are placed."""
        # By their own time if that is near enough to when they were taken, and otherwise by the latter.
        far_ns = int(manifest.watermark_s * 1e9)
        low_ns = min(file.at_ns, max(file.since_ns, file.at_ns - far_ns))
        high_ns = max(file.until_at_ns, min(file.until_ns, file.until_at_ns + far_ns))
        return name_of(at(low_ns // 1_000_000_000)), name_of(at(high_ns // 1_000_000_000))

    # Reading and writing

    def read(
        self, spark: SparkSession, manifest: Manifest, table: Table, hours: Iterable[str] | None = None
    ) -> DataFrame:
        if table.name in AS_SEALED:
            return self._read_bronze(spark, manifest, table, None if hours is None else set(hours))
        paths = self.parts(manifest, table.name, hours)
        if not paths:
            return spark.createDataFrame([], table.ddl)
        return spark.read.schema(table.ddl).option("recursiveFileLookup", "true").parquet(*paths)

    def _read_bronze(self, spark: SparkSession, manifest: Manifest, table: Table, hours: set[str] | None) -> DataFrame:
        files = manifest.bronze.get(table.name, [])
        if hours is None:
            return self.rows_of(spark, manifest, table.name, files)
        met = [file for file in files if self._meets(manifest, file, hours)]
        rows = self.rows_of(spark, manifest, table.name, met)
        reaches = [self.reach(manifest, file) for file in met]
        if all(low == high for low, high in reaches):
            return rows
        numbers = sorted(seconds(hour_of(hour)) // HOUR_S for hour in hours)
        return rows.where(hour_number("hour").isin(numbers))

    def _meets(self, manifest: Manifest, file: File, hours: set[str]) -> bool:
        low, high = self.reach(manifest, file)
        return low in hours if low == high else any(low <= hour <= high for hour in hours)

    def rows_of(self, spark: SparkSession, manifest: Manifest, kind: str, files: Sequence[File]) -> DataFrame:
        """All that is in these files of bronze."""
        table = AS_SEALED[kind]
        if not files:
            return spark.createDataFrame([], table.ddl)
        paths = [for_reading(self.directory / file.path) for file in files]
        rows = spark.read.schema(stored(table)).option(VERIFY, "true").parquet(*paths)
        return table.shape(placed(kind, rows, manifest.watermark_s))

    def write(self, table: str, run: int, rows: DataFrame) -> set[str]:
        """Put rows, each with an `hour`, where this run's lie; returns the hours there are. Not visible yet."""
        place = self.place(table, run)
        lying = rows.withColumns({DAY: day_of("hour"), PART: hour_of_day("hour")})
        writer = lying.write.mode("overwrite").partitionBy(DAY, PART)
        for name in UNIQUE:
            writer = writer.option(f"parquet.enable.dictionary#{name}", "false")
        writer.parquet(for_writing(place))
        return self.hours_in(table, run)

    def hours_in(self, table: str, run: int) -> set[str]:
        found = self.place(table, run).glob(f"{DAY}=*/{PART}=*")
        return {f"{path.parent.name.partition('=')[2]}T{int(path.name.partition('=')[2]):02d}" for path in found}

    def commit(self, manifest: Manifest) -> None:
        """From here on, what the run wrote is what there is."""
        for run in range(self.manifest.run + 1, manifest.run + 1):
            self._sync(run)
        before, old = self.manifest, self.manifest.replaced
        manifest.replaced = sorted(self._lying(before) - self._lying(manifest))
        manifests.save(self.directory, manifest)
        self.manifest = manifest
        for path in old:
            self._remove(self.directory / path)

    def _lying(self, manifest: Manifest) -> set[str]:
        """What counts: files of bronze, directories of the other tables."""
        files = {file.path for files in manifest.bronze.values() for file in files}
        return files | {
            self.part(table, number, hour).relative_to(self.directory).as_posix()
            for table, hours in manifest.tables.items()
            for hour, numbers in hours.items()
            for number in numbers
        }

    def _sync(self, run: int) -> None:
        for place in self.directory.glob(f"*/run={run:06d}"):
            for path, _, files in os.walk(place):
                for file in files:
                    with (Path(path) / file).open("rb") as written:
                        os.fsync(written.fileno())
                sync_path(Path(path))
            sync_path(place.parent)

    def _clear_away(self) -> None:
        """What a run that did not come to its end has left."""
        for place in self.directory.glob("*/run=*"):
            number = place.name.partition("=")[2]
            if number.isdigit() and int(number) > self.manifest.run:
                shutil.rmtree(place)

    def _remove(self, part: Path) -> None:
        if part.is_file():
            part.unlink()
        else:
            shutil.rmtree(part, ignore_errors=True)
        # And what that leaves empty: its day, and the place of its run.
        for above in (part.parent, part.parent.parent, part.parent.parent.parent):
            try:
                if above == self.directory:
                    return
                (above / "_SUCCESS").unlink(missing_ok=True)
                above.rmdir()
            except OSError:
                return


def hours_between(manifest: Manifest, since: datetime | None, until: datetime | None) -> list[str]:
    """The hours there are, from `since` up to, and not with, `until`."""
    first = "" if since is None else name_of(since)
    return [hour for hour in sorted(manifest.hours) if hour >= first and (until is None or hour_of(hour) < until)]
