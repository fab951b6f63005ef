"""The message: an immutable value of header fields and a payload of bytes, with a typed view of it."""

from __future__ import annotations

import builtins
import enum
from collections.abc import Mapping
from typing import Any, TypedDict, TypeVar, overload

import msgspec
from msgspec.structs import force_setattr

from trunkline import codec
from trunkline.errors import (
    MAX_TTL_S,
    HeadersTooLarge,
    InvalidMessage,
    InvalidPayload,
    InvalidPriority,
    InvalidTopic,
    InvalidTtl,
    MessageTooLarge,
    MissingCorrelationId,
)
from trunkline.topic import CONTROL, CONTROL_PREFIX, HEARTBEAT_PREFIX, REPLIES, endpoint, validate_topic

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


ASKING = frozenset({MessageType.REQUEST, MessageType.CONTROL})
"""The types of messages whose sender waits for an answer."""


class Priority(enum.IntEnum):
    """Names for the usual levels; any whole number from 0 to 100 is valid."""

    LOW = 25
    NORMAL = 50
    HIGH = 75
    CRITICAL = 100


NORMAL = 50
MAX_PAYLOAD_BYTES = 1024**3
"""The absolute limit for a message. The limit of a bus, 10 MiB by default, is checked by `bus.message`."""
MAX_HEADER_BYTES = 64 * 1024
"""The limit for all texts of a message together, without its payload: ids, names, headers."""
ELIDED = "elided"
"""The `encoding` of a copy of a message whose payload was left out."""
PUBLISH = MessageType.PUBLISH


class Fields(TypedDict, total=False):
    """The header fields that a publisher may set."""

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


class Unchecked(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The fields of a message without checks. Only `unchecked.py` makes messages of this class."""

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


class Message(Unchecked, frozen=True, gc=False, omit_defaults=True):
    """One message. Build it with keywords; it is checked when built, and `replace` makes a changed copy.

    `id` and `timestamp_ns` are set when a bus accepts the message, unless they are given. `seq` is the number that the
    broker assigned; 0 before that. A value given as payload is encoded at once: changing the value later does not
    change the message.
    """

    def __post_init__(self) -> None:
        # A message that has a number has already been checked.
        if not self.seq:
            self.check()

    def check(self) -> None:
        """Check all fields, encode the payload and find the topic. Raises the matching subclass of InvalidMessage."""
        self._check_texts()
        self._check_payload()
        if self.priority.__class__ is not int:
            # An IntEnum or a numpy integer is accepted, a float or a bool is not.
            if isinstance(self.priority, bool) or not hasattr(self.priority, "__index__"):
                raise InvalidPriority(self.priority)
            force_setattr(self, "priority", int(self.priority.__index__()))
        if not 0 <= self.priority <= 100:
            raise InvalidPriority(self.priority)
        if self.ttl_s is not None and not (_is_number(self.ttl_s) and 0 < self.ttl_s <= MAX_TTL_S):
            raise InvalidTtl(self.ttl_s)
        if self.type.__class__ is not MessageType:
            raise InvalidMessage(f"type must be a MessageType, not {self.type!r}")
        if self.type in _ANSWERS and not self.request_id:
            raise MissingCorrelationId
        for name in ("timestamp_ns", "attempts"):
            value = getattr(self, name)
            if value.__class__ is not int or not 0 <= value < 2**63:
                raise InvalidMessage(f"{name} must be a whole number of at least 0, not {value!r}")
        if self.requires_ack.__class__ is not bool:
            raise InvalidMessage(f"requires_ack must be True or False, not {self.requires_ack!r}")
        if not self.topic and (topic := self._default_topic()):
            force_setattr(self, "topic", topic)
        validate_topic(self.topic)

    def _check_texts(self) -> None:
        size = 0
        for name in _TEXTS:
            value = getattr(self, name)
            if value.__class__ is not str or not value.isascii():
                force_setattr(self, name, value := _text(name, value))
            size += len(value)
        for name in _OPTIONAL_TEXTS:
            value = getattr(self, name)
            if value is not None:
                if value.__class__ is not str or not value.isascii():
                    force_setattr(self, name, value := _text(name, value))
                size += len(value)
        if self.headers is not None:
            headers = _copy_headers(self.headers)
            force_setattr(self, "headers", headers)
            size += sum(map(len, headers)) + sum(map(len, headers.values()))
        # A character may take four bytes.
        if size > MAX_HEADER_BYTES // 4 and (exact := self.header_bytes) > MAX_HEADER_BYTES:
            raise HeadersTooLarge(exact, MAX_HEADER_BYTES)

    @property
    def header_bytes(self) -> int:
        """The size of all texts and headers, without the payload."""
        texts = [value for name in _ALL_TEXTS if (value := getattr(self, name))]
        for key, value in (self.headers or {}).items():
            texts += (key, value)
        return sum([len(text) if text.isascii() else len(text.encode()) for text in texts])

    def _check_payload(self) -> None:
        payload = self.payload
        if payload.__class__ is bytes:
            content_type = self.content_type or codec.RAW
        elif isinstance(payload, (bytes, bytearray, memoryview)):
            payload, raw = codec.encode(payload)
            content_type = self.content_type or raw
        else:
            payload, content_type = codec.encode(payload, self.content_type or codec.MSGPACK)
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise MessageTooLarge(len(payload), MAX_PAYLOAD_BYTES)
        force_setattr(self, "payload", payload)
        force_setattr(self, "content_type", content_type)

    def _default_topic(self) -> str:
        if self.type in (MessageType.RESPONSE, MessageType.ERROR, MessageType.ACK):
            return self.reply_to or REPLIES
        if self.type is MessageType.CONTROL:
            return CONTROL_PREFIX + self.recipient if self.recipient else CONTROL
        if self.recipient:
            return endpoint(self.recipient)
        if self.type is MessageType.HEARTBEAT and self.sender:
            return HEARTBEAT_PREFIX + self.sender
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
    def decode(self, *, max_bytes: int = ...) -> Any: ...
    @overload
    def decode(self, type: builtins.type[T], *, max_bytes: int = ...) -> T: ...
    def decode(self, type: Any = Any, *, max_bytes: int = codec.MAX_PLAIN_BYTES) -> Any:
        """The payload as a `type`, or as plain values. Raises InvalidPayload if it does not match.

        A compressed payload is unpacked up to `max_bytes`; beyond that MessageTooLarge is raised.
        """
        payload = self.payload if not self.encoding else codec.restore(self.payload, self.encoding, max_bytes)
        return codec.decode(payload, self.content_type, type)

    def replace(self, **changes: Any) -> Message:
        """A changed copy, checked again. It keeps its id; pass `id=""` to get a new one."""
        if "payload" in changes:
            # A new payload has its own format and compression.
            changes = {"content_type": "", "encoding": "", **changes}
        changed = msgspec.structs.replace(self, **{"seq": 0, **changes})
        if changed.seq:
            changed.check()
        return changed

    def to_bytes(self) -> bytes:
        return _encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Message:
        """The message in `data`; raises InvalidPayload or InvalidMessage for any malformed bytes."""
        try:
            wire = _decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidPayload(f"not a message: {error}") from error
        if wire.payload.__class__ is not bytes:
            raise InvalidPayload("not a message: its payload is not bytes")
        message = cls(*msgspec.structs.astuple(wire))
        if message.seq:
            message.check()
        return message


_ANSWERS = (MessageType.RESPONSE, MessageType.ACK)
_TEXTS = ("id", "topic", "sender", "content_type", "encoding")
_OPTIONAL_TEXTS = ("recipient", "request_id", "correlation_id", "reply_to", "schema", "trace")
_ALL_TEXTS = _TEXTS + _OPTIONAL_TEXTS


def _text(name: str, value: object) -> str:
    """The value as a plain text that can be encoded. Raises InvalidMessage."""
    if isinstance(value, str):
        try:
            return value.encode().decode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(f"{name} has characters that cannot be encoded: {error}") from error
    if name == "topic":
        raise InvalidTopic(str(value), f"must be text, not {type(value).__name__}")
    raise InvalidMessage(f"{name} must be text, not {value!r}")


def _copy_headers(headers: object) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        raise InvalidMessage(f"headers must be a mapping of text to text, not {headers!r}")
    return {_text("headers", key): _text("headers", value) for key, value in headers.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Unchecked).decode
