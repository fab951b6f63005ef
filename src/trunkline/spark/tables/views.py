"""Reading the tables of a warehouse: as a DataFrame, or all of them by name in SQL. Needs no turn."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline.errors import UsageError
from trunkline.spark.pipeline.manifest import Manifest
from trunkline.spark.pipeline.warehouse import Warehouse, hours_between
from trunkline.spark.tables.catalog import every
from trunkline.spark.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TYPED = "typed_"


def table(
    spark: SparkSession,
    warehouse: str | Path,
    name: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """The rows of a table as they are now; of the hours from `since` up to `until` (UTC), if given."""
    place = Warehouse(warehouse)
    manifest = place.look()
    hours = None
    if since is not None or until is not None:
        hours = hours_between(manifest, since, until)
    known = {each.name: each for each in every(())}
    if name in known:
        return place.read(spark, manifest, known[name], hours)
    if name in manifest.tables:
        return _typed(spark, place, manifest, name, hours)
    raise UsageError(f"there is no table {name!r}: there are {', '.join(names(manifest))}")


def _typed(spark: SparkSession, place: Warehouse, manifest: Manifest, name: str, hours: list[str] | None) -> DataFrame:
    """A table whose columns are those of a channel's schema, as its files have them."""
    paths = place.parts(manifest, name, hours)
    reader = spark.read.option("recursiveFileLookup", "true").option("mergeSchema", "true")
    return reader.parquet(*paths)


def names(manifest: Manifest) -> list[str]:
    """The tables there are, those of channels last."""
    fixed = [each.name for each in every(())]
    return fixed + sorted(name for name in manifest.tables if name not in fixed and manifest.tables[name])


def register(spark: SparkSession, warehouse: str | Path) -> list[str]:
    """Make every table a view of its name, for SQL; returns the names."""
    manifest = Warehouse(warehouse).look()
    found = names(manifest)
    for name in found:
        table(spark, warehouse, name).createOrReplaceTempView(name)
    return found


def described() -> list[Table]:
    """The tables that every warehouse has, with their columns."""
    return every(())
