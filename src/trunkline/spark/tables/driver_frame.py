"""Rows that the driver has, as a DataFrame.

Given to Spark as Arrow, they are part of the plan. Rows of Python objects would pass through Python workers, which are
processes that Spark starts for it: a second of processor time each, and a query waits for them without a limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def driver_frame(spark: SparkSession, rows: Iterable[Sequence[Any]], ddl: str) -> DataFrame:
    """These rows, with columns as Spark's DDL has them. Times without a zone are UTC."""
    wanted = _struct(ddl)
    schema = _arrow(wanted)
    values = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in schema]
    columns = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(columns, schema=schema), wanted)


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
