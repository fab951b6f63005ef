"""Lookups in a journal: how much it has, its end, single messages by their numbers, a point in time."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trunkline.errors import JournalDamaged
from trunkline.journal.body import COLUMNS, StoredBatch
from trunkline.journal.range import FOREVER, Range
from trunkline.journal.sealed import File
from trunkline.message import Message
from trunkline.topic import matches, validate_pattern

if TYPE_CHECKING:
    from trunkline.journal.reader import Reader

NO_LIMIT: Final = 2**63


HOT_BETWEEN: Final = (
    "SELECT topic, sum(min(last, :upto) - max(first, :after + 1) + 1) FROM batches"
    " WHERE first >= coalesce((SELECT max(first) FROM batches WHERE first <= :after), 0) AND first <= :upto"
    # In the order of numbers: the index by topic would be read as a whole.
    " AND last > :after GROUP BY +topic"
)
SEALED_WITHIN: Final = (
    "SELECT t.topic, sum(t.count) FROM files f JOIN file_topics t ON t.path = f.path"
    " WHERE f.kind = 'messages' AND f.replaced_ns IS NULL AND f.first > :after AND f.last <= :upto GROUP BY t.topic"
)
SEALED_CUT: Final = (
    "SELECT t.topic, t.count, t.first > :after AND t.last <= :upto,"
    f" {', '.join(f'f.{name}' for name in File.__struct_fields__)}"
    " FROM files f JOIN file_topics t ON t.path = f.path WHERE f.kind = 'messages' AND f.replaced_ns IS NULL"
    " AND f.first >= coalesce((SELECT max(first) FROM files WHERE kind = 'messages' AND replaced_ns IS NULL"
    " AND first <= :after), 0)"
    " AND f.first <= :upto AND t.last > :after AND t.first <= :upto AND NOT (f.first > :after AND f.last <= :upto)"
)


class StoredCounts(NamedTuple):
    """How many messages of each topic lie beyond one number, up to another, as the tables say."""

    after: int
    upto: int
    within: list[tuple[str, int]]
    """Topics, each with a number of its messages: of batches, and of files that lie within as a whole."""
    cut: list[tuple[File, list[tuple[str, int, bool]]]]
    """The other files, two at the most, with their topics; whether all that the file has of a topic lies within."""


def stored_counts(reader: Reader, after: int, upto: int = FOREVER) -> StoredCounts:
    """Call it within one `snapshot`: between two questions, messages may be sealed."""
    ends = {"after": after, "upto": upto}
    cut: dict[File, list[tuple[str, int, bool]]] = {}
    for topic, count, whole, *file in reader.query(SEALED_CUT, ends):
        cut.setdefault(File(*file), []).append((topic, count, bool(whole)))
    within = reader.query(HOT_BETWEEN, ends) + reader.query(SEALED_WITHIN, ends)
    return StoredCounts(after, upto, within, list(cut.items()))


def count_within(reader: Reader, stored: StoredCounts, pattern: str) -> int:
    """How many of them match. A file is read only if one of the two numbers lies in the middle of it."""
    found = sum(count for topic, count in stored.within if matches(pattern, topic))
    for file, topics in stored.cut:
        wanted = [(count, whole) for topic, count, whole in topics if matches(pattern, topic)]
        if all(whole for _, whole in wanted):
            found += sum(count for count, _ in wanted)
        else:
            found += _count_in_file(reader, file, Range(pattern, stored.after + 1, stored.upto))
    return found


def _count_in_file(reader: Reader, file: File, wanted: Range) -> int:
    from trunkline.journal import lake

    try:
        return sum(batch.num_rows for batch in lake.read(reader.directory, file, wanted, ["seq"]))
    except JournalDamaged as damage:
        if reader.counts(file):
            reader.on_damage(damage)
            return 0
    # It was replaced, and is gone: what it held is elsewhere now.
    return count(reader, wanted.pattern, max(wanted.first, file.first) - 1, min(wanted.last, file.last))


def count(reader: Reader, pattern: str, after: int, upto: int = FOREVER) -> int:
    """How many messages that match lie beyond a number, up to another."""
    with reader.snapshot():
        stored = stored_counts(reader, after, upto)
    return count_within(reader, stored, pattern)


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
