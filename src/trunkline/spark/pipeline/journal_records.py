"""What a run takes from a journal besides messages and fates: dead letters and orphans, in Arrow batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from trunkline.delivery.dead_letters import DeadLetter
from trunkline.errors import InvalidPayload
from trunkline.journal.reader import Reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIME = pa.timestamp("us", "UTC")
LETTERS = pa.schema(
    [
        ("subscriber", pa.string()),
        ("seq", pa.int64()),
        ("at", TIME),
        ("topic", pa.string()),
        ("id", pa.string()),
        ("cause", pa.string()),
        ("reason", pa.string()),
        ("error_type", pa.string()),
        ("traceback", pa.string()),
        ("attempts", pa.int32()),
    ]
)
ORPHANS = pa.schema(
    [
        ("seq", pa.int64()),
        ("id", pa.string()),
        ("request_id", pa.string()),
        ("topic", pa.string()),
        ("why", pa.string()),
        ("at", TIME),
    ]
)


class Ends:
    """How far a journal is: the last message and the last fate. Everything up to there can be read."""

    def __init__(self, directory: str | Path) -> None:
        with Reader(directory) as reader:
            self.seq = reader.last()
            self.fate = _last_fate(reader)


def _last_fate(reader: Reader) -> int:
    (hot,) = reader.query("SELECT max(number) FROM fates")[0]
    return max(hot or 0, max((file.last for file in reader.files("fates")), default=0))


def letters(spark: SparkSession, directory: str | Path, first: int, last: int) -> DataFrame:
    """Dead letters about messages from `first` to `last` that are in the journal now."""
    with Reader(directory) as reader:
        rows = reader.query(
            "SELECT subscriber, seq, at_ns, topic, id, cause, reason, letter FROM dead_letters"
            " WHERE seq BETWEEN ? AND ?",
            (first, last),
        )
    found = [_letter(row) for row in rows]
    return _frame(spark, found, LETTERS)


def _letter(row: tuple[Any, ...]) -> dict[str, Any]:
    subscriber, seq, at_ns, topic, id, cause, reason, data = row
    values = {"subscriber": subscriber, "seq": seq, "at": at_ns // 1000, "topic": topic, "id": id}
    values |= {"cause": cause, "reason": reason, "error_type": None, "traceback": None, "attempts": None}
    try:
        letter = DeadLetter.from_bytes(data)
    except InvalidPayload:
        # Damaged: what the columns of the journal say is still true.
        return values
    return values | {
        "error_type": letter.error_type,
        "traceback": letter.traceback,
        "attempts": len(letter.attempts),
    }


def orphans(spark: SparkSession, directory: str | Path, first: int, last: int) -> DataFrame:
    """Orphans that are in the journal now."""
    with Reader(directory) as reader:
        rows = reader.query(
            "SELECT seq, id, request_id, topic, why, at_ns FROM orphans WHERE seq BETWEEN ? AND ?", (first, last)
        )
    found = [dict(zip(ORPHANS.names, (*row[:5], row[5] // 1000), strict=True)) for row in rows]
    return _frame(spark, found, ORPHANS)


def _frame(spark: SparkSession, rows: list[dict[str, Any]], schema: pa.Schema) -> DataFrame:
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in schema]
    return spark.createDataFrame(pa.Table.from_arrays(columns, schema=schema))
