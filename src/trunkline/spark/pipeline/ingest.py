"""Ingest of a step: sealed files of the lake, and rows of the journal that are not sealed yet.

A sealed file never changes. If all its rows are in one hour, the warehouse hard-links it, or copies it from another
disk. Other files are split by hour. Spark is used only to compare the ids of new messages with earlier ids, and only if
there are many.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from trunkline.errors import JournalDamaged
from trunkline.journal import Reader, lake, records
from trunkline.journal.errors import JournalUnusable
from trunkline.journal.layout import fit
from trunkline.journal.records import Removal
from trunkline.journal.sealed import File
from trunkline.plural import counted
from trunkline.spark.errors import WarehouseUnusable
from trunkline.spark.pipeline import affected, placement
from trunkline.spark.pipeline.driver_rows import DriverRows
from trunkline.spark.pipeline.journals import JournalSource
from trunkline.spark.pipeline.manifest import (
    JournalState,
    LeftOut,
    Manifest,
    MessageRange,
    RemovedUnread,
    StoredFile,
    folder_of,
    hour_of,
)
from trunkline.spark.pipeline.placement import HourRows
from trunkline.spark.pipeline.repeats import Suspect, left_out, suspects
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.spark.settings import PipelineSettings
from trunkline.spark.source.damage import handler
from trunkline.spark.source.options import row_filter
from trunkline.spark.source.snapshot import take_snapshot
from trunkline.spark.source.spark_schema import KEYS, all_of
from trunkline.spark.tables.bronze import FATES, MESSAGES
from trunkline.spark.tables.table import seconds
from trunkline.spark.tables.times import HOUR_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("trunkline.pipeline")

SMALL_ROWS = 50_000
SMALL_BYTES = 64 * 1024 * 1024
COMPARED_HERE = 300_000
"""The driver compares up to this many ids itself: that takes less time than Spark needs to plan the query."""
MANY_SMALL = 16
"""If an hour has more small files than this, they are merged."""


class NewFile(NamedTuple):
    """A new file of the warehouse, with rows of one hour."""

    hour: str
    file: StoredFile
    about: MessageRange
    late: int = 0
    upto_us: int = 0
    grains: frozenset[tuple[int, int]] = frozenset()
    """For fates: the messages to which they refer, see placement.py."""


class Ingest:
    """Adds rows to the bronze tables of one journal, and records them in the manifest."""

    def __init__(
        self,
        spark: SparkSession,
        journal: JournalSource,
        warehouse: Warehouse,
        settings: PipelineSettings,
        manifest: Manifest,
    ) -> None:
        self._spark = spark
        self._journal = journal
        self._warehouse = warehouse
        self._settings = settings
        self._manifest = manifest
        self._state: JournalState = manifest.state(journal.name)
        self._count = 0

    def messages(self, last: int) -> tuple[set[str], int]:
        """Ingest messages up to this number. Returns the hours that changed, and the number of messages."""
        state = self._state
        files = self._take(MESSAGES.name, state.seq + 1, last)
        lost = self._unread(files)
        drop = self._repeated(files)
        if drop:
            log.info("skipped %s with duplicate ids", counted(len(drop), "message"))
            state.duplicates += len(drop)
            files = [kept for file in files for kept in self._without(file, drop)]
        state.seq = last
        for new in files:
            self._add(MESSAGES.name, new)
            state.hours[new.hour] = new.about.joined(state.hours.get(new.hour))
            state.late += new.late
            state.upto_us = max(state.upto_us, new.upto_us)
        hours = {new.hour for new in files}
        return hours | self._note_unread(lost, hours), sum(new.about.count for new in files)

    def fates(self, last: int) -> tuple[set[tuple[int, int]], int]:
        """Ingest fates up to this number. Returns the messages they refer to, in grains, and the number of fates."""
        state = self._state
        files = self._take(FATES.name, state.fate + 1, last)
        state.fate = last
        for new in files:
            self._add(FATES.name, new)
            state.fate_hours[new.hour] = new.about.joined(state.fate_hours.get(new.hour))
        return {grain for new in files for grain in new.grains}, sum(new.file.rows for new in files)

    def _add(self, kind: str, new: NewFile) -> None:
        self._state.files(kind).setdefault(new.hour, []).append(new.file)

    def join(self) -> None:
        """Merge the small files of each hour that has too many of them."""
        for kind in (MESSAGES.name, FATES.name):
            for hour, files in self._state.files(kind).items():
                small = [file for file in files if file.rows < SMALL_ROWS and file.bytes < SMALL_BYTES]
                if len(small) > MANY_SMALL:
                    small.sort(key=lambda file: file.first)
                    rows = (batch for file in small for batch in self._rows(kind, hour, file))
                    joined = self._write(kind, hour, rows)
                    files[:] = [file for file in files if file not in small] + [joined]

    # Files

    def _take(self, kind: str, first: int, last: int) -> list[NewFile]:
        on_skip = self._leave_out if self._settings.skip_damaged else None
        damaged = handler(self._journal.directory, skip=self._settings.skip_damaged, on_skip=on_skip)
        with Reader(self._journal.directory, on_damage=damaged) as reader:
            found = take_snapshot(reader, row_filter(kind, first, last), all_of(kind).fieldNames(), thorough=True)
        files = [new for file in found.files for new in self._own(file, first, last)]
        return files + self._divided(kind, found.batches)

    def _leave_out(self, damage: JournalDamaged) -> None:
        log.warning("skipped: %s", damage)
        self._state.left_out.append(LeftOut(damage.where, damage.first, damage.last, damage.why))

    def _own(self, file: File, first: int, last: int) -> list[NewFile]:
        """The files of the warehouse for a sealed file: a link if all its rows are wanted and are in one hour."""
        rows: Iterable[pa.RecordBatch] = lake.read(self._journal.directory, file)
        if file.first < first or file.last > last:
            # Some of its rows were ingested before it was sealed.
            key = pc.field(KEYS[file.kind])
            wanted = (key >= first) & (key <= last)
            rows = (batch.filter(wanted) for batch in rows)
        elif (hour := placement.hour_of_file(file, self._manifest.watermark_s)) is not None:
            return [self._linked(file, hour)]
        return self._divided(file.kind, rows)

    def _linked(self, file: File, hour: str) -> NewFile:
        kept = StoredFile(self._next_name(), file.rows, file.bytes, file.first, file.last)
        with self._warehouse.reports_errors():
            place = self._warehouse.place_of(file.kind, self._journal.name, hour, kept)
            _link(self._journal.directory / file.path, place)
        if file.kind == MESSAGES.name:
            return NewFile(hour, kept, MessageRange(file.first, file.last, file.rows), 0, file.until_at_ns // 1000)
        about = pa.Table.from_batches(lake.read(self._journal.directory, file, None, ["first", "last"]))
        low, high = pc.min(about.column("first")).as_py(), pc.max(about.column("last")).as_py()
        return NewFile(hour, kept, MessageRange(low, high, file.rows), grains=frozenset(placement.grains(about)))

    def _divided(self, kind: str, rows: Iterable[pa.RecordBatch]) -> list[NewFile]:
        """New files, one per hour."""
        parts = placement.split(kind, rows, self._manifest.watermark_s)
        return [self._new(kind, hour, part) for hour, part in parts.items()]

    def _new(self, kind: str, hour: str, part: HourRows) -> NewFile:
        file = self._write(kind, hour, part.rows.to_batches())
        found = frozenset() if kind == MESSAGES.name else frozenset(placement.grains(part.rows))
        return NewFile(hour, file, part.about, part.late, part.upto_us, found)

    def _write(self, kind: str, hour: str, rows: Iterable[pa.RecordBatch]) -> StoredFile:
        staging = self._warehouse.staging(self._manifest.run)
        try:
            sealed = lake.write(staging, kind, hour[:10], rows)
        except JournalUnusable as error:
            raise WarehouseUnusable(str(self._warehouse.directory), error.why) from error
        assert sealed is not None, "an hour without rows has no file"
        file = sealed.file
        kept = StoredFile(self._next_name(), file.rows, file.bytes, file.first, file.last)
        with self._warehouse.reports_errors():
            return self._warehouse.keep(staging / file.path, kind, self._journal.name, hour, kept)

    def _next_name(self) -> str:
        self._count += 1
        return f"{self._manifest.run:06d}-{self._count}.parquet"

    def _without(self, new: NewFile, drop: list[int]) -> list[NewFile]:
        """The file if it has none of these messages, else new files without them. Empty if no row is left."""
        at = bisect_left(drop, new.file.first)
        if at == len(drop) or drop[at] > new.file.last:
            return [new]
        gone = pa.array(drop, pa.int64())
        rows = self._rows(MESSAGES.name, new.hour, new.file)
        kept = self._divided(MESSAGES.name, (batch.filter(~pc.field("seq").isin(gone)) for batch in rows))
        self._path(MESSAGES.name, new.hour, new.file).unlink()
        return kept

    def _path(self, kind: str, hour: str, file: StoredFile) -> Path:
        return self._warehouse.directory / folder_of(kind, self._journal.name, hour) / file.name

    def _rows(self, kind: str, hour: str, file: StoredFile) -> Iterator[pa.RecordBatch]:
        schema = lake.SCHEMAS[kind]
        path = self._path(kind, hour, file)
        with path.open("rb") as source, pq.ParquetFile(source) as parquet:
            for batch in parquet.iter_batches(lake.SLICE_ROWS):
                yield fit(batch, schema)

    def _repeated(self, files: list[NewFile]) -> list[int]:
        """The numbers of the messages to leave out, in order."""
        if not files:
            return []
        state, name = self._state, self._journal.name
        hours = sorted({new.hour for new in files})
        earlier = affected.around(state, hours, self._settings)
        reach = affected.horizon_hours(self._settings)
        size = sum(new.file.rows for new in files) + sum(state.hours[hour].count for hour in earlier)
        if size <= COMPARED_HERE:
            return left_out(self._suspects_here(files, earlier), reach)
        by_hour = {hour: [new.file for new in files if new.hour == hour] for hour in hours}
        rows = self._warehouse.rows_of(self._spark, self._manifest, MESSAGES, {name: by_hour})
        rows = rows.withColumn("is_new", F.lit(True))
        if earlier:
            known = self._warehouse.read(self._spark, self._manifest, MESSAGES, earlier, name)
            rows = rows.unionByName(known.withColumn("is_new", F.lit(False)))
        return left_out(suspects(rows, size), reach)

    def _suspects_here(self, files: list[NewFile], earlier: list[str]) -> list[Suspect]:
        """Find messages with repeated ids in the driver, without Spark."""
        known = DriverRows(self._warehouse, self._journal.name, self._state).read(MESSAGES.name, earlier, ["id", "seq"])
        before = list(known)
        new = [
            (new.hour, batch.select(["id", "seq"]))
            for new in files
            for batch in self._rows(MESSAGES.name, new.hour, new.file)
        ]
        counts = pa.chunked_array([batch.column("id") for _, batch in (*before, *new)]).value_counts()
        several = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
        if not len(several):
            return []
        return [*_with_ids(before, several, is_new=False), *_with_ids(new, several, is_new=True)]

    # Messages that retention removed

    def _unread(self, files: list[NewFile]) -> dict[str, int]:
        """The number of messages per topic that retention removed before they were ingested."""
        state = self._state
        with Reader(self._journal.directory) as reader:
            found = records.removals(reader, state.removal)
        # Messages up to `state.seq` had been ingested by earlier steps.
        late = [removal for removal in found if removal.last > state.seq]
        state.removal = max((removal.number for removal in found), default=state.removal)
        known = [(hour, file) for hour, several in state.files(MESSAGES.name).items() for file in several]
        lost: dict[str, int] = {}
        for removal in late:
            near = [
                (hour, file)
                for hour, file in [*known, *((new.hour, new.file) for new in files)]
                if file.first <= removal.last and removal.first <= file.last
            ]
            # Messages that were removed only after they were ingested are not lost.
            there = sum(self._removed_in(hour, file, removal) for hour, file in near)
            lost[removal.topic] = lost.get(removal.topic, 0) + removal.count - there
        return {topic: count for topic, count in lost.items() if count > 0}

    def _removed_in(self, hour: str, file: StoredFile, removal: Removal) -> int:
        """The number of removed messages that are in a file of the warehouse."""
        seq, topic = pc.field("seq"), pc.field("topic")
        wanted = (seq >= removal.first) & (seq <= removal.last) & (topic == removal.topic)
        rows = pq.read_table(self._path(MESSAGES.name, hour, file), columns=["seq"], filters=wanted, partitioning=None)
        return int(rows.num_rows)

    def _note_unread(self, lost: dict[str, int], hours: set[str]) -> set[str]:
        """Record the lost messages under one hour. Returns that hour if it has messages, else an empty set."""
        if not lost:
            return set()
        hour = min(hours or self._state.hours, default="")
        log.warning(
            "retention removed %s before the pipeline read them: %s",
            counted(sum(lost.values()), "message"),
            ", ".join(f"{topic} ({count})" for topic, count in sorted(lost.items())),
        )
        self._state.unread += [RemovedUnread(topic, count, hour) for topic, count in sorted(lost.items())]
        return {hour} & self._state.hours.keys()


def _with_ids(batches: Iterable[tuple[str, pa.RecordBatch]], ids: pa.Array, *, is_new: bool) -> Iterator[Suspect]:
    """The rows with one of these ids. Each batch comes with its hour."""
    for hour, batch in batches:
        some = batch.filter(pc.is_in(batch.column("id"), value_set=ids))
        at = seconds(hour_of(hour)) // HOUR_S
        for id, seq in zip(some.column("id").to_pylist(), some.column("seq").to_pylist(), strict=True):
            yield Suspect(seq, id, at, is_new)


def _link(source: Path, place: Path) -> None:
    """Create a hard link, or a copy if a hard link is not possible, as on another disk."""
    try:
        os.link(source, place)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
        shutil.copy2(source, place)
