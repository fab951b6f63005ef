"""Which topics match which patterns: `trunkline.topic.matches`, said in Spark's own functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WILD = r"(^|\.)(\*|>$)"


def matching(topics: DataFrame, patterns: DataFrame) -> DataFrame:
    """Each row of `topics` with each row of `patterns` that it matches. Each is tried on each: let them be distinct."""
    # A pattern that is a topic has no form: comparing is enough, and many are such, those of endpoints.
    forms = patterns.withColumn("form", F.when(F.col("pattern").rlike(WILD), _form("pattern")))
    return topics.join(F.broadcast(forms), F.expr("topic = pattern or topic rlike form")).drop("form")


def _form(pattern: str) -> Expression:
    """The regular expression of a pattern."""
    # In a pattern * and > are whole tokens, so they cannot be mistaken for text.
    quoted = F.regexp_replace(pattern, r"([\\^$.|?+()\[\]{}])", r"\\$1")
    tokens = F.regexp_replace(F.regexp_replace(quoted, r"\*", "[^.]+"), ">$", ".+")
    return F.concat(F.lit("^"), tokens, F.lit("$"))
