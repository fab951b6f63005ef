"""Lookups in a journal: counts, its end, single messages by number, a point in time."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from trunkline.delivery.ranges import Ranges
from trunkline.errors import JournalDamaged
from trunkline.journal import snapshot
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
    # In the order of numbers; otherwise the whole index by topic would be read.
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
    """The number of messages of each topic in a range of numbers, from the tables alone."""

    after: int
    upto: int
    within: list[tuple[str, int]]
    """Topics with message counts, from batches, and from files that are completely in the range."""
    cut: list[tuple[File, list[tuple[str, int, bool]]]]
    """The other files, at most two, with their topics, and whether all messages of a topic are in the range."""


def stored_counts(reader: Reader, after: int, upto: int = FOREVER) -> StoredCounts:
    """The counts of a range. Call it within one `snapshot`: messages may be sealed between two queries."""
    ends = {"after": after, "upto": upto}
    cut: dict[File, list[tuple[str, int, bool]]] = {}
    for topic, count, whole, *file in reader.query(SEALED_CUT, ends):
        cut.setdefault(File(*file), []).append((topic, count, bool(whole)))
    within = reader.query(HOT_BETWEEN, ends) + reader.query(SEALED_WITHIN, ends)
    return StoredCounts(after, upto, within, list(cut.items()))


def count_within(reader: Reader, stored: StoredCounts, pattern: str) -> int:
    """The number of matching messages. A file is read only if the range begins or ends inside it."""
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
    # The file was replaced and deleted: its messages are in another file now.
    return count(reader, wanted.pattern, max(wanted.first, file.first) - 1, min(wanted.last, file.last))


def count(reader: Reader, pattern: str, after: int, upto: int = FOREVER) -> int:
    """The number of matching messages after one number, up to another."""
    with reader.snapshot():
        stored = stored_counts(reader, after, upto)
    return count_within(reader, stored, pattern)


def numbers(reader: Reader, first: int, last: int) -> dict[str, Ranges]:
    """The numbers of the stored messages from `first` to `last`, by topic. Their payloads are not read."""
    with reader.snapshot() as database:
        files = snapshot.files(database, "messages", first, last, None)
        unsealed = snapshot.batches(database, "first, last, topic", first, last, None)
    found: defaultdict[str, Ranges] = defaultdict(Ranges)
    for file in files:
        for batch in reader.file_batches(file, Range(first=first, last=last), ["seq", "topic"]):
            for seq, topic in zip(*batch.to_pydict().values(), strict=True):
                found[topic].add(seq, seq)
    for begin, end, topic in unsealed:
        found[topic].add(max(begin, first), min(end, last))
    return found


def tail(reader: Reader, pattern: str, count: int) -> list[Message]:
    """The last messages that match, oldest first."""
    reader.pattern = validate_pattern(pattern)
    rows: list[tuple[Any, ...]] = []
    with reader.snapshot() as database:
        # From one snapshot: messages that are sealed in between would be missing or doubled.
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
    """The messages with these numbers that are stored, in order."""
    return some_within(reader, seqs, NO_LIMIT)[0]


def some_within(reader: Reader, seqs: list[int], max_bytes: int) -> tuple[list[Message], list[int]]:
    """The same up to `max_bytes`, and the numbers that were not looked up."""
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
            # The file was replaced and deleted: its messages are in another file now.
            yield from some(reader, [seq for seq in seqs if seq > done])


def last_before(reader: Reader, at_ns: int) -> int:
    """The number of the last message that the journal accepted before a point in time."""
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
