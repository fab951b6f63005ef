"""Jupyter's frames: signed when sent, checked and parsed when received. Pure: converts between bytes and messages.

A message is identities, a delimiter, a signature over what follows, four JSON texts, and raw buffers.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from trunkline.codec import JSON
from trunkline.errors import UsageError
from trunkline.jupyter.message_types import topic_of
from trunkline.message import NORMAL, Message, MessageType

DELIMITER: Final = b"<IDS|MSG>"
PROTOCOL_VERSION: Final = "5.4"
REMEMBERED: Final = 65_536
"""The number of remembered signatures. A message with a known signature is a repetition, and dropped."""

PUBLISH, REQUEST, RESPONSE = MessageType.PUBLISH, MessageType.REQUEST, MessageType.RESPONSE


class Header(msgspec.Struct, frozen=True, gc=False):
    """The header of a Jupyter message."""

    msg_id: str = ""
    msg_type: str = ""
    session: str = ""
    username: str = ""
    date: str = ""
    version: str = ""


class SubshellHeader(Header, frozen=True, gc=False):
    """The header of a request to a subshell: a thread of the kernel that answers while the main one is busy."""

    subshell_id: str = ""


class Fault(enum.StrEnum):
    """Why frames are not a message."""

    BAD_SIGNATURE = "bad_signature"
    DUPLICATE = "duplicate"
    MALFORMED = "malformed"


class Unreadable(Exception):  # it never leaves this package
    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(why)
        self.fault = fault


class KernelMessage(Message, frozen=True, gc=False):
    """A Jupyter message in the form of a Trunkline message. Its ids and payload are those of the kernel.

    `payload` is the whole Jupyter message as JSON. `request_id` is the id of its parent message.
    """

    socket: str = ""
    header: Header = Header()
    parent: Header = Header()
    metadata: Mapping[str, Any] = {}
    content: Mapping[str, Any] = {}
    buffers: tuple[bytes, ...] = ()

    @property
    def msg_type(self) -> str:
        return self.header.msg_type

    def plain(self, sender: str, headers: Mapping[str, str] | None, trace: str | None = None) -> Message:
        """The message in the form in which it is published: the payload also includes the separate fields."""
        return Message(
            id=self.id,
            topic=self.topic,
            payload=self.payload,
            timestamp_ns=self.timestamp_ns,
            sender=sender,
            content_type=self.content_type,
            type=self.type,
            priority=self.priority,
            request_id=self.request_id,
            correlation_id=self.correlation_id,
            trace=trace,
            headers=headers,
        )


class KernelWire:
    """Converts the frames of one kernel. It counts unreadable ones, and detects repetitions."""

    def __init__(
        self, kernel_id: str, time_ns: Callable[[], int], key: bytes = b"", scheme: str = "hmac-sha256"
    ) -> None:
        self.kernel_id = kernel_id
        self._time_ns = time_ns
        self._sign = _signer(key, scheme.removeprefix("hmac-")) if key else None
        self._topics: dict[tuple[str, str], str] = {}
        self._seen: set[bytes] = set()
        self._order: deque[bytes] = deque()
        self.count = 0
        self._last_parent = (b"{}", NO_PARENT)

    # Out

    def sign(self, parts: Sequence[bytes]) -> bytes:
        return b"" if self._sign is None else self._sign(b"".join(parts))

    def pack(self, message: KernelMessage) -> list[bytes]:
        """The frames of a message for a kernel's socket."""
        parts = [
            _json(message.header),
            _json(message.parent) if message.parent.msg_id else b"{}",
            _json(message.metadata),
            _json(message.content),
        ]
        return [DELIMITER, self.sign(parts), *parts, *message.buffers]

    def compose(
        self,
        socket: str,
        header: Header,
        content: Mapping[str, Any],
        parent: Header = Header(),
        metadata: Mapping[str, Any] | None = None,
        buffers: Sequence[bytes] = (),
        priority: int = NORMAL,
    ) -> KernelMessage:
        """A message to the kernel."""
        parts = (_json(header), _json(parent) if parent.msg_id else b"{}", _json(metadata or {}), _json(content))
        return self._message(
            socket, header, parent, metadata or {}, content, tuple(buffers), _whole(parts, buffers), priority
        )

    # In

    def unpack(self, socket: str, frames: Sequence[bytes]) -> KernelMessage:
        """The message in frames; raises Unreadable for any malformed bytes."""
        try:
            # Mostly there is one identity, the topic of a publisher, or none.
            at = 1 if frames[0] != DELIMITER else 0
            if at and frames[1] != DELIMITER:
                at = frames.index(DELIMITER)
            signature, header, parent, metadata, content = frames[at + 1 : at + 6]
        except (IndexError, ValueError):
            raise Unreadable(Fault.MALFORMED, f"{len(frames)} frames are not a message") from None
        if self._sign is not None:
            if not hmac.compare_digest(signature, self._sign(b"".join((header, parent, metadata, content)))):
                raise Unreadable(Fault.BAD_SIGNATURE, "the signature does not match the key of the kernel")
            mark = signature
        else:
            mark = header
        if mark in self._seen:
            raise Unreadable(Fault.DUPLICATE, "it is a duplicate")
        try:
            head = _header(header)
            if parent != self._last_parent[0]:
                # Consecutive messages usually belong to the same request.
                self._last_parent = (parent, _header(parent))
            above = self._last_parent[1]
            content_object = _object(content)
            meta = _object(metadata) if metadata != b"{}" else {}
            parts = (header, parent, metadata, content)
        except (msgspec.DecodeError, UnicodeDecodeError):
            head, above, meta, content_object, parts = _leniently(header, parent, metadata, content)
        if not head.msg_id or not head.msg_type:
            raise Unreadable(Fault.MALFORMED, "its header has no msg_id or no msg_type")
        self._seen.add(mark)
        self._order.append(mark)
        if len(self._order) > REMEMBERED:
            self._seen.discard(self._order.popleft())
        buffers = () if len(frames) == at + 6 else tuple(frames[at + 6 :])
        return self._message(socket, head, above, meta, content_object, buffers, _whole(parts, buffers), NORMAL)

    def read(self, socket: str, payload: bytes) -> KernelMessage:
        """The message in a published payload; raises Unreadable for any malformed bytes."""
        try:
            whole = _published(payload)
            buffers = tuple(base64.b64decode(text, validate=True) for text in whole.buffers)
        except (msgspec.DecodeError, ValueError) as error:
            raise Unreadable(Fault.MALFORMED, f"the payload is not a Jupyter message: {error}") from error
        if not whole.header.msg_id or not whole.header.msg_type:
            raise Unreadable(Fault.MALFORMED, "its header has no msg_id or no msg_type")
        if b'"subshell_id"' in payload:
            whole.header = _subshell_header(payload) or whole.header
        parent = whole.parent_header or NO_PARENT
        return self._message(socket, whole.header, parent, whole.metadata, whole.content, buffers, payload, NORMAL)

    def _message(
        self,
        socket: str,
        header: Header,
        parent: Header,
        metadata: Mapping[str, Any],
        content: Mapping[str, Any],
        buffers: tuple[bytes, ...],
        payload: bytes,
        priority: int,
    ) -> KernelMessage:
        msg_type = header.msg_type
        topic = self._topics.get((socket, msg_type))
        if topic is None:
            if len(self._topics) > 1000:
                # Bounded, so that unknown names from a kernel do not fill the memory.
                self._topics.clear()
            topic = self._topics[socket, msg_type] = topic_of(self.kernel_id, socket, msg_type)
        kind = PUBLISH
        request_id = parent.msg_id or None
        if socket != "iopub":
            if request_id is not None:
                # A request for input during an execution is not its answer.
                kind = PUBLISH if msg_type == "input_request" else RESPONSE
            elif msg_type.endswith("_request"):
                kind, request_id = REQUEST, header.msg_id
        self.count += 1
        return KernelMessage(
            header.msg_id,
            topic,
            payload,
            self._time_ns(),
            self.count,
            self.kernel_id,
            JSON,
            kind,
            None,
            priority,
            None,
            request_id,
            parent.msg_id or None,
            None,
            0,
            False,
            "",
            None,
            None,
            None,
            socket,
            header,
            parent,
            metadata,
            content,
            buffers,
        )


class _ToSubshell(msgspec.Struct):
    header: SubshellHeader


class _Published(msgspec.Struct):
    header: Header
    parent_header: Header | None = None
    metadata: dict[str, Any] = {}
    content: dict[str, Any] = {}
    buffers: list[str] = []


NO_PARENT: Final = Header()
_HEADER, _PARENT, _METADATA, _CONTENT = b'{"header":', b',"parent_header":', b',"metadata":', b',"content":'
_header = msgspec.json.Decoder(Header).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode
_published = msgspec.json.Decoder(_Published).decode
_json = msgspec.json.Encoder().encode


def _signer(key: bytes, digest: str) -> Callable[[bytes], bytes]:
    """HMAC with a prepared key. It takes 1.2 µs for a message of 460 bytes; `hmac.digest` takes 3.0 µs."""
    try:
        empty = hashlib.new(digest)
    except ValueError as error:
        raise UsageError(f"the kernel signs with hmac-{digest}, which is not supported") from error
    key = hashlib.new(digest, key).digest() if len(key) > empty.block_size else key
    padded = key.ljust(empty.block_size, b"\0")
    inside = hashlib.new(digest, bytes(byte ^ 0x36 for byte in padded)).copy
    outside = hashlib.new(digest, bytes(byte ^ 0x5C for byte in padded)).copy

    def sign(data: bytes) -> bytes:
        inner = inside()
        inner.update(data)
        outer = outside()
        outer.update(inner.digest())
        return outer.hexdigest().encode()

    return sign


def _subshell_header(payload: bytes) -> SubshellHeader | None:
    """The header of a request to a subshell; None if it names none."""
    try:
        header = msgspec.json.decode(payload, type=_ToSubshell).header
    except msgspec.DecodeError:
        return None
    return header if header.subshell_id else None


def _whole(parts: Sequence[bytes], buffers: Sequence[bytes]) -> bytes:
    """Combine the four JSON texts into one, with the buffers in base64."""
    header, parent, metadata, content = parts
    if not buffers:
        return b"".join((_HEADER, header, _PARENT, parent, _METADATA, metadata, _CONTENT, content, b"}"))
    coded = _json([base64.b64encode(buffer).decode() for buffer in buffers])
    return b"".join((_whole(parts, ())[:-1], b',"buffers":', coded, b"}"))


def _leniently(
    *texts: bytes,
) -> tuple[Header, Header, dict[str, Any], dict[str, Any], tuple[bytes, bytes, bytes, bytes]]:
    """Corrects readable content that is not strict JSON: NaN, broken UTF-8, a null for an empty object."""
    try:
        read = [json.loads(text.decode("utf-8", "replace") or "{}", parse_constant=_no_number) or {} for text in texts]
    except (ValueError, RecursionError) as error:
        raise Unreadable(Fault.MALFORMED, f"not JSON: {error}") from None
    if not all(isinstance(each, dict) for each in read):
        raise Unreadable(Fault.MALFORMED, "header, parent, metadata and content are not all objects")
    head, above, meta, content_object = read
    try:
        head, above = (msgspec.convert(_known(each), Header) for each in (head, above))
        parts = (_json(head), _json(above) if above.msg_id else b"{}", _json(meta), _json(content_object))
    except (msgspec.ValidationError, ValueError, TypeError, RecursionError) as error:
        raise Unreadable(Fault.MALFORMED, f"not readable: {error}") from None
    return head, above, meta, content_object, parts


def _known(header: dict[str, Any]) -> dict[str, str]:
    return {name: str(header[name]) for name in Header.__struct_fields__ if header.get(name) is not None}


def _no_number(text: str) -> None:
    """Read NaN and Infinity as null. They are not JSON, and published messages must be readable everywhere."""
    return
