"""Which topics match which patterns, for Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.topic import is_wild, regex

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def matching(topics: DataFrame, patterns: DataFrame) -> DataFrame:
    """Each row of `topics` with each row of `patterns` that matches it. All pairs are tried: pass distinct rows."""
    # A pattern without wildcards needs no regular expression. Many are of this kind, such as those of endpoints.
    rows = [(*row, regex(row["pattern"]) if is_wild(row["pattern"]) else None) for row in patterns.collect()]
    columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in patterns.schema)
    forms = driver_frame(patterns.sparkSession, rows, f"{columns}, form string")
    return topics.join(F.broadcast(forms), F.expr("topic = pattern or topic rlike form")).drop("form")
