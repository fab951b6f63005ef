"""Typed tables: one for each channel with a schema, with a column for each field of its messages."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F
from pyspark.sql import types

from trunkline.spark.tables.channel_contracts import belongs
from trunkline.spark.tables.fields import FieldType, column_names, kind_of, properties
from trunkline.spark.tables.payloads import conforming
from trunkline.spark.tables.table import SILVER, ChannelContract, Column, Inputs, QueryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PREFIX = "typed_"
MAX_NAME_BYTES = 120
"""The limit of a table name, which is also the name of a directory."""
BEFORE = (
    Column("seq", "bigint", "the message"),
    Column("id", "string", "its id"),
    Column("topic", "string", "where it was published"),
    Column("sender", "string", "who published it"),
    Column("published", "timestamp", "where it is placed"),
)
AFTER = (Column("hour", "timestamp", "the hour of the message"),)
CARRIED = ("seq", "id", "topic", "sender", "placed", "hour")
VALUE = "value"
"""The only column for payloads that are not objects with fields."""


class Field(NamedTuple):
    name: str
    """The name of the field in the payload."""
    column: str
    kind: FieldType


def tables(channels: tuple[ChannelContract, ...]) -> list[QueryTable]:
    """The typed tables, sorted by the names of their channels."""
    with_schema = [channel for channel in sorted(channels, key=lambda each: each.name) if channel.schema is not None]
    names = table_names([channel.name for channel in with_schema])
    return [_table(channel, names[channel.name]) for channel in with_schema]


def _table(channel: ChannelContract, name: str) -> QueryTable:
    found = properties(channel.schema)
    # A payload that is not an object is treated as the only field of an object.
    kinds = {VALUE: kind_of(channel.schema)} if found is None else found
    columns = column_names(kinds, [column.name for column in (*BEFORE, *AFTER)])
    fields = [Field(field, column, kinds[field]) for field, column in zip(kinds, columns, strict=True)]
    described = [Column(field.column, field.kind.ddl, _meaning(field, found is None)) for field in fields]
    return QueryTable(
        name,
        SILVER,
        f"A row is a message of the channel {channel.name} that fits its schema. A value that the type of its column"
        " cannot hold is null",
        (*BEFORE, *described, *AFTER),
        partial(_build, channel, fields, found is None),
        has_rows=lambda contents: channel.name in contents.channels,
    )


def _meaning(field: Field, whole: bool) -> str:
    return "the payload" if whole else f"the field `{field.name}`"


def _build(channel: ChannelContract, fields: list[Field], whole: bool, inputs: Inputs) -> DataFrame:
    rows = inputs.messages.where(belongs(channel, inputs.channels))
    text = F.concat(F.lit(f'{{"{VALUE}":'), "text", F.lit("}")) if whole else F.col("text")
    groups = _grouped_by_distinct_names(fields)
    parsed = {_parsed_column(number): F.from_json(text, _schema(group)) for number, group in enumerate(groups)}
    values = {
        field.column: field.kind.read(F.col(_parsed_column(number)).getField(field.name)).alias(field.column)
        for number, group in enumerate(groups)
        for field in group
    }
    return (
        conforming(rows, CARRIED, channel)
        .withColumns(parsed)
        .select(
            *("seq", "id", "topic", "sender"),
            F.col("placed").alias("published"),
            *(values[field.column] for field in fields),
            "hour",
        )
    )


def _parsed_column(number: int) -> str:
    return f"parsed_{number}"


def _grouped_by_distinct_names(fields: list[Field]) -> list[list[Field]]:
    """Groups in which no two names differ only in case: Spark would confuse such names."""
    groups: list[list[Field]] = []
    seen: Counter[str] = Counter()
    for field in fields:
        number = seen[field.name.lower()]
        seen[field.name.lower()] += 1
        if number == len(groups):
            groups.append([])
        groups[number].append(field)
    return groups


def _schema(fields: list[Field]) -> types.StructType:
    return types.StructType([types.StructField(field.name, field.kind.parsed) for field in fields])


# Names


def table_names(channels: list[str]) -> dict[str, str]:
    """The table name of each channel: its own name, with `_` for all characters but letters and digits.

    If several channels get the same name, the channel in lower case in which only dots were replaced keeps it. The
    others get a part of their hash as a suffix. So do names that are too long.
    """
    short = {channel: PREFIX + re.sub(r"\W", "_", channel) for channel in channels}
    sharing = Counter(name.lower() for name in short.values())
    names = {}
    for channel, name in short.items():
        is_straight = channel == channel.lower() and "_" not in re.sub(r"\W", "_", channel.replace(".", ""))
        if (sharing[name.lower()] > 1 and not is_straight) or len(name.encode()) > MAX_NAME_BYTES:
            fits = name.encode()[: MAX_NAME_BYTES - 9].decode(errors="ignore")
            name = f"{fits}_{sha256(channel.encode()).hexdigest()[:8]}"
        names[channel] = name
    return names
