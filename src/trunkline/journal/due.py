"""What is due: stretches of messages and fates that are to be sealed, and files that are to be joined."""

from __future__ import annotations

from collections.abc import Iterator
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
"""So many small files in a row are joined, however small they are together."""


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

    if not everything and not _may_be_due(reader, settings, now_ns):
        return None
    stretch: Stretch | None = None
    for first, last, at_ns, size in reader.query(
        "SELECT first, last, at_ns, length(body) FROM batches ORDER BY first LIMIT ?", (settings.seal_rows,)
    ):
        day = day_of(at_ns)
        if stretch is None:
            stretch = Stretch(day)
            stretch.first = first
            stretch.oldest_ns = at_ns
        elif day != stretch.day or stretch.messages >= settings.seal_rows or stretch.bytes >= settings.seal_bytes:
            # A day that is over is sealed when it is old enough, like anything else: it may be young.
            return stretch if (everything or _is_due(stretch, settings, now_ns)) else None
        stretch.last = last
        stretch.messages += last - first + 1
        stretch.bytes += size
    return stretch if stretch is not None and (everything or _is_due(stretch, settings, now_ns)) else None


def _may_be_due(reader: Reader, settings: JournalSettings, now_ns: int) -> bool:
    """A look that costs nothing: most of the time there is nothing to do."""
    found = reader.query(
        "SELECT (SELECT min(first) FROM batches), (SELECT max(last) FROM batches),"
        " (SELECT at_ns FROM batches ORDER BY first LIMIT 1)"
    )[0]
    first, last, at_ns = found
    if first is None:
        return False
    size = (reader.directory / FILE).stat().st_size
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

    stretch: Stretch | None = None
    for number, at_ns, size in reader.query(
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


def small_runs(files: list[File], payloads: dict[str, int], seal_rows: int, seal_bytes: int) -> list[list[File]]:
    """Neighbours of one day that are worth joining: enough of them, or large enough together.

    By rows, and by bytes that are not compressed: `payloads` are those of the payloads, by path.
    """

    def sizes(run: list[File]) -> tuple[int, int]:
        return sum(file.rows for file in run), sum(max(file.bytes, payloads.get(file.path, 0)) for file in run)

    def fills_half(run: list[File]) -> bool:
        rows, size = sizes(run)
        return rows >= seal_rows // 2 or size >= seal_bytes // 2

    runs: list[list[File]] = []
    run: list[File] = []
    for file in files:
        small = not fills_half([file])
        rows, size = sizes([*run, file])
        if run and (not small or file.day != run[0].day or rows > seal_rows or size > seal_bytes):
            runs.append(run)
            run = []
        if small:
            run.append(file)
    runs.append(run)
    return [run for run in runs if len(run) > 1 and (len(run) >= JOIN_AT or fills_half(run))]
