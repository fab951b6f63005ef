"""Writes the report: one self-contained HTML file with the most important charts."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def report(
    spark: SparkSession,
    warehouse: str | Path,
    file: str | Path,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Path:
    """Write the report on a warehouse, for the hours from `since` up to `until` if given. Returns its path."""
    from trunkline.spark.report.figures import gather
    from trunkline.spark.report.page import page

    path = Path(file)
    text = page(gather(spark, warehouse, since, until))
    scratch = path.with_name(f".{path.name}.tmp")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
    return path
