"""The manifest: how far a warehouse is in each journal, and which files count. Replacing it is what commits a run."""

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
    """Numbers of messages: of one hour, or what the fates of one hour are about."""

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
    """A Parquet file of one table, journal and hour, which are in its path. It never changes."""

    name: str
    rows: int
    bytes: int
    first: int = 0
    """Of bronze: the lowest number of a row, and the highest."""
    last: int = 0


class LeftOut(msgspec.Struct, frozen=True):
    """A file of the lake that could not be read, and was left out because somebody said so."""

    path: str
    first: int
    last: int
    why: str


class RemovedUnread(msgspec.Struct, frozen=True):
    """Messages of a topic that retention removed from the journal before the pipeline read them."""

    topic: str
    count: int
    hour: str
    """The hour in which this counts: the first that the run which found it took in."""


class JournalState(msgspec.Struct, kw_only=True):
    """What a warehouse holds of one journal, and how far it has read it."""

    identity: str | None = None
    seq: int = 0
    """Messages up to this number are in the tables."""
    fate: int = 0
    upto_us: int = 0
    """The time of the stream, in microseconds since 1970."""
    hours: dict[str, MessageRange] = {}
    """Of the messages, by hour."""
    fate_hours: dict[str, MessageRange] = {}
    """Of the messages that the fates of an hour are about."""
    tables: dict[str, dict[str, list[StoredFile]]] = {}
    """By table and hour: the files that count."""
    open: list[str] = []
    """Hours with requests that are neither answered nor given up."""
    typed: dict[str, list[tuple[str, str]]] = {}
    """Name and type of the columns of the typed tables: all their files have them."""
    orphans: int = 0
    """How many the journal kept when it was last read."""
    duplicates: int = 0
    late: int = 0
    left_out: list[LeftOut] = []
    removal: int = 0
    """Removals of the journal up to this number were looked at."""
    unread: list[RemovedUnread] = []

    @property
    def upto(self) -> datetime:
        return at(0) + timedelta(microseconds=self.upto_us)

    def forget_before(self, hour: str) -> bool:
        """Drop what lies before an hour, from all tables; returns whether there was anything."""
        old = {each for each in (*self.hours, *self.fate_hours) if each < hour}
        listed: list[dict[str, Any]] = [self.hours, self.fate_hours, *self.tables.values()]
        for by_hour in listed:
            for each in old & by_hour.keys():
                del by_hour[each]
        self.open = [each for each in self.open if each not in old]
        return bool(old)

    def files(self, table: str) -> dict[str, list[StoredFile]]:
        """By hour."""
        return self.tables.setdefault(table, {})


class Manifest(msgspec.Struct, kw_only=True):
    layout: int = LAYOUT
    run: int = 0
    """Runs count up; the names of the files that a run writes begin with its number."""
    watermark_s: float = 0.0
    """Rows of bronze are placed by this: it stays as it was in the first run."""
    delta: bool = False
    """Whether a Delta log is kept beside each table."""
    journals: dict[str, JournalState] = {}
    """By name."""
    replaced: dict[str, float] = {}
    """Files that count no more, by path, with when that was: those who read them then may still do so."""

    def copy(self) -> Manifest:
        return _decode(_encode(self))

    def state(self, journal: str) -> JournalState:
        return self.journals.setdefault(journal, JournalState())

    def tables(self) -> set[str]:
        """Those with rows."""
        return {name for state in self.journals.values() for name, hours in state.tables.items() if hours}

    def paths(self) -> set[str]:
        """All files that count, from the directory of the warehouse."""
        return {
            f"{folder_of(table, journal, hour)}/{file.name}"
            for journal, state in self.journals.items()
            for table, hours in state.tables.items()
            for hour, files in hours.items()
            for file in files
        }


def folder_of(table: str, journal: str, hour: str) -> str:
    """Where files lie, as every engine that knows partitions understands it."""
    return f"{table}/journal={journal}/hour={hour}"


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Manifest).decode


class _LayoutOnly(msgspec.Struct):
    layout: int = 1


def load(directory: Path) -> Manifest:
    """Raises WarehouseUnusable if there is one that cannot be read; an empty one if there is none."""
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
    """The layout of the warehouse there, which an older version may have written; None if there is none."""
    return _read(directory, _LayoutOnly).layout if (directory / FILE).exists() else None


def _read(directory: Path, kind: type[T]) -> T:
    try:
        return msgspec.json.decode((directory / FILE).read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise WarehouseUnusable(str(directory), f"{FILE} cannot be read: {error}") from error


def save(directory: Path, manifest: Manifest) -> None:
    """Whole or not at all, also if the power fails."""
    path = directory / FILE
    scratch = directory / f".{FILE}.tmp"
    with scratch.open("wb") as file:
        file.write(_encode(manifest))
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    sync_path(directory)


def at(seconds: int) -> datetime:
    """So many seconds after the beginning of 1970, in UTC, without saying so."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def name_of(hour: datetime) -> str:
    return hour.strftime("%Y-%m-%dT%H")


def name_of_number(number: int) -> str:
    """Of an hour that is so many after the beginning of 1970."""
    return name_of(at(number * 3600))


def hour_of(name: str) -> datetime:
    return datetime.strptime(name, "%Y-%m-%dT%H")


def truncated(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def in_utc(when: Moment | None) -> datetime | None:
    """Without a zone, as everything here."""
    return None if when is None else utc(when).replace(tzinfo=None)
