"""The warehouse: a directory of tables, in Parquet files by journal and hour. The manifest says which files count."""

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
from trunkline.spark.pipeline.manifest import Manifest, StoredFile, folder_of, hour_of, in_utc, name_of
from trunkline.spark.tables.bronze import placed, stored
from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.spark.tables.table import Table
from trunkline.spark.tables.times import hour_from_name, hour_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCK = "pipeline.lock"
STAGING = ".staging"
"""What a run that is not committed writes. It is there as long as such a run is, or has left something behind."""
UNIQUE = ("seq", "id", "request_id", "answer_seq", "answer_id", "root_id", "key", "published", "asked", "answered")
"""Columns whose values rarely repeat: a dictionary of them takes longer than all the rest of writing."""
VERIFY = "parquet.page.verify-checksum.enabled"
GRACE_S = 3600.0
LITTLE_BYTES = 16 * 1024 * 1024
FULL = "the disk is full: make room, and run the pipeline again"


class Warehouse:
    """`with Warehouse(directory) as warehouse`: the one pipeline that writes here. To read, `open` is not needed.

    Files that a run replaces stay for `grace_s`: a query that reads them can end.
    """

    def __init__(self, directory: str | Path, *, grace_s: float = GRACE_S, world: World | None = None) -> None:
        self.directory = Path(directory)
        self._lock = Lock(self.directory, LOCK, WarehouseLocked)
        self._grace_s = grace_s
        self._world = world or World()
        self._written: set[Path] = set()
        """Files that were put in their places, and are not committed."""
        self.manifest = Manifest()

    def open(self) -> Self:
        """Raises WarehouseLocked if another pipeline works here."""
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
        """What counts now, for those who only read."""
        if not self.directory.is_dir():
            raise WarehouseUnusable(
                str(self.directory), "there is no warehouse here: `trunkline pipeline run` makes one"
            )
        return manifests.load(self.directory)

    def set_aside_older(self) -> Path | None:
        """Move what an older version wrote into a directory beside the tables; returns that, or None if there is none.

        The manifest goes last: if this is interrupted, the next call does the rest.
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
        """All that is in these files of a table, which are given by journal and hour."""
        paths = [
            for_reading(self.directory / folder_of(table.name, journal, hour) / file.name)
            for journal, hours in files.items()
            for hour, several in hours.items()
            for file in several
        ]
        if not paths:
            return driver_frame(spark, [], table.ddl)
        base = self.directory / table.name
        reader = spark.read.schema(f"{stored(table)}, journal string, hour string")
        reader = reader.option("basePath", for_writing(base)).option(VERIFY, "true")
        rows = placed(table.name, reader.parquet(*paths), manifest.watermark_s)
        # Of the name of the directory: so a condition on the hour chooses the files.
        return table.shape(rows.withColumn("hour", hour_from_name("hour")))

    # Writing

    def write(self, table: str, journal: str, run: int, rows: DataFrame) -> dict[str, list[StoredFile]]:
        """Put rows, each with an `hour`, into new files; returns them by hour. They do not count yet."""
        staging = self.staging(run) / table
        lying = rows.drop("journal").withColumn("hour", hour_name("hour"))
        writer = lying.write.mode("overwrite").partitionBy("hour")
        for name in UNIQUE:
            writer = writer.option(f"parquet.enable.dictionary#{name}", "false")
        try:
            writer.parquet(for_writing(staging))
        except PySparkException as error:
            # What Spark says of it is a page.
            if shutil.disk_usage(self.directory).free < LITTLE_BYTES:
                raise WarehouseUnusable(str(self.directory), FULL) from error
            raise
        found: dict[str, list[StoredFile]] = {}
        with self.reports_errors():
            for path in sorted(staging.glob("hour=*/*.parquet")):
                hour = path.parent.name.partition("=")[2]
                listed = found.setdefault(hour, [])
                name = f"{run:06d}-{len(listed)}.parquet"
                count = pq.read_metadata(path).num_rows
                listed.append(self.keep(path, table, journal, hour, StoredFile(name, count, path.stat().st_size)))
            shutil.rmtree(staging)
        return found

    def staging(self, run: int) -> Path:
        """Where a run writes what has no place yet."""
        place = self.directory / STAGING / f"{run:06d}"
        with self.reports_errors():
            place.mkdir(parents=True, exist_ok=True)
        return place

    def keep(self, path: Path, table: str, journal: str, hour: str, file: StoredFile) -> StoredFile:
        """Move a file to its place."""
        place = self.place_of(table, journal, hour, file)
        os.rename(path, place)
        return file

    def place_of(self, table: str, journal: str, hour: str, file: StoredFile) -> Path:
        """Where a new file is to lie. It is synced with the next commit."""
        place = self.directory / folder_of(table, journal, hour) / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        self._written.add(place)
        return place

    def commit(self, manifest: Manifest) -> None:
        """From here on, what the run wrote is what there is."""
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
            # Before files go: no log may point to one that is gone.
            self._follow()
            self._remove(old - counting)
            shutil.rmtree(self.directory / STAGING, ignore_errors=True)

    def vacuum(self, older_than_s: float | None = None) -> int:
        """Remove the files that were replaced longer ago than this, by default the grace period; returns how many."""
        self._grace_s, before = self._grace_s if older_than_s is None else older_than_s, self._grace_s
        count = len(self.manifest.replaced)
        try:
            self.commit(self.manifest.copy())
        finally:
            self._grace_s = before
        return count - len(self.manifest.replaced)

    @contextmanager
    def reports_errors(self) -> Iterator[None]:
        """An error of the file system as one of the warehouse."""
        try:
            yield
        except OSError as error:
            why = FULL if error.errno == errno.ENOSPC else str(error)
            raise WarehouseUnusable(str(self.directory), why) from error

    def keep_logs(self, wanted: bool) -> None:
        """Whether a Delta log is kept beside each table, from now on."""
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
        """What a run that did not come to its end has left."""
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
        """Files, and the directories of hours and journals that this leaves empty."""
        for path in paths:
            file = self.directory / path
            file.unlink(missing_ok=True)
            for above in (file.parent, file.parent.parent):
                try:
                    above.rmdir()
                except OSError:
                    break


def hours_between(hours: Iterable[str], since: Moment | None, until: Moment | None) -> list[str]:
    """Of these hours those from `since` up to, and not with, `until`."""
    begin, end = in_utc(since), in_utc(until)
    first = "" if begin is None else name_of(begin)
    return [hour for hour in sorted(hours) if hour >= first and (end is None or hour_of(hour) < end)]
