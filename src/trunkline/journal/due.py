"""Finds the work that is due: ranges of messages and fates to seal, and files to join."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from trunkline.journal.database import FILE
from trunkline.journal.explain import FATE_COLUMNS
from trunkline.journal.range import Range
from trunkline.journal.reader import STEP_MESSAGES, Reader
from trunkline.journal.sealed import File
from trunkline.journal.settings import JournalSettings

if TYPE_CHECKING:
    import pyarrow as pa

FATES_STEP = 5000
JOIN_AT = 8
"""This many adjacent small files are joined, whatever their total size."""

MESSAGE_ENDS = (
    "SELECT (SELECT min(first) FROM batches), (SELECT last FROM batches ORDER BY first DESC LIMIT 1),"
    " (SELECT at_ns FROM batches ORDER BY first LIMIT 1)"
)
FATE_ENDS = (
    "SELECT (SELECT min(number) FROM fates), (SELECT max(number) FROM fates),"
    " (SELECT at_ns FROM fates ORDER BY number LIMIT 1)"
)


class Stretch:
    """Rows of one day that will be one file."""

    def __init__(self, day: str) -> None:
        self.day = day
        self.first = 0
        self.last = 0
        self.messages = 0
        self.bytes = 0
        self.oldest_ns = 0


def next_messages(reader: Reader, settings: JournalSettings, now_ns: int, everything: bool) -> Stretch | None:
    """The oldest batches, if it is time to seal them."""
    from trunkline.journal.lake import day_of

    if not everything and not _may_be_due(reader, MESSAGE_ENDS, settings, now_ns):
        return None
    stretch: Stretch | None = None
    for first, last, at_ns, size in reader.each(
        "SELECT first, last, at_ns, length(body) FROM batches ORDER BY first LIMIT ?", (settings.seal_rows,)
    ):
        day = day_of(at_ns)
        if stretch is None:
            stretch = Stretch(day)
            stretch.first = first
            stretch.oldest_ns = at_ns
        elif day != stretch.day or stretch.messages >= settings.seal_rows or stretch.bytes >= settings.seal_bytes:
            # A past day is sealed when it is old enough, like any other: it may have ended just now.
            return stretch if (everything or _is_due(stretch, settings, now_ns)) else None
        stretch.last = last
        stretch.messages += last - first + 1
        stretch.bytes += size
    return stretch if stretch is not None and (everything or _is_due(stretch, settings, now_ns)) else None


def _may_be_due(reader: Reader, ends: str, settings: JournalSettings, now_ns: int) -> bool:
    """A cheap check: most of the time nothing is due."""
    first, last, at_ns = reader.query(ends)[0]
    if first is None:
        return False
    # Including the log: new rows may be only there.
    files = (reader.directory / FILE, reader.directory / f"{FILE}-wal")
    size = sum(file.stat().st_size for file in files if file.exists())
    age_s = (now_ns - at_ns) / 1e9
    return bool(last - first + 1 >= settings.seal_rows or size >= settings.seal_bytes or age_s >= settings.seal_age_s)


def _is_due(stretch: Stretch, settings: JournalSettings, now_ns: int) -> bool:
    age_s = (now_ns - stretch.oldest_ns) / 1e9
    return (
        stretch.messages >= settings.seal_rows or stretch.bytes >= settings.seal_bytes or age_s >= settings.seal_age_s
    )


def next_fates(reader: Reader, settings: JournalSettings, now_ns: int, everything: bool) -> Stretch | None:
    """The oldest fates, by their own numbers, if it is time to seal them."""
    from trunkline.journal.lake import day_of

    if not everything and not _may_be_due(reader, FATE_ENDS, settings, now_ns):
        return None
    stretch: Stretch | None = None
    for number, at_ns, size in reader.each(
        "SELECT number, at_ns, length(subscriber) + length(pattern) + length(reason) FROM fates"
        " ORDER BY number LIMIT ?",
        (settings.seal_rows,),
    ):
        if stretch is None:
            stretch = Stretch(day_of(at_ns))
            stretch.first = number
            stretch.oldest_ns = at_ns
        elif day_of(at_ns) != stretch.day or stretch.bytes >= settings.seal_bytes:
            break
        stretch.last = number
        stretch.messages += 1
        stretch.bytes += size
    return stretch if stretch is not None and (everything or _is_due(stretch, settings, now_ns)) else None


def batches_of(reader: Reader, stretch: Stretch) -> Iterator[pa.RecordBatch]:
    from trunkline.journal import layout

    wanted = Range(first=stretch.first, last=stretch.last)
    after = stretch.first - 1
    while (step := reader.step(wanted, after, STEP_MESSAGES)) is not None:
        after, found = step
        if isinstance(found, list):
            yield from layout.of_rows(found, reader.on_damage)


def fates_of(reader: Reader, stretch: Stretch) -> Iterator[pa.RecordBatch]:
    from trunkline.journal import layout

    query = f"SELECT {FATE_COLUMNS} FROM fates WHERE number > ? AND number <= ? ORDER BY number LIMIT {FATES_STEP}"
    after = stretch.first - 1
    while rows := reader.query(query, (after, stretch.last)):
        yield layout.of_fates(rows)
        after = rows[-1][0]


def small_runs(files: Iterable[tuple[File, int]], seal_rows: int, seal_bytes: int) -> Iterator[list[File]]:
    """Adjacent files of one day that should be joined: enough files, or enough rows together.

    The size is measured in rows and in uncompressed bytes. The files must be in order, each with the size of its
    payloads.
    """
    run: list[File] = []
    run_rows = run_bytes = 0

    def fills_half(rows: int, size: int) -> bool:
        return rows >= seal_rows // 2 or size >= seal_bytes // 2

    def is_worth_it() -> bool:
        return len(run) > 1 and (len(run) >= JOIN_AT or fills_half(run_rows, run_bytes))

    for file, payloads in files:
        rows, size = file.rows, max(file.bytes, payloads)
        small = not fills_half(rows, size)
        full = run_rows + rows > seal_rows or run_bytes + size > seal_bytes
        if run and (not small or file.day != run[0].day or full):
            if is_worth_it():
                yield run
            run, run_rows, run_bytes = [], 0, 0
        if small:
            run.append(file)
            run_rows += rows
            run_bytes += size
    if is_worth_it():
        yield run
