"""A table of the warehouse: its columns, each with its meaning, and the function of bronze that makes its rows."""

from __future__ import annotations

from calendar import timegm
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from trunkline.spark.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BRONZE = "bronze"
SILVER = "silver"
GOLD = "gold"


class Column(NamedTuple):
    name: str
    type: str
    """As Spark's DDL has it."""
    meaning: str


class ChannelContract(msgspec.Struct, frozen=True):
    """What a hub said of a channel: the topics it is about, and the JSON Schema of what is published there."""

    name: str
    pattern: str
    schema: dict[str, Any] | None = None


class Held(NamedTuple):
    """Rows that are looked at more than once, and how many they are."""

    rows: DataFrame
    size: int


Hold = Callable[["DataFrame"], Held]


def checkpoint(rows: DataFrame) -> Held:
    kept = rows.localCheckpoint()
    return Held(kept, kept.count())


class Contents(NamedTuple):
    """What there is in the messages and fates that a run is about, as far as tables are made of it."""

    topics: frozenset[str]
    types: frozenset[str]
    correlated: bool
    """Whether any message has a correlation id."""
    fates: frozenset[str]
    orphans: bool
    minutes: int
    """Of the hour with the most, in how many of its minutes there are messages."""
    channels: frozenset[str]
    """The names of those with a schema that have messages."""
    unread: bool = False
    """Whether retention removed any before they were read."""


class Inputs(NamedTuple):
    """What a table is made of."""

    spark: SparkSession
    messages: DataFrame
    """Bronze messages of the hours whose rows are made anew."""
    traffic: DataFrame
    """The same, counted: see traffic.py."""
    nearby: DataFrame
    """The same, and what was placed up to the horizon before and after them: answers, ancestors, descendants."""
    wide: DataFrame
    """The same, up to twice the horizon: what those nearby refer to."""
    fates: DataFrame
    """Bronze fates that are about any of these messages; a range may reach beyond them."""
    letters: DataFrame
    """Dead letters: subscriber, seq, at, topic, id, cause, reason, error_type, traceback, attempts."""
    orphans: DataFrame
    """Answers that nobody waited for: seq, id, request_id, topic, why, at."""
    unread: tuple[tuple[str, int, datetime], ...]
    """Messages that retention removed before they were read: topic, how many, and the hour in which that counts."""
    upto: datetime
    """The time of the stream: the highest `accepted` so far. Nothing depends on when the pipeline runs."""
    settings: PipelineSettings
    channels: tuple[ChannelContract, ...]
    table: Callable[[str], DataFrame]
    """The rows of these hours of a table that was made before, in this run."""
    hold: Hold = checkpoint
    """Has rows made now that are needed more than once."""

    @property
    def topics(self) -> DataFrame:
        """Their topics, each once."""
        return self.traffic.select("topic").distinct()

    @property
    def upto_us(self) -> int:
        """For Spark, as a number: a time without a zone would be taken for one of this machine's, not UTC."""
        return seconds(self.upto) * 1_000_000 + self.upto.microsecond


JOURNAL = Column("journal", "string", "the name of the journal it was read from")


class Table(msgspec.Struct, frozen=True):
    """What a row is, and its columns. The last two say where it lies: its hour, and its journal."""

    name: str
    layer: str
    about: str
    own_columns: tuple[Column, ...]
    """All but `journal`."""

    @classmethod
    def plain(cls, name: str, columns: Sequence[tuple[str, str]]) -> Table:
        """One of whose columns only names and types are known."""
        return cls(name, SILVER, "", tuple(Column(each, kind, "") for each, kind in columns))

    @property
    def columns(self) -> tuple[Column, ...]:
        return (*self.own_columns, JOURNAL)

    @property
    def ddl(self) -> str:
        return _ddl(self.columns)

    @property
    def own_ddl(self) -> str:
        return _ddl(self.own_columns)

    def shape(self, rows: DataFrame) -> DataFrame:
        """The declared columns, in order and of their types; with the journal if it is there already."""
        wanted = self.columns if JOURNAL.name in rows.columns else self.own_columns
        return rows.select(*(_as(column) for column in wanted))


def _always(contents: Contents) -> bool:
    return True


class BuiltTable(Table, frozen=True):
    """One that is made of bronze, and of the tables that it `needs`."""

    build: Callable[[Inputs], DataFrame]
    needs: tuple[str, ...] = ()
    has_rows: Callable[[Contents], bool] = _always
    """Whether there is anything that its rows could be made of; otherwise Spark is not asked."""
    rules: tuple[str, ...] = ()
    """What else somebody needs to know who wants to make the same rows."""


def seconds(moment: datetime) -> int:
    """Since 1970, of a time in UTC that does not say so."""
    return timegm(moment.timetuple())


def _ddl(columns: Sequence[Column]) -> str:
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)


def _as(column: Column) -> Expression:
    return F.col(column.name).cast(column.type).alias(column.name)
