"""A DataFrame of rows that the driver has in memory.

The rows are passed to Spark as Arrow data and become part of the plan. Rows of Python objects would go through Python
workers. Starting such a process takes a second of processor time, and a query waits for it without a timeout.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def driver_frame(spark: SparkSession, rows: Iterable[Sequence[Any]], ddl: str) -> DataFrame:
    """A DataFrame of these rows. `ddl` declares the columns. Times without a zone are UTC."""
    wanted = _struct(ddl)
    schema = _arrow(wanted)
    values = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in schema]
    columns = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(columns, schema=schema), wanted)


def arrow_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    if not rows.num_rows:
        # Spark Connect does not read the columns of an empty table.
        from pyspark.sql.pandas.types import from_arrow_schema

        return spark.createDataFrame([], from_arrow_schema(rows.schema))
    # Spark loses all rows of a table that begins with two empty chunks.
    return spark.createDataFrame(rows.combine_chunks())


def arrow_schema(ddl: str) -> pa.Schema:
    return _arrow(_struct(ddl))


def _struct(ddl: str) -> StructType:
    from pyspark.sql.types import DataType, StructType

    fields = DataType.fromDDL(ddl)
    assert isinstance(fields, StructType)
    return fields


def _arrow(fields: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(fields, timezone="UTC")
