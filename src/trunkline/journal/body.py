"""A stored batch: its messages as columns, with a checksum over everything that is stored of it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from trunkline import columns
from trunkline.columns import Body
from trunkline.delivery.plain_run import PlainRun
from trunkline.errors import JournalDamaged
from trunkline.message import Message
from trunkline.plural import counted

COLUMNS: Final = "first, last, topic, at_ns, since_ns, until_ns, checksum, body"
"""The columns of the table `batches`, in the order of the fields of StoredBatch."""


def checksum(first: int, topic: str, at_ns: int, since_ns: int, until_ns: int, body: bytes) -> int:
    """The checksum of the body and all other columns. It also detects a body that is stored under a wrong number."""
    return zlib.crc32(body, zlib.crc32(f"{first} {at_ns} {since_ns} {until_ns} {topic}".encode()))


class StoredBatch(msgspec.Struct, frozen=True):
    """A stored batch: contiguous numbers, one topic."""

    first: int
    last: int
    topic: str
    at_ns: int
    """When the journal accepted it. Never decreases from row to row, even if the clock is set back."""
    since_ns: int
    until_ns: int
    """The range of the timestamps of its messages."""
    checksum: int
    body: bytes

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def open(self) -> Body:
        """Its columns; raises JournalDamaged if they differ from what was written."""
        found = checksum(self.first, self.topic, self.at_ns, self.since_ns, self.until_ns, self.body)
        if found != self.checksum:
            raise JournalDamaged(self.first, self.last, self.topic, "its checksum does not match")
        try:
            body = columns.decode(self.body)
        except msgspec.DecodeError as error:
            raise JournalDamaged(self.first, self.last, self.topic, f"it cannot be read: {error}") from error
        if not body.fits(self.count):
            raise JournalDamaged(
                self.first, self.last, self.topic, f"it does not hold {counted(self.count, 'message')}"
            )
        return body

    def messages(self) -> list[Message]:
        body = self.open()
        return columns.build(self.topic, body, range(self.first, self.last + 1))

    def holds(self, message_id: str) -> bool:
        """Whether the id may be in this batch. A search in the bytes avoids decoding it."""
        return message_id.encode() in self.body


def make_batch(messages: Sequence[Message], at_ns: int, *, plain: bool = False, alike: bool = False) -> StoredBatch:
    """A row of messages with contiguous numbers and one topic. For the other arguments see `columns.encode`."""
    times = [message.timestamp_ns for message in messages]
    # A single message has a faster path to the same bytes.
    body = columns.encode(messages, times, plain=plain and len(messages) > 1, alike=alike)
    return _stored(messages[0].seq, messages[0].topic, at_ns, times, body)


def make_run_batch(run: PlainRun, at_ns: int) -> StoredBatch:
    """A row of the messages of a closed run, which have numbers."""
    body = columns.pack_run(run.ids, run.times, run.payloads, run.sender, run.content_type)
    return _stored(run.first, run.topic, at_ns, run.times, body)


def _stored(first: int, topic: str, at_ns: int, times: list[int], body: bytes) -> StoredBatch:
    since_ns, until_ns = min(times), max(times)
    check = checksum(first, topic, at_ns, since_ns, until_ns, body)
    return StoredBatch(first, first + len(times) - 1, topic, at_ns, since_ns, until_ns, check, body)
