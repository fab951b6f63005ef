"""The body of a batch: its messages as columns, in MessagePack, with a checksum over all that is stored of it.

Columns of one kind lie end to end, as Arrow has them: they are written by one join and read without touching a message.
A column whose values are all the same is stored once, and one of defaults not at all.
"""

from __future__ import annotations

import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise, repeat
from typing import Any

import msgspec

from trunkline.errors import JournalDamaged
from trunkline.message import Message, MessageType

CORE = ("id", "topic", "payload", "timestamp_ns", "seq")
REST = Message.__struct_fields__[len(CORE) :]
PLAIN = ("sender", "content_type")
"""What a message published without any field of its own has beyond the core: its sender and its format."""
DEFAULTS = dict(zip(Message.__struct_fields__, Message.__struct_defaults__, strict=True))


class Strings(msgspec.Struct, frozen=True, array_like=True):
    """Byte strings end to end."""

    data: bytes
    sizes: int | bytes
    """The size of each, if all are alike; otherwise all sizes, as 32-bit integers."""

    def split(self, count: int) -> list[bytes]:
        data = self.data
        if isinstance(self.sizes, int):
            size = self.sizes
            return [data[at : at + size] for at in range(0, count * size, size)] if size else [b""] * count
        ends = list(accumulate(unpack("i", self.sizes), initial=0))
        return [data[start:end] for start, end in pairwise(ends)]

    def fits(self, count: int) -> bool:
        if isinstance(self.sizes, int):
            return len(self.data) == count * self.sizes
        return len(self.sizes) == 4 * count and len(self.data) == sum(unpack("i", self.sizes))


class Body(msgspec.Struct, frozen=True, array_like=True):
    ids: Strings
    times: bytes
    """64-bit integers."""
    payloads: Strings
    rest: dict[str, Any]
    """By field: a list of values, one a message, or the value of all of them."""

    def fits(self, count: int) -> bool:
        return len(self.times) == 8 * count and self.ids.fits(count) and self.payloads.fits(count)


def pack(kind: str, numbers: Iterable[int]) -> bytes:
    """Integers end to end, lowest byte first."""
    packed = array(kind, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(kind: str, data: bytes) -> array[int]:
    numbers = array(kind)
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _join(values: list[bytes]) -> Strings:
    sizes = list(map(len, values))
    alike = sizes.count(sizes[0]) == len(sizes)
    return Strings(b"".join(values), sizes[0] if alike else pack("i", sizes))


def _join_texts(texts: list[str]) -> Strings:
    whole = "".join(texts)
    if not whole.isascii():
        return _join([text.encode() for text in texts])
    sizes = list(map(len, texts))
    alike = sizes.count(sizes[0]) == len(sizes)
    return Strings(whole.encode(), sizes[0] if alike else pack("i", sizes))


def encode(messages: Sequence[Message], times: list[int], plain: bool) -> bytes:
    """The columns of messages on one topic. `plain` promises that only PLAIN fields differ from their defaults."""
    rest: dict[str, Any] = {}
    if plain:
        _add(rest, "sender", [message.sender for message in messages])
        _add(rest, "content_type", [message.content_type for message in messages])
    else:
        for name in REST:
            _add(rest, name, [getattr(message, name) for message in messages])
    ids = _join_texts([message.id for message in messages])
    payloads = _join([message.payload for message in messages])
    return _encode(Body(ids, pack("q", times), payloads, rest))


def _add(rest: dict[str, Any], name: str, column: list[Any]) -> None:
    value = column[0]
    if column.count(value) != len(column):
        rest[name] = column
    elif value != DEFAULTS[name]:
        rest[name] = value


def checksum(first: int, topic: str, at_ns: int, since_ns: int, until_ns: int, body: bytes) -> int:
    """Over the body and all that is stored beside it: a body under a wrong number is as bad as a broken one."""
    return zlib.crc32(body, zlib.crc32(f"{first} {at_ns} {since_ns} {until_ns} {topic}".encode()))


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
        found = checksum(self.first, self.topic, self.at_ns, self.since_ns, self.until_ns, self.body)
        if found != self.checksum:
            raise JournalDamaged(self.first, self.last, self.topic, "its checksum does not fit")
        try:
            body = _decode(self.body)
        except msgspec.DecodeError as error:
            raise JournalDamaged(self.first, self.last, self.topic, f"it cannot be read: {error}") from error
        if not body.fits(self.count):
            raise JournalDamaged(self.first, self.last, self.topic, f"it does not hold {self.count} messages")
        return body

    def messages(self) -> list[Message]:
        body = self.open()
        return build(self.topic, body, range(self.first, self.last + 1))

    def holds(self, message_id: str) -> bool:
        """Whether the id may be here: one look at the bytes spares the decoding."""
        return message_id.encode() in self.body


def make_row(messages: Sequence[Message], at_ns: int, plain: bool) -> Row:
    """A row of messages that are numbered without a gap and share their topic."""
    first = messages[0].seq
    topic = messages[0].topic
    times = [message.timestamp_ns for message in messages]
    body = encode(messages, times, plain)
    since_ns, until_ns = min(times), max(times)
    check = checksum(first, topic, at_ns, since_ns, until_ns, body)
    return Row(first, messages[-1].seq, topic, at_ns, since_ns, until_ns, check, body)


def build(topic: str, body: Body, seqs: range) -> list[Message]:
    count = len(seqs)
    ids = [text.decode() for text in body.ids.split(count)]
    columns: list[Iterable[Any]] = [ids, repeat(topic), body.payloads.split(count), unpack("q", body.times), seqs]
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
