"""Maps the columns of a DataFrame to message fields: once, on the driver, before anything is written."""

from __future__ import annotations

import difflib
from typing import NamedTuple

from pyspark.sql.types import (
    BooleanType,
    CharType,
    DataType,
    IntegralType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    VarcharType,
)

from trunkline.errors import InvalidSettings

TEXTS = (
    "id",
    "topic",
    "sender",
    "content_type",
    "recipient",
    "request_id",
    "correlation_id",
    "reply_to",
    "schema",
    "trace",
)
PAYLOAD = "payload"
ENCODING = "encoding"
OTHERS = ("type", "priority", "ttl_s", "requires_ack", "headers")
FIELDS = (*TEXTS, *OTHERS)
OF_THE_JOURNAL = ("seq", "time", "accepted", "attempts", "timestamp_ns")
"""Columns that a journal adds to a message.

They are ignored, because a message gets new values when it is published.
"""


class RowColumns(NamedTuple):
    fields: dict[str, int]
    """The index of the column, by field."""
    payload: int | None
    """The index of the payload column; None if the payload is made from the remaining columns."""
    rest: dict[str, int]
    """The columns that form a JSON payload, by name."""
    topic: str | None
    content_type: str | None


def columns_of(schema: StructType, topic: str | None, content_type: str | None) -> RowColumns:
    """Raises InvalidSettings if these columns cannot form messages."""
    places = {field.name.lower(): place for place, field in enumerate(schema.fields)}
    if len(places) < len(schema.fields):
        raise InvalidSettings(f"two columns share a name: {', '.join(schema.fieldNames())}")
    payload = places.get(PAYLOAD)
    known = FIELDS if payload is None else (*FIELDS, ENCODING)
    fields = {name: place for name, place in places.items() if name in known}
    for name, place in fields.items():
        _check(name, schema.fields[place].dataType)
    rest = {field.name: place for place, field in enumerate(schema.fields) if place not in fields.values()}
    if payload is not None:
        others = [name for name in rest if name.lower() not in (PAYLOAD, *OF_THE_JOURNAL)]
        if others:
            raise _unknown(others[0])
        rest = {}
    if topic is None and "topic" not in fields and "recipient" not in fields:
        raise InvalidSettings('no topic: add a column "topic", or give one for all rows: .option("topic", "orders")')
    return RowColumns(fields, payload, rest, topic, content_type)


def _check(name: str, found: DataType) -> None:
    text = (StringType, CharType, VarcharType)
    match name:
        case "priority":
            fits, wanted = isinstance(found, IntegralType), "a whole number"
        case "ttl_s":
            fits, wanted = isinstance(found, NumericType), "a number"
        case "requires_ack":
            fits, wanted = isinstance(found, BooleanType), "a boolean"
        case "type":
            fits, wanted = isinstance(found, (*text, IntegralType)), "a string, such as publish, or a whole number"
        case "headers":
            fits = isinstance(found, MapType) and isinstance(found.keyType, text) and isinstance(found.valueType, text)
            wanted = "map<string,string>"
        case _:
            fits, wanted = isinstance(found, text), "a string"
    if not fits and not isinstance(found, NullType):
        raise InvalidSettings(
            f"the column {name} must be {wanted}, not {found.simpleString()}: cast it; if it is not a field of the "
            "message, rename it, or put it into the payload"
        )


def _unknown(name: str) -> InvalidSettings:
    near = difflib.get_close_matches(name.lower(), (*FIELDS, ENCODING, PAYLOAD), n=1)
    hint = f"did you mean {near[0]!r}?" if near else "drop it, or put it into the payload: struct(…) as payload"
    return InvalidSettings(f"the column {name!r} is not a field of a message: {hint}")
