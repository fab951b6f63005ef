"""The warehouse: a directory of tables, in Parquet files by journal and hour. The manifest lists the current files."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyarrow.parquet as pq
from pyspark.errors import PySparkException

from trunkline.clock import World
from trunkline.journal.database import sync_path
from trunkline.journal.lock import Lock
from trunkline.moment import Moment
from trunkline.spark.errors import WarehouseLocked, WarehouseUnusable
from trunkline.spark.paths import for_reading, for_writing
from trunkline.spark.pipeline import delta
from trunkline.spark.pipeline import manifest as manifests
from trunkline.spark.pipeline.manifest import Manifest, StoredFile, folder_of, hour_of, in_utc, name_of, name_of_number
from trunkline.spark.tables.bronze import placed, stored
from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.spark.tables.table import Table
from trunkline.spark.tables.times import hour_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCK = "pipeline.lock"
STAGING = ".staging"
"""The directory for files of an uncommitted run. It exists during a run, and after a run that was interrupted."""
UNIQUE = ("seq", "id", "request_id", "answer_seq", "answer_id", "root_id", "key", "published", "asked", "answered")
"""Columns whose values rarely repeat. Building dictionaries of them takes longer than the rest of the write."""
VERIFY = "parquet.page.verify-checksum.enabled"
GRACE_S = 3600.0
LITTLE_BYTES = 16 * 1024 * 1024
FULL = "the disk is full: make room, and run the pipeline again"


class Warehouse:
    """`with Warehouse(directory) as warehouse` opens a warehouse for writing. Only one pipeline can write at a time.

    Reading does not need `open`. Files that a run replaces are kept for `grace_s`, so that running queries can finish.
    """

    def __init__(self, directory: str | Path, *, grace_s: float = GRACE_S, world: World | None = None) -> None:
        self.directory = Path(directory)
        self._lock = Lock(self.directory, LOCK, WarehouseLocked)
        self._grace_s = grace_s
        self._world = world or World()
        self._written: set[Path] = set()
        """Files in their final places that are not committed yet."""
        self.manifest = Manifest()

    def open(self) -> Self:
        """Take the lock and load the manifest. Raises WarehouseLocked if another pipeline has the lock."""
        with self.reports_errors():
            self.directory.mkdir(parents=True, exist_ok=True)
        self._lock.take()
        try:
            self.manifest = manifests.load(self.directory)
            self._clear_away()
            self._follow()
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
        """The current manifest, for reading without the lock."""
        if not self.directory.is_dir():
            raise WarehouseUnusable(
                str(self.directory), "there is no warehouse here: `trunkline pipeline run` makes one"
            )
        return manifests.load(self.directory)

    def set_aside_older(self) -> Path | None:
        """Move the tables of an older layout to a subdirectory. Returns it, or None if the layout is not older.

        The manifest is moved last: if this is interrupted, the next call moves the rest.
        """
        layout = manifests.layout_of(self.directory)
        if layout is None or layout >= manifests.LAYOUT:
            return None
        place = self.directory / f"layout-{layout}"
        self._lock.take()
        try:
            with self.reports_errors():
                place.mkdir(exist_ok=True)
                others = {path.name for path in self.directory.iterdir()} - {LOCK, place.name, manifests.FILE}
                for name in (*sorted(others), manifests.FILE):
                    (self.directory / name).rename(place / name)
        finally:
            self._lock.release()
        return place

    # Reading

    def read(
        self,
        spark: SparkSession,
        manifest: Manifest,
        table: Table,
        hours: Iterable[str] | None = None,
        journal: str | None = None,
    ) -> DataFrame:
        """The rows of a table: of some hours or all, of one journal or all."""
        states = manifest.journals if journal is None else {journal: manifest.state(journal)}
        found = {name: state.tables.get(table.name, {}) for name, state in states.items()}
        wanted = None if hours is None else set(hours)
        chosen = {
            name: {hour: files for hour, files in sorted(listed.items()) if wanted is None or hour in wanted}
            for name, listed in found.items()
        }
        return self.rows_of(spark, manifest, table, chosen)

    def rows_of(
        self,
        spark: SparkSession,
        manifest: Manifest,
        table: Table,
        files: Mapping[str, Mapping[str, Sequence[StoredFile]]],
    ) -> DataFrame:
        """The rows of these files of a table. `files` is by journal and hour."""
        paths = [
            for_reading(self.directory / folder_of(table.name, journal, hour) / file.name)
            for journal, hours in files.items()
            for hour, several in hours.items()
            for file in several
        ]
        if not paths:
            return driver_frame(spark, [], table.ddl)
        base = self.directory / table.name
        # `hour` is a partition column, so a condition on it selects files. Spark parses a directory name once per file
        # in this time zone. An expression on the name would run for each row and take half as long as the scan.
        reader = spark.read.schema(f"{stored(table)}, journal string, hour timestamp").option("timeZone", "UTC")
        reader = reader.option("basePath", for_writing(base)).option(VERIFY, "true")
        return table.shape(placed(table.name, reader.parquet(*paths), manifest.watermark_s))

    # Writing

    def write(self, table: str, journal: str, run: int, rows: DataFrame) -> dict[str, list[StoredFile]]:
        """Write rows, each with an `hour`, to new files. Returns the files by hour. They are not committed yet."""
        staging = self.staging(run) / table
        # Partitioned by the number of the hour: formatting its name for each row takes half as long as a scan.
        lying = rows.drop("journal").withColumn("hour", hour_number("hour"))
        writer = lying.write.mode("overwrite").partitionBy("hour").option("compression", "zstd")
        for name in UNIQUE:
            writer = writer.option(f"parquet.enable.dictionary#{name}", "false")
        try:
            writer.parquet(for_writing(staging))
        except PySparkException as error:
            # The error text of Spark for a full disk is a page long.
            if shutil.disk_usage(self.directory).free < LITTLE_BYTES:
                raise WarehouseUnusable(str(self.directory), FULL) from error
            raise
        found: dict[str, list[StoredFile]] = {}
        with self.reports_errors():
            for path in sorted(staging.glob("hour=*/*.parquet")):
                hour = name_of_number(int(path.parent.name.partition("=")[2]))
                listed = found.setdefault(hour, [])
                name = f"{run:06d}-{len(listed)}.parquet"
                count = pq.read_metadata(path).num_rows
                listed.append(self.keep(path, table, journal, hour, StoredFile(name, count, path.stat().st_size)))
            shutil.rmtree(staging)
        return found

    def staging(self, run: int) -> Path:
        """The directory for files of a run that are not in their final place yet."""
        place = self.directory / STAGING / f"{run:06d}"
        with self.reports_errors():
            place.mkdir(parents=True, exist_ok=True)
        return place

    def keep(self, path: Path, table: str, journal: str, hour: str, file: StoredFile) -> StoredFile:
        """Move a file to its final place."""
        place = self.place_of(table, journal, hour, file)
        os.rename(path, place)
        return file

    def place_of(self, table: str, journal: str, hour: str, file: StoredFile) -> Path:
        """The final place of a new file. The next commit syncs the file."""
        place = self.directory / folder_of(table, journal, hour) / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        self._written.add(place)
        return place

    def commit(self, manifest: Manifest) -> None:
        """Make the files of a run current, and delete files whose grace period is over."""
        with self.reports_errors():
            self._sync()
            now = self._world.time_ns() / 1e9
            counting = manifest.paths()
            gone = dict.fromkeys(self.manifest.paths() - counting, now)
            manifest.replaced = {**self.manifest.replaced, **gone}
            old = {path for path, since in manifest.replaced.items() if now - since >= self._grace_s}
            manifest.replaced = {path: since for path, since in manifest.replaced.items() if path not in old}
            manifests.save(self.directory, manifest)
            self.manifest = manifest
            # Before files are deleted: no log may refer to a deleted file.
            self._follow()
            self._remove(old - counting)
            shutil.rmtree(self.directory / STAGING, ignore_errors=True)

    def vacuum(self, older_than_s: float | None = None) -> int:
        """Delete files replaced at least this long ago, by default the grace period. Returns how many."""
        self._grace_s, before = self._grace_s if older_than_s is None else older_than_s, self._grace_s
        count = len(self.manifest.replaced)
        try:
            self.commit(self.manifest.copy())
        finally:
            self._grace_s = before
        return count - len(self.manifest.replaced)

    @contextmanager
    def reports_errors(self) -> Iterator[None]:
        """Raise an error of the file system as WarehouseUnusable."""
        try:
            yield
        except OSError as error:
            why = FULL if error.errno == errno.ENOSPC else str(error)
            raise WarehouseUnusable(str(self.directory), why) from error

    def keep_logs(self, wanted: bool) -> None:
        """Set whether a Delta log is kept beside each table."""
        if self.manifest.delta and not wanted:
            with self.reports_errors():
                delta.remove_logs(self.directory)
        if self.manifest.delta != wanted:
            self.manifest.delta = wanted
            self.commit(self.manifest.copy())

    def _follow(self) -> None:
        if self.manifest.delta:
            delta.follow_manifest(self.directory, self.manifest, self._world)

    def _sync(self) -> None:
        folders = set()
        for path in self._written:
            if path.exists():
                sync_path(path)
                folders |= {path.parent, path.parent.parent, path.parent.parent.parent}
        for folder in folders:
            sync_path(folder)
        self._written.clear()

    def _clear_away(self) -> None:
        """Delete the files of a run that was interrupted."""
        staging = self.directory / STAGING
        if not staging.is_dir():
            return
        with self.reports_errors():
            for path in self.directory.glob("*/journal=*/hour=*/*.parquet"):
                number = path.name.partition("-")[0]
                if number.isdigit() and int(number) > self.manifest.run:
                    self._remove([path.relative_to(self.directory).as_posix()])
            shutil.rmtree(staging)

    def _remove(self, paths: Iterable[str]) -> None:
        """Delete files, and the directories of hours and journals that become empty."""
        for path in paths:
            file = self.directory / path
            file.unlink(missing_ok=True)
            for above in (file.parent, file.parent.parent):
                try:
                    above.rmdir()
                except OSError:
                    break


def hours_between(hours: Iterable[str], since: Moment | None, until: Moment | None) -> list[str]:
    """The hours from `since` up to `until`, which is exclusive."""
    begin, end = in_utc(since), in_utc(until)
    first = "" if begin is None else name_of(begin)
    return [hour for hour in sorted(hours) if hour >= first and (end is None or hour_of(hour) < end)]
