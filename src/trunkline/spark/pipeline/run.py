"""A pipeline: takes what is new in a journal into the tables of a warehouse, step by step, each of them for good."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from trunkline.spark.errors import PipelineError
from trunkline.spark.pipeline import affected, journal_records
from trunkline.spark.pipeline.ingest import Ingest
from trunkline.spark.pipeline.manifest import Manifest
from trunkline.spark.pipeline.settings import PipelineSettings
from trunkline.spark.pipeline.task_graph import TaskGraph
from trunkline.spark.pipeline.warehouse import Warehouse, hours_between
from trunkline.spark.tables.bronze import FATES, LETTERS, MESSAGES
from trunkline.spark.tables.catalog import built
from trunkline.spark.tables.table import Inputs, Table
from trunkline.spark.tables.traffic import traffic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("trunkline.pipeline")

BEFORE = (MESSAGES.name, FATES.name, LETTERS.name)
FEW_ROWS = 50_000
ALWAYS = {"spark.sql.maxConcurrentOutputFileWriters": "64"}
"""Otherwise all rows are sorted before they are written, by the hour that nearly all of them share."""
PLAINLY = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""For few rows: to compile a query, and to plan it again while it runs, takes longer than to run it as it is."""

Progress = Callable[[str, int, int], None]
"""Told what is being made, how many parts of the run are done, and how many there are. Called from several threads."""


class RunReport(NamedTuple):
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
        try:
            self._keep_watermark()
        except BaseException:
            self.warehouse.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.warehouse.close()

    def _keep_watermark(self) -> None:
        manifest, wanted = self.warehouse.manifest, self.settings.watermark_s
        if not manifest.run:
            manifest.watermark_s = wanted
        elif manifest.watermark_s != wanted:
            raise PipelineError(
                f"messages are placed here with a watermark of {manifest.watermark_s:g} s, and not {wanted:g}: "
                "leave the setting as it was, or begin a new warehouse"
            )

    def run(self) -> RunReport:
        """Take in what is new, and end."""
        ends = journal_records.Ends(self.journal)
        start = self.warehouse.manifest
        done: list[_Step] = []
        while (manifest := self.warehouse.manifest).seq < ends.seq or manifest.fate < ends.fate:
            last = min(ends.seq, manifest.seq + self.settings.step_rows)
            # Fates of a later step may be about messages that are not in yet: they come with the last step.
            fate = ends.fate if last == ends.seq else manifest.fate
            done.append(_Step(self, last, fate).take())
        now = self.warehouse.manifest
        return RunReport(
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
            _Step(self, self.warehouse.manifest.seq, self.warehouse.manifest.fate).remake(set(hours))
        return hours

    def progress(self, what: str, done: int, total: int) -> None:
        self._progress(what, done, total)


@contextmanager
def _set(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    """For what follows: the session may be used by others before and after."""
    before = {name: spark.conf.get(name) or "" for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


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
        self._done = 0
        self._total = len(BEFORE) + len(built(())) + 1
        self.messages = 0
        self.fates = 0
        self.hours: list[str] = []

    def take(self) -> _Step:
        """Bronze first, then the tables."""
        with _set(self._spark, ALWAYS | PLAINLY if self._is_small() else ALWAYS):
            self._take()
        return self

    def remake(self, hours: set[str]) -> None:
        """The tables alone, of hours that are in bronze."""
        with _set(self._spark, ALWAYS):
            self._make_hours(hours)

    def _is_small(self) -> bool:
        """Whether what is new, and the hours that it may touch, are few rows."""
        recent = sorted(self._manifest.hours)[-2 - affected.horizon_hours(self._settings) :]
        known = sum(self._manifest.hours[hour].count for hour in recent)
        return known + self._last - self._manifest.seq + self._fate - self._manifest.fate < FEW_ROWS

    def _take(self) -> None:
        manifest, before = self._manifest, self._warehouse.manifest
        ingest = Ingest(self._spark, self._pipeline.journal, self._warehouse, self._settings, manifest)
        hours: set[str] = set()
        self._progress("messages")
        if self._last > manifest.seq:
            hours, self.messages = ingest.messages(self._last)
        hours = self._linked(hours) | affected.by_time(manifest, before.upto)
        self._progress("fates")
        if self._fate > manifest.fate:
            new, self.fates = ingest.fates(self._fate)
            hours |= affected.by_fates(manifest, new) if new is not None else set()
        ingest.join()
        self._make_hours(hours)

    def _progress(self, what: str) -> None:
        self._pipeline.progress(what, self._done, self._total)
        self._done += 1

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

    def _make_hours(self, hours: set[str]) -> None:
        """All tables but bronze, of these hours; then the manifest."""
        self.hours = sorted(hours)
        if self.hours:
            inputs = self._inputs()
            try:
                self._make_all(built(inputs.channels), inputs)
            finally:
                inputs.traffic.unpersist()
            self._note_open()
        self._progress("commit")
        self._warehouse.commit(self._manifest)

    def _make_all(self, tables: list[Table], inputs: Inputs) -> None:
        """Several at once: each has stretches in which it keeps one core busy, or none."""
        self._total = len(tables) + len(BEFORE) + 1
        graph = TaskGraph(self._spark, self._settings.tables_at_once)
        for table in tables:
            graph.add(table.name, table.needs, partial(self._make, table, inputs))
        graph.run()

    def _inputs(self) -> Inputs:
        from trunkline.spark.tables.channel_contracts import contracts

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
            messages=messages,
            traffic=traffic(messages).persist(),
            nearby=self._read(MESSAGES, around),
            fates=fates.drop("hour"),
            letters=self._letters(messages, first, last),
            orphans=journal_records.orphans(self._spark, self._pipeline.journal, low, high),
            upto=manifest.upto,
            settings=settings,
            channels=contracts(self._pipeline.journal),
            table=self._made,
        )

    def _letters(self, messages: DataFrame, first: int, last: int) -> DataFrame:
        """Those the journal has, and those it had: a letter that was replayed is no longer there."""
        had = self._read(LETTERS, self.hours)
        hours = messages.select("seq", "hour")
        now = journal_records.letters(self._spark, self._pipeline.journal, first, last).join(hours, "seq")
        kept = had.join(now.select("subscriber", "seq"), ["subscriber", "seq"], "left_anti")
        self._make(LETTERS._replace(build=lambda _: now.unionByName(kept)), None)
        return self._made(LETTERS.name).drop("hour")

    def _make(self, table: Table, inputs: Inputs | None) -> None:
        self._progress(table.name)
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
        return self._warehouse.read(self._spark, self._manifest, table, hours)

    def _note_open(self) -> None:
        requests = self._made("requests").where("outcome = 'open'")
        still = set(self._manifest.open) - set(self.hours)
        self._manifest.open = sorted(still | affected.hours_of(requests))
