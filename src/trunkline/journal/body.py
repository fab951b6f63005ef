"""The body of a batch: its messages as columns, in MessagePack, with a checksum over all that is stored of it.

Columns, because they are written as fast as whole messages and read ten times as fast into Arrow. A column whose values
are all the same is stored once, and one of defaults not at all.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import msgspec

from trunkline.errors import JournalDamaged
from trunkline.message import Message, MessageType

CORE = ("id", "topic", "payload", "timestamp_ns", "seq")
REST = Message.__struct_fields__[len(CORE) :]
PLAIN = ("sender", "content_type")
"""What a message published without any field of its own has beyond the core: its sender and its format."""
DEFAULTS = dict(zip(Message.__struct_fields__, Message.__struct_defaults__, strict=True))


class Body(msgspec.Struct, frozen=True, array_like=True):
    ids: list[str]
    times: list[int]
    payloads: list[bytes]
    rest: dict[str, Any]
    """By field: a list of values, one a message, or the value of all of them."""


def encode(messages: Sequence[Message], times: list[int], plain: bool) -> bytes:
    """The columns of messages on one topic. `plain` promises that only PLAIN fields differ from their defaults."""
    rest: dict[str, Any] = {}
    if plain:
        _add(rest, "sender", [message.sender for message in messages])
        _add(rest, "content_type", [message.content_type for message in messages])
    else:
        for name in REST:
            _add(rest, name, [getattr(message, name) for message in messages])
    ids = [message.id for message in messages]
    return _encode(Body(ids, times, [message.payload for message in messages], rest))


def _add(rest: dict[str, Any], name: str, column: list[Any]) -> None:
    value = column[0]
    if column.count(value) != len(column):
        rest[name] = column
    elif value != DEFAULTS[name]:
        rest[name] = value


def checksum(first: int, topic: str, at_ns: int, body: bytes) -> int:
    """Over the body and where it belongs: a body under a wrong number or topic is as bad as a broken one."""
    return zlib.crc32(body, zlib.crc32(f"{first} {at_ns} {topic}".encode()))


class Row(msgspec.Struct, frozen=True):
    """A stored batch: contiguous numbers, one topic."""

    first: int
    last: int
    topic: str
    at_ns: int
    """When the journal took it. Never falls from row to row, whatever the clock does."""
    since_ns: int
    until_ns: int
    """The range of its messages' own times."""
    checksum: int
    body: bytes

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def open(self) -> Body:
        """Its columns; raises JournalDamaged if they are not what was written."""
        if checksum(self.first, self.topic, self.at_ns, self.body) != self.checksum:
            raise JournalDamaged(self.first, self.last, self.topic, "its checksum does not fit")
        try:
            body = _decode(self.body)
        except msgspec.DecodeError as error:
            raise JournalDamaged(self.first, self.last, self.topic, f"it cannot be read: {error}") from error
        if len(body.ids) != self.count:
            raise JournalDamaged(self.first, self.last, self.topic, f"it holds {len(body.ids)} messages")
        return body

    def messages(self) -> list[Message]:
        body = self.open()
        return build(self.topic, body, range(self.first, self.last + 1))


def make_row(messages: Sequence[Message], at_ns: int, plain: bool) -> Row:
    """A row of messages that are numbered without a gap and share their topic."""
    first = messages[0].seq
    topic = messages[0].topic
    times = [message.timestamp_ns for message in messages]
    body = encode(messages, times, plain)
    return Row(
        first,
        messages[-1].seq,
        topic,
        at_ns,
        min(times),
        max(times),
        checksum(first, topic, at_ns, body),
        body,
    )


def build(topic: str, body: Body, seqs: Iterable[int]) -> list[Message]:
    columns: list[Iterable[Any]] = [body.ids, repeat(topic), body.payloads, body.times, seqs]
    rest = body.rest
    used = max((REST.index(name) for name in rest), default=-1)
    for name in REST[: used + 1]:
        value = rest.get(name, DEFAULTS[name])
        if name == "type":
            value = list(map(MessageType, value)) if isinstance(value, list) else MessageType(value)
        columns.append(value if isinstance(value, list) else repeat(value))
    return list(map(Message, *columns))


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Body).decode
