"""How far a warehouse is behind its journal, and what each of its tables holds. Starts no Spark, and needs no turn."""

from __future__ import annotations

from pathlib import Path

import msgspec

from trunkline.journal.reader import Reader
from trunkline.journal.sealed import File
from trunkline.spark.pipeline.journal_records import Ends
from trunkline.spark.pipeline.manifest import LeftOut, Manifest, MessageRange
from trunkline.spark.pipeline.warehouse import Warehouse
from trunkline.spark.tables.bronze import FATES, MESSAGES


class TableStatus(msgspec.Struct, frozen=True):
    table: str
    hours: int
    first: str
    """The first hour of which it has rows."""
    last: str
    files: int
    bytes: int


class Status(msgspec.Struct, frozen=True):
    run: int
    seq: int
    """Messages up to this number are in the tables."""
    journal_seq: int
    fate: int
    journal_fate: int
    upto: str
    """When the journal had taken the last message that is in."""
    lag_s: float
    """How much later the journal took its last message."""
    messages: int
    late: int
    duplicates: int
    open_hours: int
    left_out: list[LeftOut]
    tables: list[TableStatus]

    @property
    def behind(self) -> int:
        """Numbers of messages that are not in yet; not all of them need be in use."""
        return self.journal_seq - self.seq


def status(journal: str | Path, warehouse: str | Path) -> Status:
    place = Warehouse(warehouse)
    manifest = place.look()
    ends = Ends(journal)
    return Status(
        run=manifest.run,
        seq=manifest.seq,
        journal_seq=ends.seq,
        fate=manifest.fate,
        journal_fate=ends.fate,
        upto=manifest.upto.isoformat(timespec="milliseconds") + "Z" if manifest.seq else "",
        lag_s=max(0.0, _accepted_us(journal) - manifest.upto_us) / 1e6 if manifest.seq < ends.seq else 0.0,
        messages=sum(span.count for span in manifest.hours.values()),
        late=manifest.late,
        duplicates=manifest.duplicates,
        open_hours=len(manifest.open),
        left_out=manifest.left_out,
        tables=[
            *(_bronze(name, files, spans) for name, files, spans in _taken(manifest)),
            *(_table(place, name, hours) for name, hours in sorted(manifest.tables.items())),
        ],
    )


def _accepted_us(journal: str | Path) -> int:
    with Reader(journal) as reader:
        (hot,) = reader.query("SELECT max(at_ns) FROM batches")[0]
        sealed = max((file.until_at_ns for file in reader.files()), default=0)
    return max(hot or 0, sealed) // 1000


def _taken(manifest: Manifest) -> list[tuple[str, list[File], dict[str, MessageRange]]]:
    spans = {MESSAGES.name: manifest.hours, FATES.name: manifest.fate_hours}
    return [(name, manifest.bronze.get(name, []), hours) for name, hours in spans.items()]


def _bronze(name: str, files: list[File], spans: dict[str, MessageRange]) -> TableStatus:
    hours = sorted(spans) or [""]
    return TableStatus(name, len(spans), hours[0], hours[-1], len(files), sum(file.bytes for file in files))


def _table(place: Warehouse, name: str, hours: dict[str, list[int]]) -> TableStatus:
    files = [
        file for hour, runs in hours.items() for run in runs for file in place.part(name, run, hour).glob("*.parquet")
    ]
    listed = sorted(hours)
    return TableStatus(
        table=name,
        hours=len(listed),
        first=listed[0] if listed else "",
        last=listed[-1] if listed else "",
        files=len(files),
        bytes=sum(file.stat().st_size for file in files),
    )
