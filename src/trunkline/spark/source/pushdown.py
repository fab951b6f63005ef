"""Translates filters of a query into conditions of `row_filter.py`.

Filters without an exact equivalent stay with Spark.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from trunkline.journal.lake import SCHEMAS
from trunkline.moment import microseconds
from trunkline.spark.source.row_filter import Condition

Known = EqualTo | In | LessThan | LessThanOrEqual | GreaterThan | GreaterThanOrEqual | StringStartsWith
TESTS: dict[type[Filter], str] = {
    EqualTo: "=",
    In: "in",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    StringStartsWith: "starts",
}
OF_TEXT = ("=", "in", "starts")


def condition_of(kind: str, given: Filter) -> Condition | None:
    """The condition for a filter; None if the filter is left to Spark."""
    if not isinstance(given, Known):
        return None
    test = TESTS[type(given)]
    (name, *inner) = given.attribute
    if inner or name not in SCHEMAS[kind].names:
        return None
    column = SCHEMAS[kind].field(name).type
    if pa.types.is_string(column) and test not in OF_TEXT:
        return None
    # `x in (1, null)` is never true because of the null.
    values = [each for each in given.value if each is not None] if test == "in" else [given.value]
    found = [_value(column, value) for value in values]
    if None in found:
        return None
    return Condition(name, test, tuple(found) if test == "in" else found[0])


def _value(column: pa.DataType, value: Any) -> int | str | None:
    """The value in the representation of these conditions; None if it does not have the column's type."""
    if pa.types.is_string(column):
        return value if isinstance(value, str) else None
    if pa.types.is_timestamp(column):
        return microseconds(value) if isinstance(value, datetime) and value.tzinfo is not None else None
    if pa.types.is_integer(column):
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    return None
