"""Open topics: each message is one message of the engine, in the binary form of CloudEvents. Pure.

Programs without Trunkline read and write them. The payload is JSON or MessagePack, header fields are `ce-…` headers. A
message without a content type is read in the format of the settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from trunkline import codec
from trunkline.brokers.engine.batches import Key
from trunkline.errors import InvalidMessage, InvalidPayload, Refused, TrunklineError
from trunkline.message import MAX_HEADER_BYTES, Message, MessageType

if TYPE_CHECKING:
    from trunkline.clock import World

FORMATS = {"json": codec.JSON, "msgpack": codec.MSGPACK, "raw": codec.RAW}
_LINE = "NATS/1.0\r\n\r\n"
PLACE = "trunkline-place"
"""The header with publisher, batch, count and index, by which processes with Trunkline recognise the message."""


class OpenPlace(NamedTuple):
    key: Key
    size: int
    place: int


def too_large(topic: str, payload: bytes, headers: Mapping[str, str], limit: int) -> Refused | None:
    """The error if a message is too large for the server, else None. The payload is in the format of the topic."""
    if len(payload) + MAX_HEADER_BYTES <= limit:
        return None
    size = len(payload) + len(_LINE) + sum(len(name) + len(value.encode()) + 4 for name, value in headers.items())
    return None if size <= limit else refusal_of_size(topic, size, limit)


def refusal_of_size(topic: str, size: int, limit: int) -> Refused:
    return Refused(
        f"{topic}: with its headers a message has {size:,} bytes, and the server accepts at most {limit:,}: "
        "send a reference to the data, or raise max_payload of the server"
    )


def encode(message: Message, place: OpenPlace, format: str) -> tuple[bytes, dict[str, str]]:
    """The payload in the format of the topic, and its headers."""
    payload, content_type = bytes(message.payload), message.content_type
    wanted = FORMATS[format]
    if content_type != wanted and content_type in (codec.JSON, codec.MSGPACK) and wanted != codec.RAW:
        payload, content_type = codec.encode(message.decode(), wanted)
    moment = datetime.fromtimestamp(message.timestamp_ns / 1e9, UTC).isoformat().replace("+00:00", "Z")
    headers = {
        "ce-specversion": "1.0",
        "ce-id": message.id,
        "ce-source": message.sender or "trunkline",
        "ce-type": message.schema or message.topic,
        "ce-time": moment,
        "content-type": content_type,
        PLACE: f"{place.key[0]:x}-{place.key[1]}-{place.size}-{place.place}",
    }
    for name, value in (
        ("ce-correlationid", message.correlation_id),
        ("ce-requestid", message.request_id),
        ("ce-replyto", message.reply_to),
        ("traceparent", message.trace),
    ):
        if value:
            headers[name] = value
    return payload, headers


def decode(
    topic: str, payload: bytes, headers: Mapping[str, str], format: str, world: World
) -> tuple[Message, OpenPlace | None]:
    """The message, and its place if Trunkline sent it. Raises InvalidPayload if it is not a valid message."""
    known = {name.lower(): value for name, value in headers.items()}
    try:
        message = Message(
            id=known.get("ce-id") or world.uuid7(),
            topic=topic,
            type=MessageType.REQUEST if known.get("ce-requestid") and known.get("ce-replyto") else MessageType.PUBLISH,
            payload=payload,
            timestamp_ns=world.time_ns(),
            sender=known.get("ce-source", ""),
            content_type=known.get("content-type") or FORMATS[format],
            schema=None if known.get("ce-type", topic) == topic else known["ce-type"],
            correlation_id=known.get("ce-correlationid"),
            request_id=known.get("ce-requestid"),
            reply_to=known.get("ce-replyto"),
            trace=known.get("traceparent"),
        )
    except (InvalidMessage, TrunklineError) as error:
        raise InvalidPayload(f"not a message: {error}") from error
    return message, _place(known.get(PLACE, ""))


def _place(text: str) -> OpenPlace | None:
    try:
        origin, number, size, index = text.split("-")
        place = OpenPlace((int(origin, 16), int(number)), int(size), int(index))
    except ValueError:
        return None
    return place if 0 <= place.place < place.size else None
