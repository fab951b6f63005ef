"""The options of `format("trunkline")` for reading, and the rows that they select."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from trunkline.errors import InvalidSettings
from trunkline.journal.range import FOREVER
from trunkline.moment import microseconds
from trunkline.settings import Group, build
from trunkline.spark.source.row_filter import Condition, RowFilter, topic_like
from trunkline.spark.source.spark_schema import KEYS


class RowKind(StrEnum):
    MESSAGES = "messages"
    FATES = "fates"


class RowOptions(Group, frozen=True, kw_only=True):
    """`first` and `last` are numbers, both included. `since` and `until` limit the time of a row, `until` excluded.

    For streams: `start` is where a new query begins: `beginning`, `end`, or the number of its first row; `max_rows`
    bounds a micro-batch.
    """

    may_be_zero = frozenset({"first", "last"})

    kind: RowKind = RowKind.MESSAGES
    topic: str = ">"
    first: int | None = None
    last: int | None = None
    since: str | None = None
    until: str | None = None
    skip_damaged: bool = False
    start: str = "beginning"
    max_rows: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind is RowKind.FATES and self.topic != ">":
            raise InvalidSettings("fates have no topic: leave out the option `topic`, or read messages")
        if self.start not in ("beginning", "end") and not self.start.isdecimal():
            raise InvalidSettings(f"start={self.start!r}: a stream starts at the beginning, the end, or a number")

    def row_filter(self) -> RowFilter:
        return row_filter(self.kind, self.first, self.last, self.topic, self.since, self.until)


class SourceOptions(RowOptions, frozen=True, kw_only=True):
    """Options for reading a journal."""

    journal: str = ""
    path: str = ""
    """The same, passed as `load(path)`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.journal or self.path):
            raise InvalidSettings('which journal? Give its directory: .option("journal", "/data/journal")')
        if not self.directory.is_absolute():
            raise InvalidSettings(
                f"journal={str(self.directory)!r}: give an absolute path, Spark's workers run in other processes"
            )

    @property
    def directory(self) -> Path:
        return Path(self.journal or self.path)


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """Raises InvalidSettings, which names the nearest known option if one is unknown."""
    return build(SourceOptions, dict(options))


def row_filter(
    kind: str,
    first: int | None,
    last: int | None,
    topic: str | None = None,
    since: str | None = None,
    until: str | None = None,
) -> RowFilter:
    """The selected rows; None means no condition."""
    conditions = topic_like(topic) if topic is not None else []
    key = KEYS[kind]
    conditions += [Condition(key, test, number) for test, number in ((">=", first), ("<=", last)) if number is not None]
    time, factor = ("timestamp_ns", 1000) if kind == RowKind.MESSAGES else ("time", 1)
    for test, text in ((">=", since), ("<", until)):
        if text is not None:
            # Times can go up to the year 9999, but a column of nanoseconds only up to 2262.
            conditions.append(Condition(time, test, max(-FOREVER, min(factor * microseconds(text), FOREVER))))
    return RowFilter(kind, tuple(conditions))
