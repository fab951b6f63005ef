"""A Delta log for existing Parquet files: other programs read them as a table, and nothing is copied.

The log is not the commit. It follows a list of files that is committed elsewhere, in a manifest or a journal, and is
compared with that list each time. So the next call adds what is missing after a crash.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trunkline.clock import World
from trunkline.errors import MissingExtra

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

LOG = "_delta_log"


class LoggedFile(msgspec.Struct, frozen=True):
    """A valid file."""

    rows: int
    bytes: int
    partition: dict[str, str]
    """The values of the columns that are in the path and not in the file, as Delta writes them."""


def follow(
    directory: Path,
    schema: pa.Schema | None,
    partition_by: Sequence[str],
    files: Mapping[str, LoggedFile],
    world: World,
) -> bool:
    """Make the log of a directory list exactly these files, in one commit; returns whether it changed.

    If the columns have changed, the log starts again with the new ones; without a schema they are not changed. Raises
    MissingExtra without `deltalake`.
    """
    try:
        from deltalake import DeltaTable, Schema
        from deltalake.transaction import AddAction, RemoveAction
    except ImportError as error:
        raise MissingExtra("delta", "Delta logs") from error
    columns = list(partition_by)
    if not DeltaTable.is_deltatable(str(directory)):
        if not files or schema is None:
            return False
        DeltaTable.create(directory, schema, partition_by=columns)
    log = DeltaTable(directory)
    wanted = log.schema() if schema is None else Schema.from_arrow(schema)
    if log.schema() != wanted:
        log = DeltaTable.create(directory, wanted, mode="overwrite", partition_by=columns)
    listed = _listed(log)
    now_ms = world.time_ns() // 1_000_000
    actions: list[AddAction | RemoveAction] = [
        AddAction(path, file.bytes, file.partition, now_ms, True, json.dumps({"numRecords": file.rows}))
        for path, file in sorted(files.items())
        if path not in listed
    ]
    actions += [RemoveAction(path, True, now_ms) for path in sorted(listed - files.keys())]
    if actions:
        log.create_write_transaction(actions, "append", wanted, columns)
    return bool(actions)


def _listed(log: DeltaTable) -> set[str]:
    return set(log.get_add_actions().column("path").to_pylist())


def follow_lake(directory: Path) -> bool:
    """Keep logs beside the sealed files of a journal, for messages and for fates; returns whether one has changed."""
    import pyarrow as pa

    from trunkline.journal.lake import SCHEMAS
    from trunkline.journal.reader import Reader

    changed = False
    for kind, schema in SCHEMAS.items():
        with Reader(directory) as reader:
            sealed = reader.files(kind)
        files = {
            file.path.removeprefix(f"{kind}/"): LoggedFile(file.rows, file.bytes, {"date": file.day}) for file in sealed
        }
        dated = pa.schema([*schema, pa.field("date", pa.date32())])
        changed |= follow(directory / kind, dated, ["date"], files, World())
    return changed
