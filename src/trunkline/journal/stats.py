"""What a journal holds, in numbers."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from trunkline.errors import JournalDamaged
from trunkline.journal import lock
from trunkline.journal.cursor import unpack
from trunkline.journal.database import FILE
from trunkline.journal.range import Range
from trunkline.journal.reader import Reader
from trunkline.journal.sealed import File
from trunkline.topic import matches


class TopicStats(msgspec.Struct, frozen=True):
    topic: str
    messages: int
    bytes: int
    last: int


class CursorStats(msgspec.Struct, frozen=True):
    """A durable subscription: `behind` messages have no fate yet, `pending` of them were handed out of order."""

    name: str
    pattern: str
    high: int
    pending: int
    behind: int
    updated_ns: int


class JournalStats(msgspec.Struct, frozen=True):
    directory: str
    identity: str | None
    """Its UUID; None if an older version made it and nobody has opened it for writing since."""
    owner: int | None
    """The process that writes to it now, if one does."""
    last: int
    messages: int
    sealed_messages: int
    batches: int
    bytes: int
    files: int
    sealed_bytes: int
    fates: int
    sealed_fates: int
    retries: int
    dead_letters: dict[str, int]
    """By cause."""
    orphans: int
    quarantined: int
    removed: int
    topics: tuple[TopicStats, ...]
    cursors: tuple[CursorStats, ...]


def stats(directory: str | Path) -> JournalStats:
    """All of it as it was at one moment, whoever writes meanwhile."""
    folder = Path(directory)
    with Reader(folder) as reader:
        reader.query("BEGIN")
        (numbers,) = reader.query(
            "SELECT (SELECT coalesce(sum(last - first + 1), 0) FROM batches), (SELECT count(*) FROM batches),"
            " (SELECT coalesce(sum(rows), 0) FROM files WHERE kind = 'messages' AND replaced_ns IS NULL),"
            " (SELECT count(*) FROM files WHERE replaced_ns IS NULL),"
            " (SELECT coalesce(sum(bytes), 0) FROM files WHERE replaced_ns IS NULL),"
            " (SELECT count(*) FROM fates),"
            " (SELECT coalesce(sum(rows), 0) FROM files WHERE kind = 'fates' AND replaced_ns IS NULL),"
            " (SELECT count(*) FROM retries), (SELECT count(*) FROM orphans), (SELECT count(*) FROM quarantine),"
            " (SELECT coalesce(sum(count), 0) FROM removals)"
        )
        last = reader.last()
        identity = reader.identity
        dead_letters = dict(reader.query("SELECT cause, count(*) FROM dead_letters GROUP BY cause ORDER BY 2 DESC, 1"))
        topics = _topics(reader)
        places = [_Place(reader, *row) for row in reader.query(CURSORS)]
        reader.query("COMMIT")
        # Files stay for a while when they are replaced: there is time to look into them.
        cursors = tuple(place.stats(reader) for place in places)
    hot, batches, sealed, files, sealed_bytes, fates, sealed_fates, retries, orphans, quarantined, removed = numbers
    return JournalStats(
        directory=str(folder),
        identity=identity,
        owner=lock.owner(folder),
        last=last,
        messages=hot,
        sealed_messages=sealed,
        batches=batches,
        bytes=_size(folder),
        files=files,
        sealed_bytes=sealed_bytes,
        fates=fates,
        sealed_fates=sealed_fates,
        retries=retries,
        dead_letters=dead_letters,
        orphans=orphans,
        quarantined=quarantined,
        removed=removed,
        topics=topics,
        cursors=cursors,
    )


def _size(folder: Path) -> int:
    size = 0
    for path in folder.glob(f"{FILE}*"):
        # The log goes when its owner closes the journal.
        with contextlib.suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def _topics(reader: Reader) -> tuple[TopicStats, ...]:
    rows = reader.query(
        "SELECT topic, sum(messages), sum(bytes), max(last) FROM ("
        " SELECT topic, last - first + 1 AS messages, length(body) AS bytes, last FROM batches"
        " UNION ALL SELECT topic, count, bytes, last FROM file_topics"
        ") GROUP BY topic ORDER BY 2 DESC, topic"
    )
    return tuple(TopicStats(*row) for row in rows)


CURSORS = "SELECT name, pattern, high, pending, updated_ns FROM cursors ORDER BY name"
HOT_BEHIND = (
    "SELECT topic, sum(last - max(first, :high + 1) + 1) FROM batches"
    " WHERE first >= coalesce((SELECT max(first) FROM batches WHERE first <= :high), 0) AND last > :high GROUP BY topic"
)
SEALED_BEHIND = (
    f"SELECT topic, t.count, t.first, {', '.join(f'f.{name}' for name in File.__struct_fields__)}"
    " FROM file_topics t JOIN files f ON f.path = t.path WHERE t.last > ? AND f.replaced_ns IS NULL"
)


class _Place:
    """Where a cursor stands, and what lies beyond it. Made at one moment; it may look into files later."""

    def __init__(self, reader: Reader, name: str, pattern: str, high: int, pending: bytes, updated_ns: int) -> None:
        self._about = (name, pattern, high)
        self._pending = len(unpack(pending))
        self._updated_ns = updated_ns
        hot = reader.query(HOT_BEHIND, {"high": high})
        self._whole = sum(count for topic, count in hot if matches(pattern, topic))
        self._cut: list[tuple[str, File]] = []
        for topic, count, first, *file in reader.query(SEALED_BEHIND, (high,)):
            if not matches(pattern, topic):
                continue
            if first > high:
                self._whole += count
            else:
                self._cut.append((topic, File(*file)))

    def stats(self, reader: Reader) -> CursorStats:
        name, pattern, high = self._about
        beyond = sum(self._beyond(reader, topic, file, high) for topic, file in self._cut)
        behind = self._pending + self._whole + beyond
        return CursorStats(name, pattern, high, self._pending, behind, self._updated_ns)

    def _beyond(self, reader: Reader, topic: str, file: File, high: int) -> int:
        """How many messages of a topic a file has beyond the cursor, which stands somewhere inside it."""
        from trunkline.journal import lake

        try:
            wanted = Range(topic, first=high + 1)
            return sum(batch.num_rows for batch in lake.read(reader.directory, file, wanted, ["seq"]))
        except JournalDamaged as damage:
            reader.on_damage(damage)
            return 0
