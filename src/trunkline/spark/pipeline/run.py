"""A pipeline: takes what is new in a journal into the tables of a warehouse, step by step, each of them for good."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from trunkline.errors import JournalDamaged, PipelineError
from trunkline.spark.pipeline import affected, journal
from trunkline.spark.pipeline.manifest import LeftOut, Manifest, Span, hour_of
from trunkline.spark.pipeline.settings import PipelineSettings
from trunkline.spark.pipeline.warehouse import Warehouse, hours_between
from trunkline.spark.reading import fates as read_fates
from trunkline.spark.reading import messages as read_messages
from trunkline.spark.tables import built
from trunkline.spark.tables.bronze import FATES, LETTERS, MESSAGES, place, repeated
from trunkline.spark.tables.table import Inputs, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("trunkline.pipeline")

MANY_PIECES = 16
"""An hour of messages in more pieces than that is put together."""
MAX_WRITERS = 64

Progress = Callable[[str, int, int], None]
"""Told what is being made, how many parts of the run are done, and how many there are."""


class Report(NamedTuple):
    """What a run has done."""

    run: int
    messages: int
    fates: int
    hours: list[str]
    late: int
    duplicates: int
    steps: int


def _quiet(what: str, done: int, total: int) -> None:
    return


class Pipeline:
    """`with Pipeline(spark, journal, warehouse) as pipeline: pipeline.run()`"""

    def __init__(
        self,
        spark: SparkSession,
        journal: str | Path,
        warehouse: str | Path,
        settings: PipelineSettings | None = None,
        *,
        progress: Progress = _quiet,
    ) -> None:
        self.spark = spark
        self.journal = Path(journal)
        self.warehouse = Warehouse(warehouse)
        self.settings = settings or PipelineSettings()
        self._progress = progress

    def __enter__(self) -> Pipeline:
        self.warehouse.open()
        # Otherwise all rows are sorted before they are written, by the hour that nearly all of them share.
        self.spark.conf.set("spark.sql.maxConcurrentOutputFileWriters", str(MAX_WRITERS))
        return self

    def __exit__(self, *_: object) -> None:
        self.warehouse.close()

    def run(self) -> Report:
        """Take in what is new, and end."""
        ends = journal.Ends(self.journal)
        start = self.warehouse.manifest
        done: list[_Step] = []
        while (manifest := self.warehouse.manifest).seq < ends.seq or manifest.fate < ends.fate:
            last = min(ends.seq, manifest.seq + self.settings.step_rows)
            # Fates of a later step may be about messages that are not in yet: they come with the last step.
            fate = ends.fate if last == ends.seq else manifest.fate
            done.append(_Step(self, last, fate).take())
        now = self.warehouse.manifest
        return Report(
            now.run,
            sum(step.messages for step in done),
            sum(step.fates for step in done),
            sorted({hour for step in done for hour in step.hours}),
            now.late - start.late,
            now.duplicates - start.duplicates,
            len(done),
        )

    def rebuild(self, since: datetime | None = None, until: datetime | None = None) -> list[str]:
        """Make all but bronze anew, for the hours from `since` up to `until`; returns them."""
        hours = hours_between(self.warehouse.manifest, since, until)
        if hours:
            step = _Step(self, self.warehouse.manifest.seq, self.warehouse.manifest.fate)
            step.make(set(hours))
        return hours

    def progress(self, what: str, done: int, total: int) -> None:
        self._progress(what, done, total)


class _Step:
    """One stretch of numbers: bronze, the hours that it touches, and all tables of these hours; then the manifest."""

    def __init__(self, pipeline: Pipeline, last: int, fate: int) -> None:
        self._pipeline = pipeline
        self._spark = pipeline.spark
        self._warehouse = pipeline.warehouse
        self._settings = pipeline.settings
        self._last = last
        self._fate = fate
        self._manifest: Manifest = pipeline.warehouse.manifest.copy()
        self._manifest.run += 1
        self._run = self._manifest.run
        self._staged: dict[str, set[str]] = {}
        self.messages = 0
        self.fates = 0
        self.hours: list[str] = []

    def take(self) -> _Step:
        total = len(built(())) + 3
        self._pipeline.progress("messages", 0, total)
        hours = self._take_messages()
        hours = self._linked(hours) | affected.by_time(self._manifest, self._warehouse.manifest.upto)
        self._pipeline.progress("fates", 1, total)
        hours |= self._take_fates()
        self.make(hours)
        return self

    # Bronze

    def _take_messages(self) -> set[str]:
        manifest = self._manifest
        if self._last <= manifest.seq:
            return set()
        new = read_messages(
            self._spark,
            self._pipeline.journal,
            first=manifest.seq + 1,
            last=self._last,
            skip_damaged=self._settings.skip_damaged,
            on_damage=self._leave_out if self._settings.skip_damaged else None,
        )
        rows = MESSAGES.shape(place(new, self._settings.watermark_s))
        hours = self._warehouse.write(MESSAGES.name, self._run, rows)
        written = self._staged_messages(hours)
        drop = self._repeated(written, hours)
        if drop is not None:
            count = drop.count()
            kept = rows.join(F.broadcast(drop), "seq", "left_anti")
            log.info("%d messages have ids that were there before: left out", count)
            manifest.duplicates += count
            hours = self._warehouse.write(MESSAGES.name, self._run, MESSAGES.shape(kept))
            written = self._staged_messages(hours)
        self._count(written)
        for hour in hours:
            manifest.tables.setdefault(MESSAGES.name, {}).setdefault(hour, []).append(self._run)
        manifest.seq = self._last
        return hours

    def _leave_out(self, damage: JournalDamaged) -> None:
        log.warning("left out: %s", damage)
        self._manifest.left_out.append(LeftOut(damage.where, damage.first, damage.last, damage.why))

    def _staged_messages(self, hours: set[str]) -> DataFrame:
        paths = [str(self._warehouse.part(MESSAGES.name, self._run, hour)) for hour in sorted(hours)]
        if not paths:
            return self._spark.createDataFrame([], MESSAGES.ddl)
        return self._spark.read.schema(MESSAGES.ddl).option("recursiveFileLookup", "true").parquet(*paths)

    def _repeated(self, written: DataFrame, hours: set[str]) -> DataFrame | None:
        """Numbers of messages that are to be left out; None if there are none."""
        earlier = set(affected.before(self._manifest, hours, self._settings)) | (hours & self._manifest.hours.keys())
        known = self._read(MESSAGES, earlier) if earlier else None
        found = repeated(written, known).persist()
        if found.isEmpty():
            found.unpersist()
            return None
        # What is read must not change while it is written anew.
        return self._spark.createDataFrame(found.toArrow())

    def _count(self, written: DataFrame) -> None:
        manifest = self._manifest
        rows = (
            written.groupBy(F.date_format("hour", "yyyy-MM-dd'T'HH").alias("name"))
            .agg(
                F.min("seq").alias("first"),
                F.max("seq").alias("last"),
                F.count("*").alias("count"),
                F.sum(F.col("late").cast("int")).alias("late"),
                F.max(F.unix_micros("accepted")).alias("upto_us"),
            )
            .collect()
        )
        for row in rows:
            span = Span(row["first"], row["last"], row["count"])
            manifest.hours[row["name"]] = span.joined(manifest.hours.get(row["name"]))
            manifest.late += row["late"]
            manifest.upto_us = max(manifest.upto_us, row["upto_us"])
            self.messages += row["count"]

    def _take_fates(self) -> set[str]:
        manifest = self._manifest
        if self._fate <= manifest.fate:
            return set()
        new = read_fates(
            self._spark,
            self._pipeline.journal,
            first=manifest.fate + 1,
            last=self._fate,
            skip_damaged=self._settings.skip_damaged,
            on_damage=self._leave_out if self._settings.skip_damaged else None,
        )
        rows = FATES.shape(new.withColumn("hour", F.date_trunc("hour", "time")))
        hours = self._warehouse.write(FATES.name, self._run, rows)
        paths = [str(self._warehouse.part(FATES.name, self._run, hour)) for hour in sorted(hours)]
        manifest.fate = self._fate
        if not paths:
            return set()
        written = self._spark.read.schema(FATES.ddl).option("recursiveFileLookup", "true").parquet(*paths)
        spans = (
            written.groupBy(F.date_format("hour", "yyyy-MM-dd'T'HH").alias("name"))
            .agg(F.min("first").alias("first"), F.max("last").alias("last"), F.count("*").alias("count"))
            .collect()
        )
        for row in spans:
            span = Span(row["first"], row["last"], row["count"])
            manifest.fate_hours[row["name"]] = span.joined(manifest.fate_hours.get(row["name"]))
            self.fates += row["count"]
        for hour in hours:
            manifest.tables.setdefault(FATES.name, {}).setdefault(hour, []).append(self._run)
        return affected.by_fates(manifest, written)

    # The hours

    def _linked(self, hours: set[str]) -> set[str]:
        """With the hours, as far as the horizon before these, that hold what messages of these hours belong to."""
        found = set(hours)
        left = set(affected.before(self._manifest, hours, self._settings))
        while left:
            pointing = affected.links(self._read(MESSAGES, found))
            more = affected.hours_of(affected.targets(self._read(MESSAGES, left)).join(pointing, "link", "left_semi"))
            if not more:
                break
            found |= more
            left -= more
        # What a kernel sends is joined by what is in the payload: all its hours around are looked at again.
        around = set(affected.around(self._manifest, hours, self._settings)) - found
        if around and affected.kernel_hours(self._read(MESSAGES, hours)):
            found |= affected.kernel_hours(self._read(MESSAGES, around))
        return found

    # The tables

    def make(self, hours: set[str]) -> None:
        """All tables but bronze, of these hours; then the manifest."""
        self.hours = sorted(hours)
        if self.hours:
            inputs = self._inputs()
            tables = built(inputs.channels)
            total = len(tables) + 3
            for number, table in enumerate(tables):
                self._pipeline.progress(table.name, number + 3, total)
                self._make(table, inputs)
            self._note_open()
        self._join_pieces()
        self._pipeline.progress("commit", 1, 1)
        self._warehouse.commit(self._manifest)

    def _inputs(self) -> Inputs:
        from trunkline.spark.contracts import contracts

        manifest, settings = self._manifest, self._settings
        spans = [manifest.hours[hour] for hour in self.hours]
        first, last = min(span.first for span in spans), max(span.last for span in spans)
        about = [hour for hour, span in manifest.fate_hours.items() if span.meets(first, last)]
        fates = self._read(FATES, about).where((F.col("last") >= first) & (F.col("first") <= last))
        messages = self._read(MESSAGES, self.hours)
        around = affected.around(manifest, self.hours, settings)
        # Answers of the hours around may be orphans, too.
        wide = [manifest.hours[hour] for hour in around]
        low, high = min(span.first for span in wide), max(span.last for span in wide)
        return Inputs(
            spark=self._spark,
            hours=[hour_of(hour) for hour in self.hours],
            messages=messages,
            nearby=self._read(MESSAGES, around),
            fates=fates.drop("hour"),
            letters=self._letters(messages, first, last),
            orphans=journal.orphans(self._spark, self._pipeline.journal, low, high),
            upto=manifest.upto,
            settings=settings,
            channels=contracts(self._pipeline.journal),
            table=self._made,
        )

    def _letters(self, messages: DataFrame, first: int, last: int) -> DataFrame:
        """Those the journal has, and those it had: a letter that was replayed is no longer there."""
        had = self._read(LETTERS, self.hours)
        hours = messages.select("seq", "hour")
        now = journal.letters(self._spark, self._pipeline.journal, first, last).join(hours, "seq")
        kept = had.join(now.select("subscriber", "seq"), ["subscriber", "seq"], "left_anti")
        self._make(LETTERS._replace(build=lambda _: now.unionByName(kept)), None)
        return self._made(LETTERS.name).drop("hour")

    def _make(self, table: Table, inputs: Inputs | None) -> None:
        rows = table.shape(table.build(inputs))  # type: ignore[arg-type]  # bronze needs none
        written = self._warehouse.write(table.name, self._run, rows)
        strange = written - set(self.hours)
        if strange:
            raise PipelineError(f"{table.name} made rows of hours that are not its own: {', '.join(sorted(strange))}")
        self._staged[table.name] = written
        listed = self._manifest.tables.setdefault(table.name, {})
        for hour in self.hours:
            listed.pop(hour, None)
            if hour in written:
                listed[hour] = [self._run]

    def _made(self, name: str) -> DataFrame:
        table = next(each for each in (LETTERS, *built(())) if each.name == name)
        return self._read(table, self._staged[name])

    def _read(self, table: Table, hours: list[str] | set[str]) -> DataFrame:
        return self._warehouse.read(self._spark, self._manifest, table.name, table.ddl, hours)

    def _note_open(self) -> None:
        requests = self._made("requests").where("outcome = 'open'")
        still = set(self._manifest.open) - set(self.hours)
        self._manifest.open = sorted(still | affected.hours_of(requests))

    def _join_pieces(self) -> None:
        """Hours in many small pieces are written anew as one."""
        for table in (MESSAGES, FATES):
            listed = self._manifest.tables.get(table.name, {})
            many = [hour for hour, runs in listed.items() if len(runs) > MANY_PIECES]
            if many:
                rows = self._read(table, many).coalesce(1)
                # Beside what this run has written there: under a number of its own.
                self._manifest.run += 1
                joined = self._manifest.run
                self._warehouse.write(table.name, joined, rows)
                for hour in many:
                    listed[hour] = [joined]
