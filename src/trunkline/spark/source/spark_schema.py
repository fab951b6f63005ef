"""The Spark schemas of messages and fates: the columns of docs/journal.md, in the same order."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types

from trunkline.errors import InvalidSettings
from trunkline.journal.lake import SCHEMAS

KEYS = {"messages": "seq", "fates": "number"}
"""The column with the row number."""

TYPES: dict[pa.DataType, types.DataType] = {
    pa.int32(): types.IntegerType(),
    pa.int64(): types.LongType(),
    pa.float64(): types.DoubleType(),
    pa.bool_(): types.BooleanType(),
    pa.string(): types.StringType(),
    pa.binary(): types.BinaryType(),
    pa.timestamp("us", "UTC"): types.TimestampType(),
    pa.map_(pa.string(), pa.string()): types.MapType(types.StringType(), types.StringType()),
}


def all_of(kind: str) -> types.StructType:
    return types.StructType([types.StructField(field.name, TYPES[field.type]) for field in SCHEMAS[kind]])


def chosen(kind: str, schema: types.StructType) -> list[str]:
    """The columns of a requested schema; raises InvalidSettings if one does not exist."""
    known = {field.name: field.dataType.simpleString() for field in all_of(kind)}
    for field in schema:
        wanted = field.dataType.simpleString()
        if known.get(field.name) != wanted:
            there = ", ".join(f"{name} {type}" for name, type in known.items())
            raise InvalidSettings(f"the schema has {field.name} {wanted}, and {kind} have these columns: {there}")
    return schema.fieldNames()


def arrow(kind: str, names: list[str]) -> pa.Schema:
    """Some columns as an Arrow schema, without metadata."""
    return pa.schema([SCHEMAS[kind].field(name) for name in names])
