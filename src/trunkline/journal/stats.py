"""Statistics of a journal."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from trunkline.journal import lock
from trunkline.journal.cursor import unpack
from trunkline.journal.database import FILE
from trunkline.journal.lookup import count_within, stored_counts
from trunkline.journal.reader import Reader
from trunkline.journal.unread import without_fate


class TopicStats(msgspec.Struct, frozen=True):
    topic: str
    messages: int
    bytes: int
    last: int


class CursorStats(msgspec.Struct, frozen=True):
    """A durable subscription. `behind` messages are left for it; `pending` ones are in flight or wait for a retry."""

    name: str
    pattern: str
    high: int
    pending: int
    behind: int
    updated_ns: int


class JournalStats(msgspec.Struct, frozen=True):
    directory: str
    identity: str | None
    """Its UUID; None if an older version created it, and it was not opened for writing since."""
    owner: int | None
    """The process that is writing to it, if any."""
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
    """The statistics of one snapshot. Other processes may write in the meantime."""
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
        # Replaced files are kept for a while, so they can still be read here.
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
        # The log disappears when its owner closes the journal.
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


class _Place:
    """The position of a cursor and the messages after it, from one snapshot. Files may be read later."""

    def __init__(self, reader: Reader, name: str, pattern: str, high: int, pending: bytes, updated_ns: int) -> None:
        self._about = (name, pattern, high, len(unpack(pending)))
        self._without_fate = len(without_fate(reader, name, high, pending))
        self._updated_ns = updated_ns
        self._stored = stored_counts(reader, high)

    def stats(self, reader: Reader) -> CursorStats:
        behind = self._without_fate + count_within(reader, self._stored, self._about[1])
        return CursorStats(*self._about, behind, self._updated_ns)
