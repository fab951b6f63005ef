"""The lag of a warehouse behind its journal, and the size of each table. Needs neither Spark nor the lock."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from trunkline.journal import records
from trunkline.journal.reader import Reader
from trunkline.spark.pipeline import journals
from trunkline.spark.pipeline.manifest import LeftOut, StoredFile
from trunkline.spark.pipeline.outlook import Ends
from trunkline.spark.pipeline.warehouse import Warehouse


class TableStatus(msgspec.Struct, frozen=True):
    table: str
    hours: int
    first: str
    """The first hour with rows."""
    last: str
    files: int
    bytes: int
    rows: int


class Status(msgspec.Struct, frozen=True):
    """The status of one journal of a warehouse."""

    journal: str
    """Its name in the tables."""
    run: int
    seq: int
    """Messages up to this number are in the tables."""
    journal_seq: int
    fate: int
    journal_fate: int
    upto: str
    """When the journal accepted the last message that is in the tables."""
    lag_s: float
    """The time from `upto` until the journal accepted its last message."""
    messages: int
    late: int
    duplicates: int
    open_hours: int
    left_out: list[LeftOut]
    removed_unread: dict[str, int]
    """By topic: messages that retention removed before the pipeline read them."""
    tables: list[TableStatus]

    @property
    def behind(self) -> int:
        """How many message numbers the tables are behind. Not every number has a message."""
        return self.journal_seq - self.seq


def status(journal: str | Path, warehouse: str | Path) -> Status:
    place = Warehouse(warehouse)
    manifest = place.look()
    source = journals.find(manifest, place.directory, journal)
    state = manifest.state(source.name)
    removed: Counter[str] = Counter()
    for each in state.unread:
        removed[each.topic] += each.count
    ends = Ends(journal)
    return Status(
        journal=source.name,
        run=manifest.run,
        seq=state.seq,
        journal_seq=ends.seq,
        fate=state.fate,
        journal_fate=ends.fate,
        upto=state.upto.isoformat(timespec="milliseconds") + "Z" if state.seq else "",
        lag_s=max(0.0, _accepted_us(journal) - state.upto_us) / 1e6 if state.seq < ends.seq else 0.0,
        messages=sum(span.count for span in state.hours.values()),
        late=state.late,
        duplicates=state.duplicates,
        open_hours=len(state.open),
        left_out=state.left_out,
        removed_unread=dict(sorted(removed.items())),
        tables=[_table(name, hours) for name, hours in sorted(state.tables.items())],
    )


def _accepted_us(journal: str | Path) -> int:
    with Reader(journal) as reader:
        return records.last_accepted_ns(reader) // 1000


def _table(name: str, hours: dict[str, list[StoredFile]]) -> TableStatus:
    files = [file for several in hours.values() for file in several]
    listed = sorted(hours) or [""]
    return TableStatus(
        table=name,
        hours=len(hours),
        first=listed[0],
        last=listed[-1],
        files=len(files),
        bytes=sum(file.bytes for file in files),
        rows=sum(file.rows for file in files),
    )
