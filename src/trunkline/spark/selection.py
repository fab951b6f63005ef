"""A selection: messages of a warehouse, chosen by SQL, in the order in which they were published."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.errors import UsageError
from trunkline.journal import layout
from trunkline.message import Message
from trunkline.spark.views import register, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHUNK = 20_000


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
    numbers = selection.select("seq").orderBy("seq").toArrow().column("seq").to_pylist()
    for start in range(0, len(numbers), CHUNK):
        part = numbers[start : start + CHUNK]
        within = selection.where((F.col("seq") >= part[0]) & (F.col("seq") <= part[-1]))
        found = within.orderBy("seq").select(*columns).toArrow()
        for batch in found.cast(layout.MESSAGES).to_batches():
            yield from layout.to_messages(batch)
