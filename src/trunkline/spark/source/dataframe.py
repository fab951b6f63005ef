"""`messages()` and `fates()`: a DataFrame over lake and journal. The lake is read by Spark's own Parquet reader."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from trunkline.journal import Reader
from trunkline.journal.reader import Damage
from trunkline.spark.paths import for_reading
from trunkline.spark.source.damage import handler
from trunkline.spark.source.options import RowKind, row_filter
from trunkline.spark.source.row_filter import COMPARE, Condition, RowFilter
from trunkline.spark.source.snapshot import take_snapshot
from trunkline.spark.source.spark_schema import all_of, arrow
from trunkline.topic import regex

VERIFY = "parquet.page.verify-checksum.enabled"


def messages(
    spark: SparkSession,
    journal: str | Path,
    *,
    first: int | None = None,
    last: int | None = None,
    topic: str | None = None,
    skip_damaged: bool = False,
    on_damage: Damage | None = None,
) -> DataFrame:
    """The current messages: by number, both ends included, and by a pattern of topics. The order is not defined.

    Later publishing, sealing and joining do not change the result. It can be read until `replaced_s` after one of its
    files was replaced. Damage raises JournalDamaged here, or an error of Spark that names the file when the file is
    read. With `skip_damaged` all files are checked here; damaged parts are left out and reported to `on_damage`, by
    default as a line in the log.
    """
    return _read(spark, journal, row_filter(RowKind.MESSAGES, first, last, topic), skip_damaged, on_damage)


def fates(
    spark: SparkSession,
    journal: str | Path,
    *,
    first: int | None = None,
    last: int | None = None,
    skip_damaged: bool = False,
    on_damage: Damage | None = None,
) -> DataFrame:
    """The same for fates, by their `number`."""
    return _read(spark, journal, row_filter(RowKind.FATES, first, last), skip_damaged, on_damage)


def _read(
    spark: SparkSession, journal: str | Path, asked: RowFilter, skip_damaged: bool, on_damage: Damage | None
) -> DataFrame:
    schema = all_of(asked.kind)
    directory = Path(journal).absolute()
    with Reader(directory, on_damage=handler(directory, skip=skip_damaged, on_skip=on_damage)) as reader:
        found = take_snapshot(reader, asked, schema.fieldNames(), thorough=skip_damaged)
    parts: list[DataFrame] = []
    if found.files:
        paths = [for_reading(directory / file.path) for file in found.files]
        # Pages have checksums: a flipped bit causes an error that names the file, not a wrong row.
        sealed = spark.read.schema(schema).option(VERIFY, "true").parquet(*paths)
        for condition in asked.conditions:
            sealed = sealed.where(_filter(condition))
        parts.append(sealed)
    if found.batches or not parts:
        # Spark makes a partition of each batch if there is much of it, and otherwise keeps the rows with the plan.
        empty = arrow(asked.kind, schema.fieldNames()).empty_table()
        rows = pa.Table.from_batches(found.batches) if found.batches else empty
        parts.append(spark.createDataFrame(rows, schema))
    return reduce(DataFrame.unionAll, parts)


def _filter(condition: Condition) -> Column:
    column = F.col(condition.column)
    match condition.test:
        case "starts":
            return column.startswith(condition.value)
        case "matches":
            return column.rlike(regex(condition.value))
    compared: Column = COMPARE[condition.test](column, condition.value)
    return compared
