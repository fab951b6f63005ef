"""Conformance: messages on channels with a schema, checked against that schema.

The hub rejects some messages that do not conform. This table finds the others: messages that the hub accepted, that did
not pass through the hub, or that were published before the schema was set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline.spark.tables.channel_contracts import on_any
from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.spark.tables.payloads import verdicts
from trunkline.spark.tables.table import SILVER, Column, Inputs, QueryTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CARRIED = ("seq", "id", "topic", "sender", "hour")


def build(inputs: Inputs) -> DataFrame:
    with_schema = [channel for channel in inputs.channels if channel.schema is not None]
    if not with_schema:
        return driver_frame(inputs.spark, [], TABLE.own_ddl)
    # Only messages that may belong to these channels go through Python, which finds the exact channel.
    rows = inputs.messages.where(on_any(with_schema))
    return TABLE.shape(verdicts(rows, CARRIED, inputs.channels))


TABLE = QueryTable(
    "conformance",
    SILVER,
    "A row is a message on a channel with a schema, and whether its payload matches, by the rules of the hub",
    (
        Column("seq", "bigint", "the message"),
        Column("id", "string", "its id"),
        Column("topic", "string", "where it was published"),
        Column("channel", "string", "the channel of the topic; of several, the one with the most specific pattern"),
        Column("schema_hash", "string", "the schema of the channel when the row was made"),
        Column("sender", "string", "who published it"),
        Column("ok", "boolean", "whether it matches"),
        Column("field", "string", "where it does not match, as a path such as `$.price`; `$` is the whole payload"),
        Column("problem", "string", "what is wrong there"),
        Column("hour", "timestamp", "the hour of the message"),
    ),
    build,
    has_rows=lambda contents: bool(contents.channels),
)
