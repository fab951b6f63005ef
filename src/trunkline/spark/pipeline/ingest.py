"""What a step takes in: files of the lake as they are, under a name of the warehouse, and what is not sealed yet.

Nothing is copied that lies on the same disk: a sealed file never changes, so the warehouse has it by a link. Rows go
through Spark where they are counted, and where ids are compared that came before.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from trunkline.errors import JournalDamaged
from trunkline.journal import Reader, lake
from trunkline.journal.errors import JournalUnusable
from trunkline.journal.sealed import File
from trunkline.spark.errors import WarehouseUnusable
from trunkline.spark.pipeline import affected
from trunkline.spark.pipeline.manifest import HOUR, LeftOut, Manifest, MessageRange, hour_of, name_of
from trunkline.spark.pipeline.settings import PipelineSettings
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.spark.source.damage import handler
from trunkline.spark.source.options import row_filter
from trunkline.spark.source.snapshot import take_snapshot
from trunkline.spark.source.spark_schema import KEYS, all_of
from trunkline.spark.tables.bronze import FATES, MESSAGES, repeated
from trunkline.spark.tables.times import hour_number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("trunkline.pipeline")

SMALL_ROWS = 50_000
SMALL_BYTES = 64 * 1024 * 1024
MANY_SMALL = 16
"""An hour in more small files than that is put together."""


class Ingest:
    """Adds to bronze, and to what the manifest says of it."""

    def __init__(
        self, spark: SparkSession, journal: Path, warehouse: Warehouse, settings: PipelineSettings, manifest: Manifest
    ) -> None:
        self._spark = spark
        self._journal = journal
        self._warehouse = warehouse
        self._settings = settings
        self._manifest = manifest

    def messages(self, last: int) -> tuple[set[str], int]:
        """Take messages up to this number; returns the hours they are placed in, and how many they are."""
        manifest = self._manifest
        files = self._take(MESSAGES.name, manifest.seq + 1, last)
        drop = self._repeated(files)
        if drop:
            log.info("%d messages have ids that were there before: left out", len(drop))
            manifest.duplicates += len(drop)
            files = [kept for file in files if (kept := self._without(file, drop)) is not None]
        manifest.bronze.setdefault(MESSAGES.name, []).extend(files)
        manifest.seq = last
        counted = self._counted(
            MESSAGES.name, files, F.sum(F.col("late").cast("int")), F.max(F.unix_micros("accepted"))
        )
        for hour, span, (late, upto_us) in counted:
            manifest.hours[hour] = span.joined(manifest.hours.get(hour))
            manifest.late += late
            manifest.upto_us = max(manifest.upto_us, upto_us)
        return {hour for hour, _, _ in counted}, sum(span.count for _, span, _ in counted)

    def fates(self, last: int) -> tuple[DataFrame | None, int]:
        """Take fates up to this number; returns them, and how many they are."""
        manifest = self._manifest
        files = self._take(FATES.name, manifest.fate + 1, last)
        manifest.bronze.setdefault(FATES.name, []).extend(files)
        manifest.fate = last
        if not files:
            return None, 0
        for hour, span, _ in self._counted(FATES.name, files):
            manifest.fate_hours[hour] = span.joined(manifest.fate_hours.get(hour))
        return self._read(FATES.name, files), sum(file.rows for file in files)

    def join(self) -> None:
        """Put small files together where they have become many."""
        for kind, files in self._manifest.bronze.items():
            small = [file for file in files if file.rows < SMALL_ROWS and file.bytes < SMALL_BYTES]
            for _, of_hour in groupby(small, key=lambda file: file.at_ns // 3_600_000_000_000):
                several = list(of_hour)
                if len(several) > MANY_SMALL:
                    joined = self._write(kind, several[0].day, self._rows(several))
                    kept = [file for file in files if file not in several] + ([] if joined is None else [joined])
                    files[:] = sorted(kept, key=lambda file: file.first)

    # Files

    def _take(self, kind: str, first: int, last: int) -> list[File]:
        on_skip = self._leave_out if self._settings.skip_damaged else None
        damaged = handler(self._journal, skip=self._settings.skip_damaged, on_skip=on_skip)
        with Reader(self._journal, on_damage=damaged) as reader:
            found = take_snapshot(reader, row_filter(kind, first, last), all_of(kind).fieldNames(), thorough=True)
        files = [self._own(file, first, last) for file in found.files]
        files.append(self._write(kind, _day(kind, found.batches), found.batches))
        return [file for file in files if file is not None]

    def _leave_out(self, damage: JournalDamaged) -> None:
        log.warning("left out: %s", damage)
        self._manifest.left_out.append(LeftOut(damage.where, damage.first, damage.last, damage.why))

    def _own(self, file: File, first: int, last: int) -> File | None:
        if first <= file.first and file.last <= last:
            return self._link(file)
        # A part of it came in before, when it was not sealed.
        key = pc.field(KEYS[file.kind])
        fits = (key >= first) & (key <= last)
        rows = (batch.filter(fits) for batch in lake.read(self._journal, file))
        return self._write(file.kind, file.day, rows)

    def _link(self, file: File) -> File:
        place = self._place() / file.kind / f"date={file.day}" / Path(file.path).name
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _link(self._journal / file.path, place)
        except OSError as error:
            raise WarehouseUnusable(str(self._warehouse.directory), str(error)) from error
        return msgspec.structs.replace(file, path=self._relative(place))

    def _write(self, kind: str, day: str, rows: Iterable[pa.RecordBatch]) -> File | None:
        place = self._place()
        try:
            sealed = lake.write(place, kind, day, rows)
        except JournalUnusable as error:
            raise WarehouseUnusable(str(self._warehouse.directory), error.why) from error
        if sealed is None:
            return None
        return msgspec.structs.replace(sealed.file, path=self._relative(place / sealed.file.path))

    def _without(self, file: File, drop: list[int]) -> File | None:
        """The file, or a new one that has all its rows but these."""
        at = bisect_left(drop, file.first)
        if at == len(drop) or drop[at] > file.last:
            return file
        gone = pa.array(drop, pa.int64())
        kept = self._write(
            file.kind, file.day, (batch.filter(~pc.field("seq").isin(gone)) for batch in self._rows([file]))
        )
        (self._warehouse.directory / file.path).unlink()
        return kept

    def _rows(self, files: list[File]) -> Iterator[pa.RecordBatch]:
        for file in files:
            yield from lake.read(self._warehouse.directory, file)

    def _place(self) -> Path:
        return self._warehouse.place("bronze", self._manifest.run)

    def _relative(self, place: Path) -> str:
        return place.relative_to(self._warehouse.directory).as_posix()

    # Rows

    def _read(self, kind: str, files: list[File]) -> DataFrame:
        return self._warehouse.rows_of(self._spark, self._manifest, kind, files)

    def _repeated(self, files: list[File]) -> list[int]:
        """The numbers of messages that are to be left out, in order."""
        if not files:
            return []
        manifest = self._manifest
        reaches = [self._warehouse.reach(manifest, file) for file in files]
        since = hour_of(min(low for low, _ in reaches)) - affected.horizon_hours(self._settings) * HOUR
        until = max(high for _, high in reaches)
        earlier = [hour for hour in manifest.hours if name_of(since) <= hour <= until]
        known = self._warehouse.read(self._spark, manifest, MESSAGES, earlier) if earlier else None
        rows = repeated(self._read(MESSAGES.name, files), known).collect()
        return sorted(row["seq"] for row in rows)

    def _counted(self, kind: str, files: list[File], *more: Expression) -> list[tuple[str, MessageRange, list[int]]]:
        """By hour: of which messages these are, or which these fates are about."""
        if not files:
            return []
        low, high = ("seq", "seq") if kind == MESSAGES.name else ("first", "last")
        rows = self._read(kind, files).groupBy(hour_number("hour"))
        found = rows.agg(F.min(low), F.max(high), F.count("*"), *more).collect()
        return [
            (affected.name_of_number(hour), MessageRange(first, last, count), rest)
            for hour, first, last, count, *rest in found
        ]


def _day(kind: str, batches: list[pa.RecordBatch]) -> str:
    if not batches:
        return ""
    taken = batches[0].column("accepted" if kind == MESSAGES.name else "time")
    return lake.day_of(taken[0].cast(pa.int64()).as_py() * 1000)


def _link(source: Path, place: Path) -> None:
    """The same file under a second name; on another disk, a copy."""
    try:
        os.link(source, place)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copy2(source, place)
