"""The last message of a topic. An index finds it; one batch, or one row group of a sealed file, is read."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from trunkline.errors import JournalDamaged
from trunkline.journal.range import FOREVER
from trunkline.journal.sealed import FILE_COLUMNS, File
from trunkline.message import Message
from trunkline.topic import is_wild, matches

if TYPE_CHECKING:
    from trunkline.journal.reader import Reader

HOT = "SELECT first, last FROM batches WHERE topic = ? AND first <= ? ORDER BY first DESC LIMIT 1"
SEALED = "SELECT first, last, path FROM file_topics WHERE topic = ? AND first <= ? ORDER BY first DESC LIMIT 1"
DAMAGED = "SELECT first, last, why FROM quarantine WHERE topic = ? AND first <= ? ORDER BY first DESC LIMIT 1"
BATCH = "SELECT first, last, topic, at_ns, since_ns, until_ns, checksum, body FROM batches WHERE first = ?"
FILE = f"SELECT {FILE_COLUMNS} FROM files WHERE path = ?"

NEXT_TOPIC = "SELECT topic FROM {} WHERE topic > ? ORDER BY topic LIMIT 1"


class LastLocation(NamedTuple):
    """The part of the journal that holds the last message of a topic, and the numbers that the part has of it."""

    first: int
    last: Any
    """The last number. It may have another type if the row is damaged."""
    path: str | None = None
    """The sealed file; None for a batch that is not sealed."""


def last_message(reader: Reader, topic: str, before: int | None = None) -> Message | None:
    """The message with the highest number on a topic, below `before` if that is given; None if none is stored.

    Raises JournalDamaged if that message cannot be read: an older one is never returned instead.
    """
    upto = FOREVER if before is None else max(0, min(before - 1, FOREVER))
    while True:
        with reader.snapshot() as database:
            place = _find(database, topic, upto)
            damaged = database.execute(DAMAGED, (topic, upto)).fetchone()
            found: Any = None
            if place is not None:
                asked = (BATCH, place.first) if place.path is None else (FILE, place.path)
                found = database.execute(asked[0], asked[1:]).fetchone()
        if place is None or place.path is None:
            message = None if place is None else _of_batch(reader, topic, found, upto)
        else:
            if found is None:
                raise JournalDamaged(place.first, place.last, place.path, "it is not in the list of files")
            file = File(*found)
            try:
                message = _of_file(reader, topic, file, place, upto)
            except JournalDamaged as damage:
                if reader.counts(file):
                    reader.on_damage(damage)
                    raise
                # The file was replaced and deleted while it was read: its messages are in another file now.
                continue
        if damaged is not None and damaged[0] > (0 if message is None else message.seq):
            raise JournalDamaged(damaged[0], damaged[1], topic, f"{damaged[2]}, and it is in quarantine")
        return message


def _find(database: sqlite3.Connection, topic: str, upto: int = FOREVER) -> LastLocation | None:
    """The location of the last message up to a number, without those in quarantine."""
    found = [LastLocation(*row) for query in (HOT, SEALED) for row in database.execute(query, (topic, upto))]
    return max(found, key=lambda each: each.first, default=None)


def _of_batch(reader: Reader, topic: str, values: tuple[Any, ...], upto: int) -> Message:
    row = reader.row(values)
    if row is None:
        raise JournalDamaged(values[0], values[0], topic, "its head is damaged")
    try:
        if row.topic != topic:
            raise JournalDamaged(row.first, row.last, topic, f"the index has it, but the batch is of {row.topic}")
        return row.messages()[min(row.last, upto) - row.first]
    except JournalDamaged as damage:
        reader.on_damage(damage)
        raise


def _of_file(reader: Reader, topic: str, file: File, place: LastLocation, upto: int) -> Message:
    from trunkline.journal import picking

    reader.check(file)
    number = place.last if place.last <= upto else picking.last_number(reader.directory, file, topic, upto)
    for found in picking.pick(reader.directory, file, () if number is None else (number,)):
        if found.topic == topic:
            return found
    raise JournalDamaged(file.first, file.last, file.path, f"it does not hold message {number} on {topic}")


# The last of each topic


def last_numbers(reader: Reader, pattern: str) -> tuple[int, list[int]]:
    """The highest number, and the number of the last message of each matching topic, from one snapshot.

    A topic whose last message is in quarantine has none.
    """
    with reader.snapshot() as database:
        numbers = set()
        for topic in _topics(database, pattern):
            place = _find(database, topic)
            damaged = database.execute(DAMAGED, (topic, FOREVER)).fetchone()
            if place is not None and isinstance(place.last, int) and (damaged is None or damaged[0] < place.last):
                numbers.add(place.last)
        return reader.last(), sorted(numbers)


def _topics(database: sqlite3.Connection, pattern: str) -> Iterator[str]:
    """The matching topics. One index lookup for each topic, whatever the number of its messages."""
    if not is_wild(pattern):
        yield pattern
        return
    # All matches begin with the part before the first wildcard.
    prefix = re.split(r"[*>]", pattern, maxsplit=1)[0]
    for table in ("batches", "file_topics"):
        query = NEXT_TOPIC.format(table)
        topic: Any = prefix
        while (row := database.execute(query, (topic,)).fetchone()) is not None:
            (topic,) = row
            if not isinstance(topic, str) or not topic.startswith(prefix):
                break
            if matches(pattern, topic):
                yield topic
