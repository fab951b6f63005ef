"""Conformance: what was published on channels with a schema, held against it. The hub refuses some of what does not
fit; this is what it let through, what came another way, and what came before the schema did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.spark.tables.channel_contracts import on_any
from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.spark.tables.payloads import verdicts
from trunkline.spark.tables.table import SILVER, BuiltTable, Column, Inputs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CARRIED = ("seq", "id", "topic", "sender", "hour")


def build(inputs: Inputs) -> DataFrame:
    with_schema = [channel for channel in inputs.channels if channel.schema is not None]
    if not with_schema:
        return driver_frame(inputs.spark, [], TABLE.own_ddl)
    # Only what may concern one of them goes through Python, where its channel is found.
    rows = inputs.messages.where(on_any(with_schema))
    return TABLE.shape(verdicts(rows, CARRIED, inputs.channels))


TABLE = BuiltTable(
    "conformance",
    SILVER,
    "A row is a message on a channel with a schema, and whether its payload fits, as the hub judges it",
    (
        Column("seq", "bigint", "the message"),
        Column("id", "string", "its id"),
        Column("topic", "string", "where it was published"),
        Column("channel", "string", "the channel of the topic: of several, the one whose pattern says most"),
        Column("schema_hash", "string", "the schema of the channel when the row was made"),
        Column("sender", "string", "who published it"),
        Column("ok", "boolean", "whether it fits"),
        Column("field", "string", "where it does not, as a path such as `$.price`; `$` is the whole"),
        Column("problem", "string", "what is wrong there"),
        Column("hour", "timestamp", "the hour of the message"),
    ),
    build,
    has_rows=lambda contents: bool(contents.channels),
)
