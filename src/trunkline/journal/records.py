"""Records other than messages and fates: deaths, orphans, and removals by retention. Used to build tables.

A dead letter leaves the journal when it is replayed or removed. The record of its death is kept as long as the message:
which subscriber failed, why and where.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from trunkline.delivery.dead_letters import DeadLetter
from trunkline.errors import InvalidPayload

if TYPE_CHECKING:
    from trunkline.journal.reader import Reader

TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS deaths (number INTEGER PRIMARY KEY AUTOINCREMENT, subscriber TEXT NOT NULL,"
    " seq INTEGER NOT NULL, at_ns INTEGER NOT NULL, topic TEXT NOT NULL, id TEXT NOT NULL, cause TEXT NOT NULL,"
    " reason TEXT NOT NULL, error_type TEXT NOT NULL, traceback TEXT NOT NULL, attempts INTEGER NOT NULL)"
)
INDEX: Final = "CREATE INDEX IF NOT EXISTS deaths_by_seq ON deaths (seq)"
DIED: Final = (
    "INSERT INTO deaths (subscriber, seq, at_ns, topic, id, cause, reason, error_type, traceback, attempts)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
FORGET: Final = "DELETE FROM deaths WHERE seq BETWEEN ? AND ? AND topic = ?"


class Death(msgspec.Struct, frozen=True):
    """The record that a message became a dead letter.

    The last three fields are None if only a damaged letter is left.
    """

    subscriber: str
    seq: int
    at_ns: int
    topic: str
    id: str
    cause: str
    reason: str
    error_type: str | None = None
    traceback: str | None = None
    attempts: int | None = None


class OrphanRecord(msgspec.Struct, frozen=True):
    """An answer without a waiting request, as long as it is not claimed."""

    seq: int
    id: str
    request_id: str | None
    topic: str
    why: str
    at_ns: int


class Removal(msgspec.Struct, frozen=True):
    """Messages of a topic that retention removed: `count` of them, from `first` to `last`."""

    number: int
    topic: str
    first: int
    last: int
    count: int


def death_of(letter: DeadLetter) -> tuple[Any, ...]:
    """The values for DIED."""
    message = letter.message
    fields = (letter.cause.value, letter.reason, letter.error_type, letter.traceback, len(letter.attempts))
    return (letter.subscriber, message.seq, letter.at_ns, message.topic, message.id, *fields)


def deaths(reader: Reader, first: int, last: int) -> list[Death]:
    """Deaths of messages from `first` to `last`, in the order in which they happened."""
    found: list[Death] = []
    if _has_table(reader, "deaths"):
        columns = ", ".join(Death.__struct_fields__)
        rows = reader.query(f"SELECT {columns} FROM deaths WHERE seq BETWEEN ? AND ? ORDER BY number", (first, last))
        found = [Death(*row) for row in rows]
    known = {(death.subscriber, death.seq) for death in found}
    # An older version, which recorded no deaths, has written letters.
    return found + [each for each in letters(reader, first, last) if (each.subscriber, each.seq) not in known]


def letters(reader: Reader, first: int, last: int) -> list[Death]:
    """The current dead letters of messages from `first` to `last`."""
    rows = reader.query(
        "SELECT subscriber, seq, at_ns, topic, id, cause, reason, letter FROM dead_letters WHERE seq BETWEEN ? AND ?",
        (first, last),
    )
    return [_of_letter(Death(*plain), data) for *plain, data in rows]


def _of_letter(death: Death, data: bytes) -> Death:
    try:
        letter = DeadLetter.from_bytes(data)
    except InvalidPayload:
        # The letter is damaged, but the columns of the journal are still valid.
        return death
    fields = {"error_type": letter.error_type, "traceback": letter.traceback, "attempts": len(letter.attempts)}
    return msgspec.structs.replace(death, **fields)


def _has_table(reader: Reader, name: str) -> bool:
    """Whether the journal has a table that only newer versions make."""
    return bool(reader.query("SELECT count(*) FROM sqlite_schema WHERE name = ?", (name,))[0][0])


def orphans(reader: Reader, first: int, last: int) -> list[OrphanRecord]:
    """Orphans with numbers from `first` to `last`."""
    columns = ", ".join(OrphanRecord.__struct_fields__)
    rows = reader.query(f"SELECT {columns} FROM orphans WHERE seq BETWEEN ? AND ?", (first, last))
    return [OrphanRecord(*row) for row in rows]


def orphan_count(reader: Reader) -> int:
    """The number of orphans."""
    count: int = reader.query("SELECT count(*) FROM orphans")[0][0]
    return count


def removals(reader: Reader, after: int) -> list[Removal]:
    """The removals by retention after the removal with the number `after`."""
    columns = ", ".join(Removal.__struct_fields__)
    rows = reader.query(f"SELECT {columns} FROM removals WHERE number > ? ORDER BY number", (after,))
    return [Removal(*row) for row in rows]


def last_accepted_ns(reader: Reader) -> int:
    """When the journal accepted its last message; 0 if it has none."""
    (hot,) = reader.query("SELECT max(at_ns) FROM batches")[0]
    return max(hot or 0, max((file.until_at_ns for file in reader.files()), default=0))
