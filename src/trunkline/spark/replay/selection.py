"""A selection: messages of a warehouse, chosen by SQL, in the order in which they were published."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.errors import UsageError
from trunkline.journal import layout
from trunkline.message import Message
from trunkline.spark.pipeline.views import register, table
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.spark.session.query_errors import one_line
from trunkline.spark.tables.table import JOURNAL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK = 20_000
CHUNK_BYTES = 16 * 1024 * 1024
"""The maximum size of the payloads in a chunk. Only a single larger payload makes a larger chunk."""


def select(spark: SparkSession, warehouse: str | Path, query: str) -> DataFrame:
    """The messages whose numbers a query returns: `select seq from dead_letters where cause = 'handler failed'`."""
    with one_line(register(spark, warehouse)):
        chosen = spark.sql(query)
    if "seq" not in chosen.columns:
        raise UsageError(f"the query must select the sequence numbers as `seq`; it selects {', '.join(chosen.columns)}")
    messages = table(spark, warehouse, "messages")
    keys = ["seq"]
    if len(Warehouse(warehouse).look().journals) > 1:
        # A message number is unique only within its journal.
        keys = ["seq", JOURNAL.name]
        if JOURNAL.name not in chosen.columns:
            raise UsageError("the warehouse holds several journals: the query must also select `journal`")
    return messages.join(chosen.select(*keys).distinct(), keys, "left_semi").orderBy(*keys)


def journals_of(selection: DataFrame) -> list[str]:
    """The names of the journals from which messages are selected."""
    return sorted(row[0] for row in selection.select(JOURNAL.name).distinct().collect())


def messages_of(selection: DataFrame) -> Iterator[Message]:
    """The selected messages in order, journal by journal. They are read in chunks of about CHUNK_BYTES."""
    for journal in journals_of(selection):
        yield from _messages_of(selection.where(F.col(JOURNAL.name) == journal))


def _messages_of(selection: DataFrame) -> Iterator[Message]:
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
