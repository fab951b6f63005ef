"""Which topics match which patterns, for Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.topic import is_wild, regex

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def matching(topics: DataFrame, patterns: DataFrame) -> DataFrame:
    """Each row of `topics` with each row of `patterns` that it matches. Each is tried on each: let them be distinct."""
    # A pattern that is a topic has no form: comparing is enough, and many are such, those of endpoints.
    rows = [(*row, regex(row["pattern"]) if is_wild(row["pattern"]) else None) for row in patterns.collect()]
    columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in patterns.schema)
    forms = driver_frame(patterns.sparkSession, rows, f"{columns}, form string")
    return topics.join(F.broadcast(forms), F.expr("topic = pattern or topic rlike form")).drop("form")
