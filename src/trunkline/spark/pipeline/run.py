"""A pipeline: adds new data of journals to the tables of a warehouse, in steps. Each step is committed on its own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trunkline.journal.delta_log import follow_lake
from trunkline.spark.errors import PipelineError
from trunkline.spark.pipeline import affected, journal_records
from trunkline.spark.pipeline.driver_rows import DriverRows
from trunkline.spark.pipeline.few_rows import FewRows, few
from trunkline.spark.pipeline.ingest import Ingest
from trunkline.spark.pipeline.journals import JournalSource, admit
from trunkline.spark.pipeline.linked import linked_hours
from trunkline.spark.pipeline.manifest import JournalState, Manifest, StoredFile, folder_of, hour_of, name_of
from trunkline.spark.pipeline.outlook import Ends
from trunkline.spark.pipeline.rows import ManyRows, Place, StepRows
from trunkline.spark.pipeline.run_report import RunReport
from trunkline.spark.pipeline.task_graph import TaskGraph
from trunkline.spark.pipeline.warehouse import Warehouse, hours_between
from trunkline.spark.settings import PipelineSettings
from trunkline.spark.tables import requests
from trunkline.spark.tables.bronze import FATES, LETTERS, MESSAGES
from trunkline.spark.tables.catalog import built
from trunkline.spark.tables.channel_contracts import contracts
from trunkline.spark.tables.table import BuiltTable, ChannelContract, Inputs, QueryTable, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("trunkline.pipeline")

BEFORE = (MESSAGES.name, FATES.name, LETTERS.name)
DEATH = ["subscriber", "seq", "at"]
"""The columns that identify a row of `letters`."""
KNOWN = frozenset(table.name for table in built(()))
"""The built tables that every warehouse has. Channels with a schema add further tables."""

Progress = Callable[[str, int, int], None]
"""Called with the current part of the step, the number of parts done and the total, from several threads."""


SessionStart = Callable[[bool], "SparkSession"]
"""Starts a session. It is called at most once. The argument is whether few rows are expected."""


def _quiet(what: str, done: int, total: int) -> None:
    return


class Pipeline:
    """`with Pipeline(spark, journal, warehouse) as pipeline: pipeline.run()`

    `journal` is one or several directories. A warehouse with data rejects other journals unless `add_journals` is set.
    `spark` is a session, or a function that starts one. The function is called only if there is something to do.
    """

    def __init__(
        self,
        spark: SparkSession | SessionStart,
        journal: str | Path | Sequence[str | Path],
        warehouse: str | Path,
        settings: PipelineSettings | None = None,
        *,
        progress: Progress = _quiet,
        add_journals: bool = False,
    ) -> None:
        self._given = spark
        self.settings = settings or PipelineSettings()
        several = [journal] if isinstance(journal, str | Path) else journal
        self._directories = [Path(each) for each in several]
        self._add_journals = add_journals
        self.journals: list[JournalSource] = []
        """The journals of the run. Empty until the warehouse is open."""
        self.warehouse = Warehouse(warehouse, grace_s=self.settings.grace_s)
        self._progress = progress
        self._expects_few = False

    def __enter__(self) -> Pipeline:
        self.warehouse.open()
        try:
            self._keep_watermark()
            manifest, place = self.warehouse.manifest, self.warehouse.directory
            self.journals = admit(manifest, place, self._directories, add=self._add_journals)
            if self.settings.delta is not None:
                self.warehouse.keep_logs(self.settings.delta)
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
                "use the old setting, or a new warehouse"
            )

    def run(self) -> RunReport:
        """Process all new data, then return."""
        start = self.warehouse.manifest.copy()
        self._expects_few = sum(map(self._rows_ahead, self.journals)) <= self.settings.few_rows
        done = [step for journal in self.journals for step in self._steps(journal)]
        self._forget_old_hours()
        if self.warehouse.manifest.delta:
            for journal in self.journals:
                follow_lake(journal.directory)
        states = [(self._state(journal), start.state(journal.name)) for journal in self.journals]
        return RunReport(
            self.warehouse.manifest.run,
            sum(step.messages for step in done),
            sum(step.fates for step in done),
            sorted({hour for step in done for hour in step.hours}),
            sum(now.late - before.late for now, before in states),
            sum(now.duplicates - before.duplicates for now, before in states),
            len(done),
        )

    def _forget_old_hours(self) -> None:
        """Apply the retention of the warehouse. Files are deleted after the grace period, like replaced files."""
        if self.settings.keep_s is None:
            return
        manifest = self.warehouse.manifest.copy()
        keep = timedelta(seconds=self.settings.keep_s)
        forgotten = False
        for state in manifest.journals.values():
            forgotten |= bool(state.hours) and state.forget_before(name_of(state.upto - keep))
        if forgotten:
            self.warehouse.commit(manifest)

    def _steps(self, journal: JournalSource) -> Iterator[_Step]:
        ends = Ends(journal.directory)
        while ends.are_ahead_of(state := self._state(journal)):
            last = min(ends.seq, state.seq + self.settings.step_rows)
            # Fates can refer to messages of later steps. All new fates are therefore ingested with the last step.
            fate = ends.fate if last == ends.seq else state.fate
            step = _Step(self, journal, last, fate)
            step.state.orphans = ends.orphans
            yield step.take()

    def _state(self, journal: JournalSource) -> JournalState:
        return self.warehouse.manifest.state(journal.name)

    @property
    def spark(self) -> SparkSession:
        """The session. If a function was given, the first access starts the session."""
        if callable(self._given):
            self._given = self._given(self._expects_few)
        return self._given

    def _rows_ahead(self, journal: JournalSource) -> int:
        """The approximate number of rows that a run will read: new rows, and rows of the hours that it may rebuild."""
        state, ends = self._state(journal), Ends(journal.directory)
        recent = sorted(state.hours)[-2 - affected.horizon_hours(self.settings) :]
        known = sum(state.hours[hour].count for hour in recent)
        return known + ends.seq - state.seq + ends.fate - state.fate

    def rebuild(self, since: datetime | None = None, until: datetime | None = None) -> list[str]:
        """Rebuild all tables but bronze for the hours from `since` up to `until`. Returns these hours."""
        found: set[str] = set()
        for journal in self.journals:
            state = self._state(journal)
            hours = hours_between(state.hours, since, until)
            if hours:
                _Step(self, journal, state.seq, state.fate).make(set(hours))
            found.update(hours)
        return sorted(found)

    def progress(self, what: str, done: int, total: int) -> None:
        self._progress(what, done, total)


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set settings of a session, and restore them at the end: other code may use the session before and after."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


class _Step:
    """One range of messages: adds them to bronze, rebuilds all tables for the affected hours, and commits."""

    def __init__(self, pipeline: Pipeline, journal: JournalSource, last: int, fate: int) -> None:
        self._pipeline = pipeline
        self._spark = pipeline.spark
        self._warehouse = pipeline.warehouse
        self._settings = pipeline.settings
        self._last = last
        self._fate = fate
        self._manifest: Manifest = pipeline.warehouse.manifest.copy()
        self._manifest.run += 1
        self._journal = journal
        self.state: JournalState = self._manifest.state(self._journal.name)
        self._place = Place(self._warehouse, self._manifest, self._journal)
        self._rows: StepRows = ManyRows(self._spark, self._place)
        self._done = 0
        self._total = len(BEFORE) + len(built(())) + 1
        self.messages = 0
        self.fates = 0
        self.hours: list[str] = []

    def take(self) -> _Step:
        """Ingest bronze, then build the tables."""
        state, upto_before = self.state, self.state.upto
        ingest = Ingest(self._spark, self._journal, self._warehouse, self._settings, self._manifest)
        hours: set[str] = set()
        self._progress("messages")
        if self._last > state.seq:
            hours, self.messages = ingest.messages(self._last)
        bronze = DriverRows(self._warehouse, self._journal.name, state)
        hours |= affected.by_numbers(state, journal_records.claimed_orphans(self._warehouse, self._journal, state))
        hours = linked_hours(bronze, state, hours, self._settings) | affected.by_time(state, upto_before)
        self._progress("fates")
        if self._fate > state.fate:
            grains, self.fates = ingest.fates(self._fate)
            hours |= affected.by_fates(state, grains)
        ingest.join()
        self.make(hours)
        return self

    def _progress(self, what: str) -> None:
        self._pipeline.progress(what, self._done, self._total)
        self._done += 1

    # The tables

    def make(self, hours: set[str]) -> None:
        """Build all tables but bronze for these hours, then commit."""
        self.hours = sorted(hours)
        if self.hours:
            channels = contracts(self._journal.directory)
            near = affected.Near(self.state, self.hours, self._settings)
            orphans = journal_records.orphans(self._journal.directory, *near.wide)
            self._rows = self._chosen(near, channels, orphans.num_rows > 0)
            try:
                with session_settings(self._spark, self._rows.settings):
                    self._make_all(built(channels), self._inputs(near, channels, orphans))
                    self._note_open()
            finally:
                self._rows.release()
        self._progress("commit")
        self._warehouse.commit(self._manifest)

    def _chosen(self, near: affected.Near, channels: tuple[ChannelContract, ...], orphans: bool) -> StepRows:
        """The faster way to process this number of rows."""
        bronze = few(self._place, near, self._settings.few_rows)
        if bronze is None:
            return ManyRows(self._spark, self._place)
        contents = bronze.contents(channels, orphans)._replace(unread=bool(self._unread()))
        return FewRows(self._spark, self._place, bronze, contents)

    def _make_all(self, tables: list[BuiltTable], inputs: Inputs) -> None:
        """Build several tables at once: each build has phases that use one core or none."""
        self._total = len(tables) + len(BEFORE) + 1
        graph = TaskGraph(self._spark, self._settings.tables_at_once)
        for table in tables:
            graph.add(table.name, table.needs, partial(self._make, table, inputs))
        graph.run()

    def _is_reshaped(self, table: BuiltTable) -> bool:
        """Whether the columns of a typed table changed with the schema of its channel. Records the new columns."""
        columns = [(column.name, column.type) for column in table.own_columns]
        if table.name in KNOWN or self.state.typed.get(table.name) == columns:
            return False
        self.state.typed[table.name] = columns
        return True

    def _inputs(self, near: affected.Near, channels: tuple[ChannelContract, ...], orphans: pa.Table) -> Inputs:
        rows = self._rows
        messages = rows.messages(self.hours)
        wide = rows.messages(near.wide_hours) if near.wide_hours != self.hours else messages
        return Inputs(
            spark=self._spark,
            messages=messages,
            traffic=rows.traffic(messages),
            nearby=rows.messages(near.hours) if near.hours != self.hours else messages,
            wide=wide,
            related=rows.related(wide),
            fates=rows.fates(*near.numbers).drop("hour"),
            letters=self._letters(messages, near),
            orphans=rows.given(orphans),
            unread=self._unread(),
            upto=self.state.upto,
            settings=self._settings,
            channels=channels,
            table=self._made,
            settled=rows.settled,
            hold=rows.hold,
        )

    def _unread(self) -> tuple[tuple[str, int, datetime], ...]:
        found = (each for each in self.state.unread if each.hour in self.hours)
        return tuple((each.topic, each.count, hour_of(each.hour)) for each in found)

    def _letters(self, messages: DataFrame, near: affected.Near) -> DataFrame:
        """Dead letters in the journal, and those of earlier runs that are no longer there.

        When the journal removes a message, it removes its dead letters, too.
        """
        self._progress(LETTERS.name)
        found = journal_records.letters(self._journal.directory, *near.numbers)
        listed = self.state.files(LETTERS.name)
        now = self._rows.given(found)
        if not found.num_rows and not any(hour in listed for hour in self.hours):
            return now
        now = now.join(messages.select("seq", "hour"), "seq")
        had = self._warehouse.read(self._spark, self._manifest, LETTERS, self.hours, self._journal.name).drop("journal")
        kept = had.join(now.select(*DEATH), DEATH, "left_anti")
        self._write(LETTERS, LETTERS.shape(now.unionByName(kept)), self.hours)
        return self._rows.made(LETTERS).drop("hour")

    def _make(self, table: BuiltTable, inputs: Inputs) -> None:
        self._progress(table.name)
        contents = self._rows.contents
        if isinstance(table, QueryTable) and self._is_reshaped(table):
            # All files of a table have the same columns, so all hours are rebuilt.
            hours = sorted(self.state.hours)
            many = ManyRows(self._spark, self._place)
            rows = table.shape(table.build(inputs._replace(messages=many.messages(hours))))
            self._note(table, many.write(table, rows), hours)
        elif contents is not None and not table.has_rows(contents):
            self._note(table, {}, self.hours)
        elif isinstance(table, QueryTable):
            self._write(table, table.shape(table.build(inputs)), self.hours)
        else:
            self._note(table, self._rows.deliver(self.hours), self.hours)

    def _write(self, table: Table, rows: DataFrame, hours: list[str]) -> None:
        self._note(table, self._rows.write(table, rows), hours)

    def _note(self, table: Table, written: dict[str, list[StoredFile]], hours: list[str]) -> None:
        """Record the new files of a table for these hours. Hours without a file have no rows."""
        strange = written.keys() - set(hours)
        if strange:
            raise PipelineError(f"{table.name} made rows of hours that are not its own: {', '.join(sorted(strange))}")
        listed = self.state.files(table.name)
        for hour in hours:
            listed.pop(hour, None)
        listed.update(written)

    def _made(self, name: str) -> DataFrame:
        return self._rows.made(next(each for each in built(()) if each.name == name))

    def _note_open(self) -> None:
        listed = self.state.files(requests.TABLE.name)
        still = set(self.state.open) - set(self.hours)
        self.state.open = sorted(still | {hour for hour in self.hours if self._is_open(hour, listed.get(hour, ()))})

    def _is_open(self, hour: str, files: Iterable[StoredFile]) -> bool:
        """Whether an hour has a request whose outcome is `open`."""
        folder = self._warehouse.directory / folder_of(requests.TABLE.name, self._journal.name, hour)
        for file in files:
            with pq.ParquetFile(folder / file.name) as parquet:
                if pc.any(pc.equal(parquet.read(["outcome"]).column("outcome"), "open")).as_py():
                    return True
        return False
