"""Frames: the unit of the wire. A stream of bytes is cut into frames, and a data frame into its head and its body.

    frame   length of the rest (4 bytes, lowest first) · kind (1 byte) · the rest
    CONTROL the rest is a JSON object: see control.py
    PUBLISH, DELIVER
            length of the head (2 bytes, lowest first) · head (a MessagePack array) · body (the columns of a batch,
            or a message alone as a map of its fields: see columns.py)
    PUBLISH_SHARED, DELIVER_SHARED
            the same, with a body that locates the payload of the only message in shared memory (SharedPayload)

A transport that preserves message boundaries, such as ZeroMQ, omits the length.
"""

from __future__ import annotations

import enum
from struct import Struct
from typing import Any, Final, final

import msgspec

from trunkline.columns import is_alone
from trunkline.errors import MAX_TTL_S, ProtocolError
from trunkline.message import NORMAL
from trunkline.plural import counted

LENGTH: Final = Struct("<I")
PREFIX: Final = Struct("<BH")
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024
MAX_HEAD_BYTES: Final = 0xFFFF
HEAD_BYTES: Final = 16 * 1024
"""The maximum size of a head that the hub sends: a topic, and a thousand numbers."""
FIRST_FRAME_BYTES: Final = 64 * 1024
"""The size limit of HELLO and WELCOME: no more is buffered for a peer that is not authenticated."""
MAX_MESSAGES: Final = 1_000_000
"""The maximum number of messages in one frame. A message takes eight bytes in a body, and 300 when it is decoded."""
MAX_POSITION: Final = 2**62
Parts = tuple[bytes | memoryview, ...]
"""One frame, in parts that are sent without a gap."""
_PREFIX_BYTES: Final = PREFIX.size
_LENGTH_BYTES: Final = LENGTH.size
_TIME_BYTES: Final = 8
_SMALL_PARTS: Final = 1024


class Kind(enum.IntEnum):
    CONTROL = 1
    PUBLISH = 2
    DELIVER = 3
    PUBLISH_SHARED = 4
    DELIVER_SHARED = 5


CONTROL: Final = bytes([Kind.CONTROL])
# Access to an enum attribute takes ten times as long as access to a name of this module.
_PUBLISH: Final = int(Kind.PUBLISH)
_DELIVER: Final = int(Kind.DELIVER)
_PUBLISH_SHARED: Final = int(Kind.PUBLISH_SHARED)
_DELIVER_SHARED: Final = int(Kind.DELIVER_SHARED)
MIN_SHARED_BYTES: Final = 64 * 1024
"""Smaller payloads are sent inline, because file descriptors are limited."""


class PublishHead(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The head of a batch to the hub. All its messages share these fields."""

    number: int
    """A counter of the publisher, with which the hub reports the outcome of the batch."""
    topic: str
    count: int
    priority: int = NORMAL
    requires_ack: bool = False
    ttl_s: float | None = None
    again: bool = False
    """Whether it was sent before, on a connection that ended: a durable topic may already have it."""
    position: int = 0
    """The number of earlier messages of this client with this topic and priority, which reveals losses."""
    urgent: bool = False
    """Whether to confirm it at once, because a publisher waits. Otherwise confirmations are collected."""
    asks: bool = False
    """Whether it contains requests: TAKEN reports if they have no subscriber."""


PublishFields = tuple[int, str, int, int, bool, float | None, bool, int, bool, bool]
"""The fields of a PublishHead, in order. They are encoded to the same bytes, and take less time to make."""


class DeliverHead(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The head of a batch to a subscriber."""

    subscription: int
    first: int
    """The number of its first message; the others follow without a gap, unless `seqs` has them all."""
    topic: str
    count: int
    seqs: list[int] | None = None
    origin: int = 0
    """The origin of its publisher; 0 if losses are not counted."""
    position: int = 0
    priority: int = NORMAL


class SharedPayload(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The body of a frame with one message, whose payload is in shared memory of the sender."""

    descriptor: int
    """The file descriptor in the sender's process: a sealed memfd, opened by `/proc/PID/fd/DESCRIPTOR`."""
    size: int
    """The size of the payload in bytes. It begins 64 bytes after the start of the token."""
    token: str
    """The first 32 characters of the memory. If they differ, the memory was reused."""
    envelope: bytes
    """The message as a map of its fields, without the payload."""
    number: int = 0
    """The number of a DELIVER_SHARED. MAPPED repeats it when the memory was opened, or cannot be opened."""


@final
class SharedPublish(msgspec.Struct, frozen=True, gc=False):
    """The content of a PUBLISH_SHARED frame."""

    head: PublishHead
    payload: SharedPayload


_prefix = PREFIX.pack
_encode = msgspec.msgpack.Encoder().encode
_decode_shared = msgspec.msgpack.Decoder(SharedPayload).decode
_decode_publish = msgspec.msgpack.Decoder(PublishHead).decode
_decode_deliver = msgspec.msgpack.Decoder(DeliverHead).decode


def room_for_body(max_frame_bytes: int) -> int:
    return max(max_frame_bytes - HEAD_BYTES, max_frame_bytes // 2)


def control(data: bytes) -> bytes:
    """A control frame, from its JSON."""
    return CONTROL + data


def publish(head: PublishHead | PublishFields, body: bytes) -> bytes:
    data = _encode(head)
    if len(data) > MAX_HEAD_BYTES:
        raise _too_large(data)
    return b"".join((_prefix(_PUBLISH, len(data)), data, body))


def deliver(head: DeliverHead, body: bytes | memoryview) -> tuple[bytes, bytes | memoryview]:
    """A deliver frame in two parts. The body is the same for all subscribers."""
    data = _encode(head)
    if len(data) > MAX_HEAD_BYTES:
        raise _too_large(data)
    return _prefix(_DELIVER, len(data)) + data, body


def publish_shared(head: PublishHead, payload: SharedPayload) -> bytes:
    return _start(_PUBLISH_SHARED, head) + _encode(payload)


def deliver_shared(head: DeliverHead, payload: SharedPayload) -> Parts:
    return _start(_DELIVER_SHARED, head), _encode(payload)


def _start(kind: int, head: Any) -> bytes:
    data = _encode(head)
    if len(data) > MAX_HEAD_BYTES:
        raise _too_large(data)
    return _prefix(kind, len(data)) + data


def _too_large(head: bytes) -> ProtocolError:
    return ProtocolError("too_large", f"the head of a frame has {len(head):,} bytes, and may have {MAX_HEAD_BYTES:,}")


def open_publish(frame: memoryview) -> tuple[PublishHead, memoryview]:
    """Raises ProtocolError for anything that is no such frame."""
    if len(frame) < _PREFIX_BYTES or len(frame) < (end := _PREFIX_BYTES + frame[1] + (frame[2] << 8)):
        raise _cut_short(frame)
    body = frame[end:]
    try:
        head = _decode_publish(frame[_PREFIX_BYTES:end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", f"not the head of a publish frame: {error}") from error
    if not (head.number >= 0 and 0 <= head.priority <= 100 and 0 <= head.position <= MAX_POSITION):
        raise ProtocolError("malformed", "a publish frame with an invalid number, priority or position")
    if head.ttl_s is not None and not 0 < head.ttl_s <= MAX_TTL_S:
        raise ProtocolError("malformed", f"a publish frame with an invalid ttl of {head.ttl_s} s")
    if not 0 < head.count <= MAX_MESSAGES or len(body) < head.count * _TIME_BYTES:
        raise _impossible(head.count, body)
    return head, body


def open_deliver(frame: memoryview) -> tuple[DeliverHead, memoryview]:
    """Raises ProtocolError for anything that is no such frame."""
    if len(frame) < _PREFIX_BYTES or len(frame) < (end := _PREFIX_BYTES + frame[1] + (frame[2] << 8)):
        raise _cut_short(frame)
    body = frame[end:]
    try:
        head = _decode_deliver(frame[_PREFIX_BYTES:end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", f"not the head of a deliver frame: {error}") from error
    seqs = head.seqs
    if not 0 < head.count <= MAX_MESSAGES or len(body) < head.count * _TIME_BYTES:
        raise _impossible(head.count, body)
    if seqs is not None and len(seqs) != head.count:
        raise ProtocolError("malformed", f"{counted(len(seqs), 'number')} for {counted(head.count, 'message')}")
    if not 0 < head.first <= MAX_POSITION or (seqs is not None and not all(0 < seq <= MAX_POSITION for seq in seqs)):
        raise ProtocolError("malformed", "a deliver frame with invalid message numbers")
    return head, body


def open_publish_shared(frame: memoryview) -> SharedPublish:
    """Raises ProtocolError for anything that is no such frame."""
    head, body = open_publish(frame)
    return SharedPublish(head, _shared_payload(head.count, body))


def open_deliver_shared(frame: memoryview) -> tuple[DeliverHead, SharedPayload]:
    """Raises ProtocolError for anything that is no such frame."""
    head, body = open_deliver(frame)
    return head, _shared_payload(head.count, body)


def _shared_payload(count: int, body: memoryview) -> SharedPayload:
    try:
        payload = _decode_shared(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError("malformed", f"not a payload in shared memory: {error}") from error
    if count != 1 or not is_alone(payload.envelope) or payload.size < MIN_SHARED_BYTES or payload.descriptor < 0:
        raise ProtocolError("malformed", "an invalid payload in shared memory")
    return payload


def _impossible(count: int, body: memoryview) -> ProtocolError:
    return ProtocolError("malformed", f"{len(body):,} bytes are not {counted(count, 'message')}")


def _cut_short(frame: memoryview) -> ProtocolError:
    if len(frame) < _PREFIX_BYTES:
        return ProtocolError("malformed", "a data frame without a head")
    return ProtocolError("malformed", "a data frame with a truncated head")


_length_of = LENGTH.unpack_from


class Splitter:
    """Cuts a stream of bytes into frames. The result does not depend on how the stream is divided into chunks."""

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max_bytes = max_bytes
        self._limit = min(max_bytes, FIRST_FRAME_BYTES)
        self._parts: list[bytes] = []
        self._have = 0
        self._need = LENGTH.size
        self.broken: ProtocolError | None = None
        """The error after which no more frames can be read.

        A frame was too large or empty, so the start of the next is not known.
        """

    def feed(self, data: bytes) -> list[memoryview]:
        """The frames that are complete now."""
        size = len(data) - _LENGTH_BYTES
        if not self._parts and 0 < size <= self._limit and _length_of(data)[0] == size:
            # One frame, and nothing else.
            self._limit = self._max_bytes
            return [memoryview(data)[_LENGTH_BYTES:]]
        if self.broken is not None:
            return []
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                # Joined once, when it is complete: a large frame arrives in many pieces.
                if len(self._parts) > _SMALL_PARTS and self._have < _SMALL_PARTS * len(self._parts):
                    # Joined earlier if the peer sends tiny pieces: each piece takes more memory than its content.
                    self._parts = [b"".join(self._parts)]
                return []
            data = b"".join(self._parts)
            self._parts.clear()
        frames: list[memoryview] = []
        view = memoryview(data)
        at, end = 0, len(data)
        need = LENGTH.size
        limit = self._limit
        while end - at >= LENGTH.size:
            (size,) = LENGTH.unpack_from(data, at)
            if not 0 < size <= limit:
                self.broken = ProtocolError(
                    "too_large", f"a frame of {size:,} bytes: between 1 and {limit:,} are allowed"
                )
                self._limit = 0
                return frames
            need = LENGTH.size + size
            if end - at < need:
                break
            frames.append(view[at + LENGTH.size : at + need])
            limit = self._limit = self._max_bytes
            at += need
            need = LENGTH.size
        self._need = need
        self._have = end - at
        if self._have:
            self._parts.append(data[at:] if at else data)
        return frames
