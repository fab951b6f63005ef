"""The outcomes of a message: finds it by its id, with its recorded fates. Used through `Reader`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from trunkline.delivery.fates import Fate, Outcome
from trunkline.errors import JournalDamaged
from trunkline.journal.cursor import unpack
from trunkline.journal.range import FOREVER, Range
from trunkline.journal.sealed import File
from trunkline.message import Message
from trunkline.topic import matches

if TYPE_CHECKING:
    import pyarrow as pa

    from trunkline.journal.reader import Reader


class RecordedFate(msgspec.Struct, frozen=True):
    """One row of fates: a range that was delivered, or one message that was not."""

    number: int
    subscriber: str
    pattern: str
    fate: str
    first: int
    last: int
    count: int
    reason: str
    at_ns: int

    @property
    def exact(self) -> bool:
        """Whether it covers every number in its range.

        Otherwise it covers only matching messages without a separate row.
        """
        return self.last - self.first + 1 == self.count


FATE_COLUMNS = ", ".join(RecordedFate.__struct_fields__)
FIND_NS = 60_000_000_000
"""The maximum difference between the timestamp of a message and the time in its id, unless they were set by hand."""


def uuid7_ns(text: str) -> int | None:
    """The time in a UUIDv7; None for any other text."""
    if len(text) != 36 or text[14] != "7":
        return None
    try:
        return int(text[:8] + text[9:13], 16) * 1_000_000
    except ValueError:
        return None


def find(reader: Reader, message_id: str, everywhere: bool) -> Message | None:
    """The message with this id: searched near the time in the id, and then `everywhere`, which may take long."""
    near = uuid7_ns(message_id)
    spans = [] if near is None else [(near - FIND_NS, near + FIND_NS)]
    if everywhere or near is None:
        spans.append((0, FOREVER))
    for since_ns, until_ns in spans:
        wanted = Range(since_ns=max(0, since_ns), until_ns=until_ns)
        after = 0
        while (step := reader.step(wanted, after)) is not None:
            after, found = step
            if isinstance(found, list):
                for row in found:
                    if row.holds(message_id):
                        for message in reader.messages_of(row):
                            if message.id == message_id:
                                return message
                continue
            for message in _find_in(reader, found, message_id):
                return message
    return None


def _find_in(reader: Reader, file: File, message_id: str) -> Iterator[Message]:
    import pyarrow.compute as pc

    from trunkline.journal import layout

    for batch in reader.file_batches(file, Range(), None):
        yield from layout.to_messages(batch.filter(pc.equal(batch.column("id"), message_id)))


def fates_of(reader: Reader, message: Message) -> list[RecordedFate]:
    """All recorded fates of a message, oldest first."""
    rows = fates_about(reader, message.seq, message.seq)
    return [each for each in rows if each.first == each.last or matches(each.pattern, message.topic)]


def fates_about(reader: Reader, first: int, last: int) -> list[RecordedFate]:
    """All recorded fates that overlap a range of messages, oldest first."""
    rows = reader.query(
        f"SELECT {FATE_COLUMNS} FROM fates WHERE last >= ? AND first <= ? ORDER BY number", (first, last)
    )
    found = [RecordedFate(*row) for row in rows]
    # By number: rows may be found twice if a file was replaced in the meantime.
    sealed = {
        each.number: each
        for file in reader.files("fates")
        for batch in _about(reader, file, first, last)
        for each in _fates_from(batch)
    }
    return [*sealed.values(), *found]


def _about(reader: Reader, file: File, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """The rows about messages in this range, in a file of fates. If it has none, only the footer is read."""
    from trunkline.journal import lake

    try:
        if lake.speaks_of(reader.directory, file, first, last):
            reader.check(file)
            yield from lake.fates_about(reader.directory, file, first, last)
    except JournalDamaged as damage:
        if reader.counts(file):
            reader.on_damage(damage)
            return
        # The file was replaced and deleted: its rows are in another file now.
        for other in reader.files("fates"):
            if other.first <= file.last and file.first <= other.last:
                yield from _about(reader, other, first, last)


def _fates_from(batch: pa.RecordBatch) -> Iterator[RecordedFate]:
    for row in batch.to_pylist():
        at_ns = int(row.pop("time").timestamp() * 1_000_000) * 1000
        yield RecordedFate(**row, at_ns=at_ns)


def outcomes(reader: Reader, message: Message) -> list[Outcome]:
    """The fates of a message, one outcome for each subscriber. A separate row takes precedence over a range."""
    latest: dict[str, RecordedFate] = {}
    for fates in fates_of(reader, message):
        before = latest.get(fates.subscriber)
        if before is None or fates.exact or not before.exact:
            latest[fates.subscriber] = fates
    waiting = {
        subscriber for (subscriber,) in reader.query("SELECT subscriber FROM retries WHERE seq = ?", (message.seq,))
    }
    found = [Outcome(each, Fate.IN_FLIGHT, "waits for its next attempt") for each in sorted(waiting)]
    found += [
        Outcome(each.subscriber, Fate(each.fate), each.reason, each.at_ns)
        for each in latest.values()
        if each.subscriber not in waiting
    ]
    for name, pattern, high, pending in reader.query("SELECT name, pattern, high, pending FROM cursors"):
        waits = message.seq > high or message.seq in unpack(pending)
        if name not in latest and name not in waiting and waits and matches(pattern, message.topic):
            found.append(Outcome(name, Fate.IN_FLIGHT, "waits in the journal"))
    return found
