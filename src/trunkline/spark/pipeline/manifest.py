"""The manifest: how far a warehouse is, and which files of it count. Replacing it is what makes a run happen."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from trunkline.journal.database import sync_path
from trunkline.journal.sealed import File
from trunkline.spark.errors import WarehouseUnusable

FILE = "manifest.json"
LAYOUT = 1
HOUR = timedelta(hours=1)


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


class LeftOut(msgspec.Struct, frozen=True):
    """A file of the lake that could not be read, and was left out because somebody said so."""

    path: str
    first: int
    last: int
    why: str


class Manifest(msgspec.Struct, kw_only=True):
    layout: int = LAYOUT
    run: int = 0
    """Runs count up; what a run writes lies in directories with its number."""
    seq: int = 0
    """Messages up to this number are in the tables."""
    fate: int = 0
    upto_us: int = 0
    """The time of the stream, in microseconds since 1970."""
    watermark_s: float = 0.0
    """Rows of bronze are placed by this: it stays as it was in the first run."""
    bronze: dict[str, list[File]] = {}
    """The files of messages and fates, in order. They are as the lake had them, or would have."""
    hours: dict[str, MessageRange] = {}
    """Of the messages, by hour."""
    fate_hours: dict[str, MessageRange] = {}
    """Of the messages that the fates of an hour are about."""
    tables: dict[str, dict[str, list[int]]] = {}
    """By table and hour: the runs whose files count."""
    open: list[str] = []
    """Hours with requests that are neither answered nor given up."""
    replaced: list[str] = []
    """Directories that the last run has replaced: those who were reading then may still do so."""
    duplicates: int = 0
    late: int = 0
    left_out: list[LeftOut] = []

    @property
    def upto(self) -> datetime:
        return at(0) + timedelta(microseconds=self.upto_us)

    def copy(self) -> Manifest:
        return _decode(_encode(self))


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder(Manifest).decode


def load(directory: Path) -> Manifest:
    """Raises WarehouseUnusable if there is one that cannot be read; an empty one if there is none."""
    path = directory / FILE
    try:
        manifest = _decode(path.read_bytes())
    except FileNotFoundError:
        return Manifest()
    except (OSError, msgspec.DecodeError) as error:
        raise WarehouseUnusable(str(directory), f"{path.name} cannot be read: {error}") from error
    if manifest.layout > LAYOUT:
        raise WarehouseUnusable(str(directory), f"it is of layout {manifest.layout}, newer than this Trunkline knows")
    return manifest


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


def hour_of(name: str) -> datetime:
    return datetime.strptime(name, "%Y-%m-%dT%H")


def truncated(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
