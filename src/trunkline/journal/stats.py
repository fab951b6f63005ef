"""What a journal holds, in numbers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trunkline.journal import lock
from trunkline.journal.cursor import unpack
from trunkline.journal.database import FILE
from trunkline.journal.reader import Reader


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
    folder = Path(directory)
    with Reader(folder) as reader:
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
        hot, batches, sealed, files, sealed_bytes, fates, sealed_fates, retries, orphans, quarantined, removed = numbers
        return JournalStats(
            directory=str(folder),
            owner=lock.owner(folder),
            last=reader.last(),
            messages=hot,
            sealed_messages=sealed,
            batches=batches,
            bytes=sum(path.stat().st_size for path in folder.glob(f"{FILE}*")),
            files=files,
            sealed_bytes=sealed_bytes,
            fates=fates,
            sealed_fates=sealed_fates,
            retries=retries,
            dead_letters=dict(reader.query("SELECT cause, count(*) FROM dead_letters GROUP BY cause ORDER BY 2 DESC")),
            orphans=orphans,
            quarantined=quarantined,
            removed=removed,
            topics=_topics(reader),
            cursors=_cursors(reader),
        )


def _topics(reader: Reader) -> tuple[TopicStats, ...]:
    rows = reader.query(
        "SELECT topic, sum(messages), sum(bytes), max(last) FROM ("
        " SELECT topic, last - first + 1 AS messages, length(body) AS bytes, last FROM batches"
        " UNION ALL SELECT topic, count, bytes, last FROM file_topics"
        ") GROUP BY topic ORDER BY 2 DESC, topic"
    )
    return tuple(TopicStats(*row) for row in rows)


def _cursors(reader: Reader) -> tuple[CursorStats, ...]:
    found = []
    for name, pattern, high, pending, updated_ns in reader.query(
        "SELECT name, pattern, high, pending, updated_ns FROM cursors ORDER BY name"
    ):
        out = len(unpack(pending))
        found.append(CursorStats(name, pattern, high, out, out + reader.count(pattern, high), updated_ns))
    return tuple(found)
