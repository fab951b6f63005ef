"""The manifest: the position of a warehouse in each journal, and its current files. Replacing it commits a run."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from trunkline.journal.database import sync_path
from trunkline.moment import Moment, utc
from trunkline.spark.errors import WarehouseUnusable

FILE = "manifest.json"
LAYOUT = 2
HOUR = timedelta(hours=1)
T = TypeVar("T")


class MessageRange(msgspec.Struct, frozen=True):
    """A range of message numbers: the messages of one hour, or those to which the fates of one hour refer."""

    first: int
    last: int
    count: int

    def meets(self, first: int, last: int) -> bool:
        return self.first <= last and first <= self.last

    def joined(self, other: MessageRange | None) -> MessageRange:
        if other is None:
            return self
        return MessageRange(min(self.first, other.first), max(self.last, other.last), self.count + other.count)


class StoredFile(msgspec.Struct, frozen=True):
    """A Parquet file of one table, journal and hour. All three are part of its path. It never changes."""

    name: str
    rows: int
    bytes: int
    first: int = 0
    """For bronze: the lowest number of a row. `last` is the highest."""
    last: int = 0


class LeftOut(msgspec.Struct, frozen=True):
    """A damaged file of the lake that was skipped, because the setting `skip_damaged` is on."""

    path: str
    first: int
    last: int
    why: str


class RemovedUnread(msgspec.Struct, frozen=True):
    """Messages of a topic that retention removed from the journal before the pipeline read them."""

    topic: str
    count: int
    hour: str
    """The hour in which they are counted: the first hour of the messages ingested when the loss was found."""


class JournalState(msgspec.Struct, kw_only=True):
    """The contents of a warehouse for one journal, and its position in that journal."""

    identity: str | None = None
    seq: int = 0
    """Messages up to this number are in the tables."""
    fate: int = 0
    upto_us: int = 0
    """The latest time of acceptance of an ingested message, in microseconds since 1970."""
    hours: dict[str, MessageRange] = {}
    """The messages of each hour."""
    fate_hours: dict[str, MessageRange] = {}
    """The messages to which the fates of each hour refer."""
    tables: dict[str, dict[str, list[StoredFile]]] = {}
    """The current files, by table and hour."""
    open: list[str] = []
    """Hours with requests whose outcome is still `open`."""
    typed: dict[str, list[tuple[str, str]]] = {}
    """Names and types of the columns of each typed table. They are the same in all its files."""
    orphans: int = 0
    """The number of orphans in the journal when it was last read."""
    duplicates: int = 0
    late: int = 0
    left_out: list[LeftOut] = []
    removal: int = 0
    """Removals of the journal up to this number have been processed."""
    unread: list[RemovedUnread] = []

    @property
    def upto(self) -> datetime:
        return at(0) + timedelta(microseconds=self.upto_us)

    def forget_before(self, hour: str) -> bool:
        """Drop all hours before this one from all tables. Returns whether there were any."""
        old = {each for each in (*self.hours, *self.fate_hours) if each < hour}
        listed: list[dict[str, Any]] = [self.hours, self.fate_hours, *self.tables.values()]
        for by_hour in listed:
            for each in old & by_hour.keys():
                del by_hour[each]
        self.open = [each for each in self.open if each not in old]
        return bool(old)

    def files(self, table: str) -> dict[str, list[StoredFile]]:
        """The current files of a table, by hour."""
        return self.tables.setdefault(table, {})


class Manifest(msgspec.Struct, kw_only=True):
    layout: int = LAYOUT
    run: int = 0
    """The number of the last run. The names of the files that a run writes begin with its number."""
    watermark_s: float = 0.0
    """The watermark by which messages are assigned to hours. The first run sets it; it never changes."""
    delta: bool = False
    """Whether a Delta log is kept beside each table."""
    journals: dict[str, JournalState] = {}
    """By name."""
    replaced: dict[str, float] = {}
    """Replaced files by path, with the time of replacement. They are kept for queries that still read them."""

    def copy(self) -> Manifest:
        return _decode(_encode(self))

    def state(self, journal: str) -> JournalState:
        return self.journals.setdefault(journal, JournalState())

    def tables(self) -> set[str]:
        """The names of tables with rows."""
        return {name for state in self.journals.values() for name, hours in state.tables.items() if hours}

    def paths(self) -> set[str]:
        """All current files, relative to the directory of the warehouse."""
        return {
            f"{folder_of(table, journal, hour)}/{file.name}"
            for journal, state in self.journals.items()
            for table, hours in state.tables.items()
            for hour, files in hours.items()
            for file in files
        }


def folder_of(table: str, journal: str, hour: str) -> str:
    """The directory of files, in the `name=value` layout of partitions that most engines understand."""
    return f"{table}/journal={journal}/hour={hour}"


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Manifest).decode


class _LayoutOnly(msgspec.Struct):
    layout: int = 1


def load(directory: Path) -> Manifest:
    """The manifest there, or an empty one if there is none. Raises WarehouseUnusable if it cannot be read."""
    layout = layout_of(directory)
    if layout is None:
        return Manifest()
    if layout > LAYOUT:
        raise WarehouseUnusable(
            str(directory), f"it is of layout {layout}, newer than this Trunkline supports: upgrade Trunkline"
        )
    if layout < LAYOUT:
        raise WarehouseUnusable(
            str(directory),
            f"it is of layout {layout}, which this Trunkline no longer reads: run `trunkline pipeline rebuild`, which"
            " builds the tables again from the journal",
        )
    return _read(directory, Manifest)


def layout_of(directory: Path) -> int | None:
    """The layout version of the warehouse there, also of an older one; None if there is no warehouse."""
    return _read(directory, _LayoutOnly).layout if (directory / FILE).exists() else None


def _read(directory: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode((directory / FILE).read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise WarehouseUnusable(str(directory), f"{FILE} cannot be read: {error}") from error


def save(directory: Path, manifest: Manifest) -> None:
    """Replace the manifest atomically and durably, also if the power fails."""
    path = directory / FILE
    scratch = directory / f".{FILE}.tmp"
    with scratch.open("wb") as file:
        file.write(_encode(manifest))
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    sync_path(directory)


def at(seconds: int) -> datetime:
    """The time this many seconds after 1970, in UTC, as a datetime without a time zone."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def name_of(hour: datetime) -> str:
    return hour.strftime("%Y-%m-%dT%H")


def name_of_number(number: int) -> str:
    """The name of an hour, given as the number of hours since 1970."""
    return name_of(at(number * 3600))


def hour_of(name: str) -> datetime:
    return datetime.strptime(name, "%Y-%m-%dT%H")


def truncated(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def in_utc(when: Moment | None) -> datetime | None:
    """The moment in UTC without a time zone, as all times here."""
    return None if when is None else utc(when).replace(tzinfo=None)
