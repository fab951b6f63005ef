"""Lookups in a journal: how much it has, its end, single messages by their numbers, a point in time."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from trunkline.errors import JournalDamaged
from trunkline.journal.body import COLUMNS, StoredBatch
from trunkline.journal.queries import start_of_row
from trunkline.journal.range import FOREVER, Range
from trunkline.journal.sealed import File
from trunkline.message import Message
from trunkline.topic import validate_pattern

if TYPE_CHECKING:
    from trunkline.journal.reader import Reader

NO_LIMIT: Final = 2**63


def count(reader: Reader, pattern: str, after: int) -> int:
    """How many messages that match lie beyond a number."""
    with reader.snapshot() as database:
        reader.pattern = pattern
        start = start_of_row(database, after)
        (hot,) = database.execute(
            "SELECT coalesce(sum(last - max(first, ?) + 1), 0) FROM batches WHERE first >= ? AND wanted(topic)",
            (after + 1, start),
        ).fetchone()
        (sealed,) = database.execute(
            "SELECT coalesce(sum(t.count), 0) FROM files f JOIN file_topics t ON t.path = f.path"
            " WHERE f.kind = 'messages' AND f.replaced_ns IS NULL AND f.first > ? AND wanted(t.topic)",
            (after,),
        ).fetchone()
        file = reader.file_upto(after)
        if file is None or file.last <= after:
            return int(hot + sealed)
        parts = database.execute(
            "SELECT first, count FROM file_topics WHERE path = ? AND last > ? AND wanted(topic)", (file.path, after)
        ).fetchall()
    if all(first > after for first, _ in parts):
        return int(hot + sealed + sum(count for _, count in parts))
    rest = reader.file_batches(file, Range(pattern, first=after + 1), ["seq"])
    return int(hot + sealed + sum(batch.num_rows for batch in rest))


def tail(reader: Reader, pattern: str, count: int) -> list[Message]:
    """The last messages that match, oldest first."""
    reader.pattern = validate_pattern(pattern)
    rows: list[tuple[Any, ...]] = []
    with reader.snapshot() as database:
        # Both of one moment: what is sealed meanwhile would be told twice, or not at all.
        file = reader.file_upto(FOREVER)
        wanted = 0
        for values in database.execute(f"SELECT {COLUMNS} FROM batches WHERE wanted(topic) ORDER BY first DESC"):
            if wanted >= count:
                break
            rows.append(values)
            wanted += values[1] - values[0] + 1 if isinstance(values[1], int) else 0
    good = [row for values in reversed(rows) if (row := reader.row(values)) is not None]
    found = [message for row in good for message in reader.messages_of(row)]
    upto = 0 if file is None else file.last
    while file is not None and len(found) < count:
        sealed = reader.file_messages(file, Range(pattern, last=upto))
        found = [*deque(sealed, count - len(found)), *found]
        upto = file.first - 1
        file = reader.file_upto(upto)
    return found[-count:] if count else []


def some(reader: Reader, seqs: list[int]) -> list[Message]:
    """The messages with these numbers, as far as they are there, in order."""
    return some_within(reader, seqs, NO_LIMIT)[0]


def some_within(reader: Reader, seqs: list[int], max_bytes: int) -> tuple[list[Message], list[int]]:
    """The same until there are `max_bytes` of them; and the numbers that were not looked for then."""
    found: list[Message] = []
    wanted = set(seqs)
    size = 0
    while wanted:
        first = min(wanted)
        step = reader.step(Range(first=first), first - 1, 1)
        if step is None:
            break
        upto, where = step
        here = {seq for seq in wanted if seq <= upto}
        for message in _picked(reader, where, here) if isinstance(where, File) else _in_rows(reader, where, here):
            found.append(message)
            size += len(message.payload)
            if size >= max_bytes:
                return found, sorted(seq for seq in wanted if seq > message.seq)
        wanted -= here
    return found, []


def _in_rows(reader: Reader, rows: list[StoredBatch], seqs: Collection[int]) -> Iterator[Message]:
    return (message for row in rows for message in reader.messages_of(row) if message.seq in seqs)


def _picked(reader: Reader, file: File, seqs: Collection[int]) -> Iterator[Message]:
    from trunkline.journal import picking

    done = 0
    try:
        reader.check(file)
        for message in picking.pick(reader.directory, file, seqs):
            yield message
            done = message.seq
    except JournalDamaged as damage:
        if reader.counts(file):
            reader.on_damage(damage)
        else:
            # It was replaced, and is gone: what it held is elsewhere now.
            yield from some(reader, [seq for seq in seqs if seq > done])


def last_before(reader: Reader, at_ns: int) -> int:
    """The number of the last message that the journal took before a point in time."""
    (last,) = reader.query("SELECT coalesce(max(last), 0) FROM batches WHERE at_ns < ?", (at_ns,))[0]
    upto = FOREVER
    while not last and (file := reader.file_upto(upto)) is not None:
        upto = file.first - 1
        if file.at_ns >= at_ns:
            continue
        if file.until_at_ns < at_ns:
            return file.last
        import pyarrow.compute as pc

        for batch in reader.file_batches(file, Range(), ["seq", "accepted"]):
            before = batch.filter(pc.less(batch.column("accepted").cast("int64"), at_ns // 1000))
            if before.num_rows:
                last = before.column("seq")[-1].as_py()
    return int(last)
