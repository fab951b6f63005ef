"""A selection: messages of a warehouse, chosen by SQL, in the order in which they were published."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.errors import UsageError
from trunkline.journal import layout
from trunkline.message import Message
from trunkline.spark.tables.views import register, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK = 20_000
CHUNK_BYTES = 16 * 1024 * 1024
"""Of payloads. Only a single one that is larger makes a larger chunk."""


def select(spark: SparkSession, warehouse: str | Path, query: str) -> DataFrame:
    """The messages whose numbers a query gives: `select seq from dead_letters where cause = 'handler failed'`."""
    register(spark, warehouse)
    chosen = spark.sql(query)
    if "seq" not in chosen.columns:
        raise UsageError(f"the query must give the numbers of messages, as `seq`; it gives {', '.join(chosen.columns)}")
    messages = table(spark, warehouse, "messages")
    return messages.join(chosen.select("seq").distinct(), "seq", "left_semi").orderBy("seq")


def messages_of(selection: DataFrame) -> Iterator[Message]:
    """Its messages, in order; so many at a time as fit into memory easily."""
    columns = [field.name for field in layout.MESSAGES]
    sizes = selection.select("seq", F.coalesce(F.octet_length("payload"), F.lit(0))).orderBy("seq").toArrow()
    for first, last in _chunks(*(column.to_pylist() for column in sizes.columns)):
        within = selection.where((F.col("seq") >= first) & (F.col("seq") <= last))
        found = within.orderBy("seq").select(*columns).toArrow()
        for batch in found.cast(layout.MESSAGES).to_batches():
            yield from layout.to_messages(batch)


def _chunks(numbers: list[int], sizes: list[int]) -> Iterator[tuple[int, int]]:
    """The first and last number of each chunk."""
    held: list[int] = []
    held_bytes = 0
    for number, size in zip(numbers, sizes, strict=True):
        if held and (len(held) == CHUNK or held_bytes + size > CHUNK_BYTES):
            yield held[0], held[-1]
            held, held_bytes = [], 0
        held.append(number)
        held_bytes += size
    if held:
        yield held[0], held[-1]
