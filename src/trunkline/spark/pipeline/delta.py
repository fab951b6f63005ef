"""Delta logs of a warehouse, one per table. They are derived from the manifest; only the manifest commits a run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from trunkline.clock import World
from trunkline.journal.delta_log import LOG, LoggedFile, follow
from trunkline.journal.lake import SCHEMAS
from trunkline.spark.pipeline.manifest import Manifest

PARTITIONS = (pa.field("journal", pa.string()), pa.field("hour", pa.string()))
"""`hour` is a string, as in the names of directories (`2026-11-16T10`).

Some engines take the value from the directory name and cannot parse it as a timestamp.
"""


def follow_manifest(directory: Path, manifest: Manifest, world: World) -> None:
    """Update the log of every table to list the current files. After a crash, this adds the missing log entries."""
    logged = {path.parent.name for path in directory.glob(f"*/{LOG}")}
    for table in sorted(manifest.tables() | logged):
        files = _files(manifest, table)
        schema = _schema(directory / table, table, files)
        follow(directory / table, schema, [field.name for field in PARTITIONS], files, world)


def remove_logs(directory: Path) -> None:
    """Delete all logs. Logs that are no longer updated would soon refer to deleted files."""
    for log in directory.glob(f"*/{LOG}"):
        shutil.rmtree(log)


def _schema(directory: Path, table: str, files: dict[str, LoggedFile]) -> pa.Schema | None:
    """The columns of the files and the partition columns; None if there are no files."""
    if not files:
        return None
    # An older file of the lake may lack the newest columns. In all other tables, all files have the same columns.
    inside = SCHEMAS[table] if table in SCHEMAS else pq.read_schema(directory / max(files))
    return pa.schema([*(_nullable(field) for field in inside), *PARTITIONS])


def _nullable(field: pa.Field) -> pa.Field:
    """Spark marks a column as non-null in files where it can prove that. The log declares all columns nullable."""
    return pa.field(field.name, _with_nulls(field.type))


def _with_nulls(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_nullable(each) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _with_nulls(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _with_nulls(kind.item_type))
    return kind


def _files(manifest: Manifest, table: str) -> dict[str, LoggedFile]:
    return {
        f"journal={journal}/hour={hour}/{file.name}": LoggedFile(
            file.rows, file.bytes, {"journal": journal, "hour": hour}
        )
        for journal, state in manifest.journals.items()
        for hour, files in state.tables.get(table, {}).items()
        for file in files
    }
