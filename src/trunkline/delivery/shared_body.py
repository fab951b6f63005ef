"""The body of a batch with one message whose payload is in shared memory. It is converted to bytes on demand."""

from __future__ import annotations

from typing import final
from weakref import WeakSet

from trunkline import columns
from trunkline.arrays import reads_in_place
from trunkline.errors import InvalidPayload
from trunkline.message import Message
from trunkline.segments import MappedSegment, Segment
from trunkline.unchecked import seal

MAX_MAPPED = 256
"""Payloads of one connection that are read in place at once: each takes a descriptor, and a process may have 1,024."""
_PAYLOAD = b"\xa7payload\xc6"
"""In MessagePack: the name of the field, and what begins a long binary."""


@final
class SharedBody:
    """It counts with its full size wherever bytes are counted: the memory is held by it."""

    __slots__ = ("_mapped", "_whole", "envelope", "segment", "size")

    def __init__(
        self, envelope: bytes, segment: Segment | None, size: int, mapped: WeakSet[MappedSegment] | None = None
    ) -> None:
        self.envelope = envelope
        """The message alone, without its payload."""
        self.segment = segment
        """None if it could not be opened: then nobody can read the message."""
        self.size = size
        self._mapped = mapped
        """What the reader has mapped: if that is MAX_MAPPED, the payload is copied."""
        self._whole: bytes | None = None

    def __len__(self) -> int:
        return len(self.envelope) + self.size

    def whole(self) -> bytes:
        """The body as it would be without shared memory. It is made once."""
        if self._whole is None:
            assert self.segment is not None
            self._whole = b"".join(
                (_one_field_more(self.envelope), _PAYLOAD, self.size.to_bytes(4, "big"), self.segment.read())
            )
        return self._whole

    def read(self, topic: str, seq: int, *, hand_on: bool = False) -> tuple[Message, bool]:
        """The message, and whether it is plain; raises InvalidPayload.

        Its payload is a view of the memory if it can be decoded in place, otherwise bytes. If the message may be handed
        on to others, the view leads to the segment.
        """
        segment = self.segment
        if segment is None:
            raise InvalidPayload("the shared memory that its payload was in is gone")
        messages, plain = columns.read_batch(topic, self.envelope, (seq,))
        message = messages[0]
        seal(message, "payload", self._payload(segment, message, hand_on))
        return message, plain

    def _payload(self, segment: Segment, message: Message, hand_on: bool) -> bytes | memoryview:
        many = self._mapped is not None and len(self._mapped) >= MAX_MAPPED
        if many or message.encoding or not reads_in_place(message.content_type):
            return segment.read()
        try:
            mapped = segment.map()
        except OSError:
            # Of descriptors or of mappings there are no more.
            return segment.read()
        if self._mapped is not None:
            self._mapped.add(mapped)
        if hand_on:
            mapped.segment = segment
        return mapped.payload


def body_of(message: Message) -> bytes | SharedBody:
    """The body of a batch of this message."""
    return shared_body(message) or columns.pack_batch([message])


def shared_body(message: Message) -> SharedBody | None:
    """The body of a message that came with its payload in shared memory, and has it there still."""
    payload = message.payload
    if payload.__class__ is not memoryview or not isinstance(payload.obj, MappedSegment):
        return None
    segment = payload.obj.segment
    if segment is None or segment.size != len(payload):
        return None
    return SharedBody(columns.pack_envelope(message), segment, segment.size)


def _one_field_more(envelope: bytes) -> bytes:
    if envelope[0] < 0x8F:
        return bytes((envelope[0] + 1,)) + envelope[1:]
    count, fields = (15, envelope[1:]) if envelope[0] == 0x8F else (int.from_bytes(envelope[1:3], "big"), envelope[3:])
    # No message has so many: nobody can read it, one way or the other.
    return b"\xde" + min(count + 1, 0xFFFF).to_bytes(2, "big") + fields
