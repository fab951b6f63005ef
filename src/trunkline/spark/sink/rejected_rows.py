"""Rows that cannot be published become dead letters, which are published on `_dead.spark.NAME`."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from trunkline import codec
from trunkline.delivery.dead_letters import Cause
from trunkline.errors import (
    InvalidMessage,
    InvalidPriority,
    InvalidTopic,
    InvalidTtl,
    MissingCorrelationId,
    PayloadError,
    SchemaBroken,
)
from trunkline.message import Message, MessageType
from trunkline.spark.sink.options import SinkOptions
from trunkline.spark.sink.rows import Bad
from trunkline.spark.sink.task_position import TaskPosition

FAULTS = (SchemaBroken, PayloadError, InvalidMessage)
"""Errors of the row itself, which would fail again. Any other error fails the task."""
MAX_BYTES = 1024 * 1024
MAX_VALUE = 1000
MAX_REASON = 2000
SUBSCRIBER = "spark sink"

_FIELDS: tuple[tuple[type[Exception], str], ...] = (
    (InvalidTopic, "topic"),
    (InvalidPriority, "priority"),
    (InvalidTtl, "ttl_s"),
    (MissingCorrelationId, "request_id"),
    (PayloadError, "payload"),
)


def letter(options: SinkOptions, place: TaskPosition, bad: Bad, row: pa.RecordBatch, now_ns: int) -> Message:
    """The notice of one row, in the format of other dead letters. The payload is the row as JSON."""
    payload, cut = _written(row.to_pylist(maps_as_pydicts="strict")[0])
    headers = {
        "subscriber": SUBSCRIBER,
        "cause": Cause.INVALID_PAYLOAD.value,
        "reason": str(bad.error)[:MAX_REASON],
        "error": type(bad.error).__name__,
        "field": _field(bad.error),
        "topic": bad.topic,
        "query": place.query,
        "epoch": str(place.epoch),
        "partition": str(place.partition),
        "row": str(bad.row),
    }
    if cut:
        headers["cut"] = "true"
    (letter_id,) = place.ids(bad.row, 1, "letter")
    return Message(
        id=letter_id,
        topic=options.letters,
        payload=payload,
        timestamp_ns=now_ns,
        sender=options.name,
        content_type=codec.JSON,
        type=MessageType.ERROR,
        headers=headers,
    )


def _field(error: Exception) -> str:
    if isinstance(error, SchemaBroken):
        return error.field
    return next((field for kind, field in _FIELDS if isinstance(error, kind)), "")


def _written(row: dict[str, Any]) -> tuple[bytes, bool]:
    """A row with any values as JSON; if it is too large, its long values are truncated."""
    whole = _encode(row)
    if len(whole) <= MAX_BYTES:
        return whole, False
    short = _encode({name: _shortened(value) for name, value in row.items()})
    return (short, True) if len(short) <= MAX_BYTES else (_encode({"columns": list(row)[:MAX_VALUE]}), True)


def _encode(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=str)


def _shortened(value: Any) -> Any:
    if isinstance(value, str | bytes):
        return value[:MAX_VALUE]
    return value if len(_encode(value)) <= MAX_VALUE else _encode(value)[:MAX_VALUE].decode(errors="replace")
