"""Reads the store of an engine: the connection, the partitions, and their rows.

Spark has no event loop, so each call runs its own. A partition is a range of entries; its reader connects to the
engine.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import InputPartition

from trunkline import columns
from trunkline.brokers.engine.batches import decode, entry_of, number_of
from trunkline.brokers.engine.driver import Entry
from trunkline.brokers.engine.log import EngineLog, LogBeginning, LogPage, LogState, RemovedEntries
from trunkline.errors import InvalidPayload, JournalDamaged, StoreUnusable
from trunkline.journal import layout
from trunkline.journal.body import StoredBatch, make_batch
from trunkline.spark.source.engine_options import EngineOptions
from trunkline.spark.source.partitions import OwnPart
from trunkline.spark.source.row_filter import RowFilter
from trunkline.spark.source.snapshot import fitting

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("trunkline.spark")

MIN_ENTRIES = 64
"""The minimum number of entries of a partition."""
FIRST_WINDOW, LAST_WINDOW = 64, 4096
"""The number of entries whose messages are counted at once: few first, then more."""


class StoreIdentity(NamedTuple):
    engine: str
    stream: str
    store: str


class OpenLog:
    """An open connection to a log, for callers without an event loop."""

    def __init__(self, runner: asyncio.Runner, inner: EngineLog, options: EngineOptions) -> None:
        self._runner = runner
        self._log = inner
        self._options = options

    def state(self) -> LogState:
        return self._runner.run(self._log.state())

    def identity(self, state: LogState) -> StoreIdentity:
        return StoreIdentity(self._log.name, state.stream, state.run)

    def beginning(self) -> LogBeginning:
        return self._runner.run(self._log.beginning(self._options.pattern))

    def expect(self, expected: StoreIdentity) -> LogState:
        """The state of the store; raises StoreUnusable if it is not the expected one."""
        state = self.state()
        found = self.identity(state)
        if found != expected:
            raise self.unusable(
                f"it is {_words(found)}, but the checkpoint belongs to {_words(expected)}: restore that one, or use "
                "another checkpointLocation"
            )
        return state

    def unusable(self, why: str) -> StoreUnusable:
        return StoreUnusable(self._log.name, self._log.url, why)

    def pages(self, first: int, last: int) -> Iterator[LogPage]:
        """All entries of a range, in any order."""
        pages = self._log.pages(self._options.pattern, first, last)
        try:
            while (page := self._runner.run(_next(pages))) is not None:
                yield page
        finally:
            self._runner.run(_close(pages))

    def end_within(self, after: int, last: int, max_rows: int) -> int:
        """A number up to `last`, with at most `max_rows` messages of the topics between `after` and it."""
        taken, window = 0, FIRST_WINDOW
        entry, (end, _) = entry_of(after + 1)[0], entry_of(last)
        while entry <= end:
            upto = min(end, entry + window - 1)
            found = sorted(each for page in self.pages(entry, upto) for each in map(_numbers, page.entries))
            for first, count in found:
                beyond = max(first, after + 1)
                new = max(0, first + count - beyond)
                if taken + new > max_rows:
                    return min(last, beyond + max_rows - taken - 1)
                taken += new
                if taken == max_rows:
                    # Up to the end of the entry, which is then complete.
                    return min(last, number_of(entry_of(first)[0] + 1) - 1)
            entry, window = upto + 1, min(LAST_WINDOW, 2 * window)
        return last


@contextmanager
def opened(options: EngineOptions) -> Iterator[OpenLog]:
    inner = options.log()
    with asyncio.Runner() as runner:
        runner.run(inner.connect())
        try:
            yield OpenLog(runner, inner, options)
        finally:
            runner.run(inner.aclose())


@dataclass(frozen=True)
class EnginePart(OwnPart):
    """Entries from `first` to `last`."""

    options: EngineOptions = field(repr=False)
    identity: StoreIdentity
    first: int
    last: int
    removed: int
    """Entries up to here were removed before the query began."""
    wanted: RowFilter
    columns: list[str]

    def batches(self) -> Iterator[pa.RecordBatch]:
        with opened(self.options) as store:
            store.expect(self.identity)
            for page in store.pages(self.first, self.last):
                self._tell(store, [each for each in page.removed if each.last > self.removed])
                rows = [row for entry in page.entries for row in self._rows(entry)]
                yield from fitting(layout.of_rows(rows, self._on_damage), self.wanted, self.columns)

    def _tell(self, store: OpenLog, removed: list[RemovedEntries]) -> None:
        """Raise an error for removed entries, or log them if `fail_on_data_loss` is off."""
        for first, last, topic in removed:
            what = f"up to {last - first + 1} entries ({first} to {last}{f' of {topic}' if topic else ''})"
            if self.options.fail_on_data_loss:
                raise store.unusable(
                    f"{what} were removed before they were read: keep more at the engine (max_age_s, max_bytes, "
                    "durable), or continue without them with fail_on_data_loss=false"
                )
            log.warning("%s of %s were removed by the engine, unread", what, self.identity.stream)

    def _rows(self, entry: Entry) -> list[StoredBatch]:
        first = number_of(entry.number)
        try:
            head, body = decode(entry.data)
            messages = columns.read(entry.topic, body, range(first, first + head.count))
        except InvalidPayload as error:
            where = f"entry {entry.number} on {entry.topic} of {self.identity.stream}"
            self._on_damage(JournalDamaged(first, first, where, f"{error} (skip_damaged skips damaged parts)"))
            return []
        return [make_batch(messages, entry.stored_ns)]

    def _on_damage(self, damage: JournalDamaged) -> None:
        if not self.options.skip_damaged:
            raise damage
        log.error("skipped: %s", damage)


class EngineRange(NamedTuple):
    """The messages to read: after one number, up to another."""

    identity: StoreIdentity
    after: int
    upto: int
    removed: int


def partitions(options: EngineOptions, asked: EngineRange, wanted: RowFilter, names: list[str]) -> list[InputPartition]:
    """Partitions: the ranges of entries that contain the requested messages."""
    if asked.upto <= asked.after:
        return []
    wanted = wanted.between(asked.after + 1, asked.upto)
    low, high = wanted.numbers
    if low > high:
        return []
    first, last = entry_of(low)[0], entry_of(high)[0]
    step = max(MIN_ENTRIES, -(-(last - first + 1) // options.partitions))
    return [
        EnginePart(options, asked.identity, each, min(last, each + step - 1), asked.removed, wanted, names)
        for each in range(first, last + 1, step)
    ]


def partitions_of_all(options: EngineOptions, wanted: RowFilter, names: list[str]) -> list[InputPartition]:
    """Partitions of everything that is stored now."""
    with opened(options) as store:
        state = store.state()
        first, removed = store.beginning()
        asked = EngineRange(store.identity(state), number_of(first) - 1, end_of(state), removed)
    return partitions(options, asked, wanted, names)


def end_of(state: LogState) -> int:
    """The highest possible message number of the last entry."""
    return number_of(state.last + 1) - 1


def _numbers(entry: Entry) -> tuple[int, int]:
    """The number of its first message and their count; none if it is damaged, which is reported when it is read."""
    try:
        return number_of(entry.number), decode(entry.data)[0].count
    except InvalidPayload:
        return number_of(entry.number), 0


async def _next(pages: AsyncIterator[LogPage]) -> LogPage | None:
    return await anext(pages, None)


async def _close(pages: Any) -> None:
    await pages.aclose()


def _words(identity: StoreIdentity) -> str:
    return f"the {identity.engine} stream {identity.stream} ({identity.store})"
