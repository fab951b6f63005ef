"""Reading the tables of a warehouse: one as a DataFrame, or all as views for SQL. Does not need the lock."""

from __future__ import annotations

from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline.errors import UsageError
from trunkline.spark.pipeline.manifest import Manifest
from trunkline.spark.pipeline.warehouse import Warehouse, hours_between
from trunkline.spark.session.query_errors import nearest
from trunkline.spark.tables.catalog import every
from trunkline.spark.tables.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def table(
    spark: SparkSession,
    warehouse: str | Path,
    name: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
) -> DataFrame:
    """The current rows of a table. `since` and `until` (UTC) limit the hours."""
    place = Warehouse(warehouse)
    manifest = place.look()
    hours = None
    if since is not None or until is not None:
        there = {hour for state in manifest.journals.values() for hour in state.hours}
        hours = hours_between(there, since, until)
    for each in every(()):
        if each.name == name:
            return place.read(spark, manifest, each, hours)
    parts = [
        place.read(spark, manifest, Table.plain(name, state.typed[name]), hours, journal)
        for journal, state in manifest.journals.items()
        if name in state.typed
    ]
    if not parts:
        known = names(manifest)
        raise UsageError(f"there is no table {name!r}{nearest(name, known)}; there are {', '.join(known)}")
    # Two hubs can have channels with the same name but different schemas.
    return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)


def names(manifest: Manifest) -> list[str]:
    """The names of all tables, those of channels last."""
    fixed = [each.name for each in every(())]
    return fixed + sorted({name for state in manifest.journals.values() for name in state.typed})


def register(spark: SparkSession, warehouse: str | Path) -> list[str]:
    """Register every table as a temporary view with its name, for SQL. Returns the names."""
    manifest = Warehouse(warehouse).look()
    found = names(manifest)
    for name in found:
        table(spark, warehouse, name).createOrReplaceTempView(name)
    return found


def described() -> list[Table]:
    """The tables that every warehouse has, with their columns."""
    return every(())
