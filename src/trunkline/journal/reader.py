"""Reading: messages and fates across lake and journal, in order, without a gap or a duplicate, while a process writes.

At each step a reader looks up again where the next messages are: in a sealed file, or in the journal. Sealing moves
them from one to the other in one transaction, so at each step they are in exactly one.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from trunkline.delivery.fates import Outcome
from trunkline.errors import JournalDamaged
from trunkline.journal import explain, lookup, snapshot
from trunkline.journal.body import COLUMNS, StoredBatch
from trunkline.journal.explain import RecordedFate
from trunkline.journal.last import last_message, last_numbers
from trunkline.journal.queries import JournalQueries, start_of_row
from trunkline.journal.range import FOREVER, Range, cut, range_of
from trunkline.journal.sealed import FILE_COLUMNS, File
from trunkline.journal.snapshot import Fits, Head
from trunkline.message import Message
from trunkline.moment import Moment
from trunkline.topic import EVERYTHING, is_wild

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("trunkline.journal")

STEP_BYTES = 8 * 1024 * 1024
STEP_MESSAGES = 50_000
MAX_CHECKED = 1000
"""The number of checked files that a reader remembers, about 250 bytes each. Other files are checked again."""

Damage = Callable[[JournalDamaged], None]


def warn(damage: JournalDamaged) -> None:
    log.error("skipped: %s", damage)


class Reader(JournalQueries):
    """`with Reader(directory) as reader`: reads without the lock, also while another process writes.

    Damaged batches and files are left out and reported to `on_damage`, which by default logs them.
    """

    def __init__(self, directory: str | Path, *, on_damage: Damage = warn) -> None:
        super().__init__(directory)
        self.on_damage = on_damage
        self._checked: dict[str, None] = {}
        """Paths of the last files that passed their check."""
        self._catching_up: tuple[File, int, Iterator[pa.RecordBatch]] | None = None
        """The file that `some_after` is reading, its position, and the rest of the file."""

    def close(self) -> None:
        self._catching_up = None
        super().close()

    # Messages

    def messages(
        self,
        pattern: str = EVERYTHING,
        *,
        first: int = 1,
        last: int | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> Iterator[Message]:
        """Messages in order: by topic pattern, by number (both ends included), by time (`until` not included)."""
        for found, wanted in self._steps(range_of(pattern, first, last, since, until)):
            if isinstance(found, File):
                yield from self.file_messages(found, wanted)
                continue
            for row in found:
                whole = wanted.first <= row.first and row.last <= wanted.last and not wanted.timed
                for message in self.messages_of(row):
                    if whole or wanted.holds(message):
                        yield message

    def arrow(
        self,
        pattern: str = EVERYTHING,
        *,
        first: int = 1,
        last: int | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        columns: list[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The same as Arrow record batches, for reading in bulk. `columns` reads only some columns."""
        from trunkline.journal import layout

        for found, wanted in self._steps(range_of(pattern, first, last, since, until)):
            if isinstance(found, File):
                yield from self.file_batches(found, wanted, columns)
                continue
            for whole in layout.of_rows(found, self.on_damage):
                batch = cut(whole, wanted)
                if batch.num_rows:
                    yield batch if columns is None else batch.select(columns)

    def _steps(self, wanted: Range) -> Iterator[tuple[File | list[StoredBatch], Range]]:
        """The stretches of a range, each with the range to read in it.

        Messages that were read before are not read again, even if they were moved to another file.
        """
        while (step := self.step(wanted, wanted.first - 1)) is not None:
            upto, found = step
            yield found, wanted
            wanted = msgspec.structs.replace(wanted, first=upto + 1)

    def step(
        self, wanted: Range, after: int, limit: int = STEP_MESSAGES
    ) -> tuple[int, File | list[StoredBatch]] | None:
        """The next stretch after `after`: a file, or some rows; and its end. None at the end of the journal."""
        with self.snapshot() as database:
            file = database.execute(
                f"SELECT {FILE_COLUMNS} FROM files"
                " WHERE kind = 'messages' AND replaced_ns IS NULL AND last > ? AND first <= ?"
                " AND since_ns <= ? AND until_ns >= ? ORDER BY first LIMIT 1",
                (after, wanted.last, wanted.until_ns, wanted.since_ns),
            ).fetchone()
            start = start_of_row(database, after)
            first = database.execute("SELECT min(first) FROM batches WHERE first >= ?", (start,)).fetchone()[0]
            if file is not None and (first is None or file[2] < first):
                found = File(*file)
                return found.last, found
            if first is None or first > wanted.last:
                return None
            return self._rows(database, wanted, start, limit)

    def _rows(
        self, database: sqlite3.Connection, wanted: Range, start: int, limit: int
    ) -> tuple[int, list[StoredBatch]] | None:
        self.pattern = wanted.pattern
        topic, given = ("1", ()) if wanted.pattern == EVERYTHING else ("wanted(topic)", ())
        if not is_wild(wanted.pattern):
            topic, given = "topic = ?", (wanted.pattern,)  # type: ignore[assignment]  # another length
        # Numbers ascend, so the last row has the end. No index is needed.
        found = database.execute(
            "SELECT first, last FROM batches WHERE first <= ? ORDER BY first DESC LIMIT 1", (wanted.last,)
        ).fetchone()
        upto = found[1] if isinstance(found[1], int) else found[0]
        times, moments = ("", ())
        if wanted.timed:
            times, moments = " AND since_ns <= ? AND until_ns >= ?", (wanted.until_ns, wanted.since_ns)  # type: ignore[assignment]  # another length
        rows: list[StoredBatch] = []
        count = size = 0
        for values in database.execute(
            f"SELECT {COLUMNS} FROM batches WHERE first >= ? AND first <= ? AND {topic}{times} ORDER BY first",
            (start, wanted.last, *given, *moments),
        ):
            row = self.row(values)
            if row is None:
                continue
            rows.append(row)
            count += row.count
            size += len(row.body)
            if count >= limit or size >= STEP_BYTES:
                # Not beyond the start of the next one: the end that the row claims is not checked yet.
                following = database.execute("SELECT min(first) FROM batches WHERE first > ?", (row.first,)).fetchone()
                return (row.last if following[0] is None else min(row.last, following[0] - 1)), rows
        return upto, rows

    def row(self, values: tuple[Any, ...]) -> StoredBatch | None:
        """A row with valid columns; None if it is damaged, which is reported."""
        first, last, topic, *numbers, body = values
        good = all(isinstance(each, int) for each in (first, last, *numbers))
        if good and isinstance(topic, str) and isinstance(body, bytes) and 0 < first <= last:
            return StoredBatch(*values)
        self.on_damage(
            JournalDamaged(first, last if isinstance(last, int) else first, f"{topic}", "its head is damaged")
        )
        return None

    def messages_of(self, row: StoredBatch) -> list[Message]:
        """The messages of a batch; none if it is damaged, which is reported."""
        try:
            return row.messages()
        except JournalDamaged as damage:
            self.on_damage(damage)
            return []

    # For parallel reading

    def moment(self, first: int, last: int, fits: Fits | None = None) -> tuple[list[File], list[StoredBatch]]:
        """The sealed files and rows from `first` to `last`, from one snapshot; each message is in exactly one.

        Only parts with a topic that `fits`. The parts at both ends may contain more than requested.
        """
        with self.snapshot() as database:
            sealed = snapshot.files(database, "messages", first, last, fits)
            rows = snapshot.batches(database, COLUMNS, first, last, fits)
        return sealed, [row for values in rows if (row := self.row(values)) is not None]

    def moment_of_fates(self, first: int, last: int) -> tuple[list[File], list[tuple[Any, ...]]]:
        """The same for fates, by their numbers: sealed files, and unsealed fates as tuples."""
        with self.snapshot() as database:
            return snapshot.files(database, "fates", first, last, None), snapshot.fates(database, first, last)

    def heads(self, kind: str, first: int, last: int, fits: Fits | None = None, limit: int = -1) -> list[Head]:
        """The parts with messages or fates from `first` to `last`, from one snapshot, without their rows."""
        with self.snapshot() as database:
            return snapshot.heads(database, kind, first, last, fits, limit)

    def highest(self, kind: str) -> int:
        """The highest number that a message or fate ever had here, including removed ones."""
        return int(self.query(snapshot.HIGHEST[kind])[0][0] or 0)

    def removals(self, first: int, last: int) -> list[tuple[str, int, int, int]]:
        """The messages that retention removed between two numbers: topic, first, last, and count."""
        return self.query(
            "SELECT topic, first, last, count FROM removals WHERE last >= ? AND first <= ?", (first, last)
        )

    # For subscribers that catch up

    def some_after(self, pattern: str, after: int, limit: int) -> tuple[list[Message], int]:
        """About `limit` messages after a number, and the last number that was read."""
        wanted = Range(pattern)
        step = self.step(wanted, after, limit)
        if step is None:
            # Nothing was found in this snapshot. Newer messages are found by the next call.
            return [], after
        upto, found = step
        if isinstance(found, list):
            messages = [message for row in found for message in self.messages_of(row) if message.seq > after]
            return messages, upto
        from trunkline.journal import lake, layout

        try:
            self.check(found)
            batch = self._slice_after(found, after)
        except JournalDamaged as damage:
            if not self.counts(found):
                return [], after
            self.on_damage(damage)
            return [], upto
        if batch is None:
            return [], upto
        return layout.to_messages(lake.only(batch, wanted)), batch.column("seq")[-1].as_py()

    def _slice_after(self, file: File, after: int) -> pa.RecordBatch | None:
        """The next rows of a file after a number. Usually a call continues where the last one ended."""
        from trunkline.journal import lake

        known, self._catching_up = self._catching_up, None
        if known is not None and known[:2] == (file, after):
            rest = known[2]
        else:
            rest = lake.read(self.directory, file, Range(first=after + 1))
        batch = next(rest, None)
        if batch is not None:
            self._catching_up = (file, batch.column("seq")[-1].as_py(), rest)
        return batch

    def last(self) -> int:
        """The highest number."""
        (found,) = self.query(
            "SELECT max(coalesce((SELECT last FROM batches ORDER BY first DESC LIMIT 1), 0),"
            " coalesce((SELECT max(last) FROM files WHERE kind = 'messages' AND replaced_ns IS NULL), 0))"
        )[0]
        return int(found)

    def count(self, pattern: str, after: int, upto: int = FOREVER) -> int:
        """The number of matching messages after one number, up to another."""
        return lookup.count(self, pattern, after, upto)

    def tail(self, pattern: str, count: int) -> list[Message]:
        """The last messages that match, oldest first."""
        return lookup.tail(self, pattern, count)

    def some(self, seqs: list[int]) -> list[Message]:
        """The messages with these numbers that are stored, in order."""
        return lookup.some(self, seqs)

    def some_within(self, seqs: list[int], max_bytes: int) -> tuple[list[Message], list[int]]:
        """The same up to `max_bytes`, and the numbers that were not looked up."""
        return lookup.some_within(self, seqs, max_bytes)

    def last_before(self, at_ns: int) -> int:
        """The number of the last message that the journal accepted before a point in time."""
        return lookup.last_before(self, at_ns)

    def last_of(self, topic: str, before: int | None = None) -> Message | None:
        """The last message of a topic, below the number `before` if that is given; None if none is stored.

        It is found by an index. Raises JournalDamaged if it cannot be read; an older one is never returned instead.
        """
        return last_message(self, topic, before)

    def last_of_each(self, pattern: str) -> tuple[int, list[int]]:
        """The highest number, and the number of the last message of each matching topic, from one snapshot."""
        return last_numbers(self, pattern)

    # For explaining the fate of a message

    def find(self, message_id: str, *, everywhere: bool = True) -> Message | None:
        """The message with this id: searched near the time in the id, and then `everywhere`, which may take long."""
        return explain.find(self, message_id, everywhere)

    def fates_of(self, message: Message) -> list[RecordedFate]:
        """All recorded fates of a message, oldest first."""
        return explain.fates_of(self, message)

    def outcomes(self, message: Message) -> list[Outcome]:
        """The fates of a message, one outcome for each subscriber. A separate row takes precedence over a range."""
        return explain.outcomes(self, message)

    # The lake

    def file_messages(self, file: File, wanted: Range) -> Iterator[Message]:
        """The requested messages of a sealed file, as `file_batches`."""
        from trunkline.journal import layout

        for batch in self.file_batches(file, wanted, None):
            yield from layout.to_messages(batch)

    def file_batches(self, file: File, wanted: Range | None, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        """The requested part of a sealed file. If it was replaced, the messages are read from their new place."""
        from trunkline.journal import lake

        after = 0 if wanted is None else wanted.first - 1
        try:
            self.check(file)
            for batch in lake.read(self.directory, file, wanted, columns):
                yield batch
                if wanted is not None and "seq" in batch.schema.names:
                    after = batch.column("seq")[-1].as_py()
        except JournalDamaged as damage:
            if wanted is not None and not self.counts(file):
                # The file was replaced and deleted: its messages are in another file now.
                rest = msgspec.structs.replace(
                    wanted, first=max(after + 1, file.first), last=min(wanted.last, file.last)
                )
                yield from self._elsewhere(rest, columns)
                return
            self.on_damage(damage)

    def _elsewhere(self, wanted: Range, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        for found, narrowed in self._steps(wanted):
            if isinstance(found, File):
                yield from self.file_batches(found, narrowed, columns)

    def check(self, file: File) -> None:
        """Check the file against its checksum.

        Done once for each file, unless the reader has read many others since.
        """
        from trunkline.journal import lake

        if file.path not in self._checked:
            lake.check(self.directory, file)
            self._checked[file.path] = None
            if len(self._checked) > MAX_CHECKED:
                del self._checked[next(iter(self._checked))]
