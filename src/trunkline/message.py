"""The message: an immutable value of header fields and a payload of bytes, with a typed view of it."""

from __future__ import annotations

import builtins
import enum
from collections.abc import Mapping
from typing import Any, TypedDict, TypeVar, overload

import msgspec
from msgspec.structs import force_setattr

from trunkline import codec
from trunkline.errors import InvalidMessage, InvalidPayload, InvalidPriority, InvalidTtl, MissingCorrelationId
from trunkline.topic import REPLIES, endpoint, validate_topic

T = TypeVar("T")


class MessageType(enum.IntEnum):
    PUBLISH = 1
    DIRECT = 2
    REQUEST = 3
    RESPONSE = 4
    ERROR = 5
    ACK = 6
    SUBSCRIBE = 7
    UNSUBSCRIBE = 8
    HEARTBEAT = 9
    CONTROL = 10


class Priority(enum.IntEnum):
    """Names for the usual levels; any whole number from 0 to 100 will do."""

    LOW = 25
    NORMAL = 50
    HIGH = 75
    CRITICAL = 100


NORMAL = 50
PUBLISH = MessageType.PUBLISH


class Fields(TypedDict, total=False):
    """The header fields a publisher may set."""

    id: str
    type: MessageType
    sender: str
    recipient: str | None
    priority: int
    ttl_s: float | None
    request_id: str | None
    correlation_id: str | None
    reply_to: str | None
    requires_ack: bool
    content_type: str
    schema: str | None
    trace: str | None
    headers: Mapping[str, str] | None


class Message(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One message. Build it with keywords; it is checked when built, and `replace` makes a changed copy.

    `id` and `timestamp_ns` are set when a bus accepts the message, unless they are given; `seq` is the place its broker
    gave it. A value given as payload is encoded at once: what is changed later does not change the message.
    """

    id: str = ""
    topic: str = ""
    payload: Any = b""
    timestamp_ns: int = 0
    seq: int = 0
    sender: str = ""
    content_type: str = ""
    type: MessageType = PUBLISH
    recipient: str | None = None
    priority: int = NORMAL
    ttl_s: float | None = None
    request_id: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    attempts: int = 0
    requires_ack: bool = False
    encoding: str = ""
    schema: str | None = None
    trace: str | None = None
    headers: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        # A message that has its place in a broker's order was checked on the way there.
        if not self.seq:
            self.check()

    def check(self) -> None:
        """Raise the fitting InvalidMessage unless all fields are well formed; encode the payload; find the topic."""
        if self.payload.__class__ is not bytes:
            payload, content_type = codec.encode(self.payload, self.content_type or codec.MSGPACK)
            force_setattr(self, "payload", payload)
            force_setattr(self, "content_type", content_type)
        elif not self.content_type:
            force_setattr(self, "content_type", codec.RAW)
        if self.priority.__class__ is not int:
            # An IntEnum or a numpy integer is welcome, a float or a bool is not.
            if isinstance(self.priority, bool) or not hasattr(self.priority, "__index__"):
                raise InvalidPriority(self.priority)
            force_setattr(self, "priority", self.priority.__index__())
        if not 0 <= self.priority <= 100:
            raise InvalidPriority(self.priority)
        if self.ttl_s is not None and not (_is_number(self.ttl_s) and 0 < self.ttl_s < float("inf")):
            raise InvalidTtl(self.ttl_s)
        if not isinstance(self.type, MessageType):
            raise InvalidMessage(f"type must be a MessageType, not {self.type!r}")
        if self.type in (MessageType.RESPONSE, MessageType.ACK) and not self.request_id:
            raise MissingCorrelationId
        if self.attempts < 0:
            raise InvalidMessage(f"attempts must not be negative, and is {self.attempts!r}")
        if not self.topic and (topic := self._default_topic()):
            force_setattr(self, "topic", topic)
        validate_topic(self.topic)

    def _default_topic(self) -> str:
        if self.type in (MessageType.RESPONSE, MessageType.ERROR, MessageType.ACK):
            return self.reply_to or REPLIES
        if self.recipient:
            return endpoint(self.recipient)
        if self.type is MessageType.HEARTBEAT and self.sender:
            return f"_heartbeat.{self.sender}"
        if self.type is MessageType.CONTROL:
            return "_control"
        return ""

    @property
    def timestamp(self) -> float:
        return self.timestamp_ns / 1e9

    @property
    def size(self) -> int:
        return len(self.payload)

    @property
    def expires_ns(self) -> int | None:
        return None if self.ttl_s is None else self.timestamp_ns + int(self.ttl_s * 1e9)

    @overload
    def decode(self) -> Any: ...
    @overload
    def decode(self, type: builtins.type[T]) -> T: ...
    def decode(self, type: Any = Any) -> Any:
        """The payload as a `type`, or as plain values; raises InvalidPayload if it does not fit."""
        payload = self.payload if not self.encoding else codec.restore(self.payload, self.encoding)
        return codec.decode(payload, self.content_type, type)

    def replace(self, **changes: Any) -> Message:
        """A copy with other values, checked again. It keeps its id; give `id=""` for a message of its own."""
        if "payload" in changes and "content_type" not in changes:
            changes["content_type"] = ""
        changed = msgspec.structs.replace(self, **{"seq": 0, **changes})
        changed.check()
        return changed

    def to_bytes(self) -> bytes:
        return _encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """The message `data` holds; raises InvalidPayload or InvalidMessage, whatever the bytes."""
        try:
            message = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidPayload(f"not a message: {error}") from error
        if message.payload.__class__ is not bytes:
            raise InvalidPayload("not a message: its payload is not bytes")
        message.check()
        return message


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode
