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
"""The maximum number of payloads of one connection that are read in place at the same time. Each takes a descriptor,
and a process may have 1,024."""
_PAYLOAD = b"\xa7payload\xc6"
"""In MessagePack: the name of the field, and the type byte of a long binary."""


@final
class SharedBody:
    """Its length includes the payload, because it keeps the shared memory in use."""

    __slots__ = ("_mapped", "_whole", "envelope", "segment", "size")

    def __init__(
        self, envelope: bytes, segment: Segment | None, size: int, mapped: WeakSet[MappedSegment] | None = None
    ) -> None:
        self.envelope = envelope
        """The message without its payload."""
        self.segment = segment
        """None if the segment could not be opened: then the message cannot be read."""
        self.size = size
        self._mapped = mapped
        """The segments that the reader has mapped. If there are MAX_MAPPED, the payload is copied."""
        self._whole: bytes | None = None

    def __len__(self) -> int:
        return len(self.envelope) + self.size

    def whole(self) -> bytes:
        """The body as it would be without shared memory. It is built once."""
        if self._whole is None:
            assert self.segment is not None
            self._whole = b"".join(
                (_one_field_more(self.envelope), _PAYLOAD, self.size.to_bytes(4, "big"), self.segment.read())
            )
        return self._whole

    def read(self, topic: str, seq: int, *, hand_on: bool = False) -> tuple[Message, bool]:
        """The message, and whether it is plain; raises InvalidPayload.

        Its payload is a view of the shared memory if it can be decoded in place, otherwise bytes. With `hand_on`, the
        view refers to its segment, so that the message can be passed on without a copy.
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
            # No more descriptors or mappings are available.
            return segment.read()
        if self._mapped is not None:
            self._mapped.add(mapped)
        if hand_on:
            mapped.segment = segment
        return mapped.payload


def body_of(message: Message) -> bytes | SharedBody:
    """The body of a batch that contains only this message."""
    return shared_body(message) or columns.pack_batch([message])


def shared_body(message: Message) -> SharedBody | None:
    """The body of a message whose payload arrived in shared memory and is still there; otherwise None."""
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
    # No valid message has this many fields: it cannot be read either way.
    return b"\xde" + min(count + 1, 0xFFFF).to_bytes(2, "big") + fields
