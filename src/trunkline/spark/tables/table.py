"""A table of the warehouse: its columns with their meanings, and the function that builds its rows from bronze."""

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
    """The type in Spark's DDL."""
    meaning: str


class ChannelContract(msgspec.Struct, frozen=True):
    """A channel of a hub: the pattern of its topics, and the JSON Schema of its messages."""

    name: str
    pattern: str
    schema: dict[str, Any] | None = None


class Held(NamedTuple):
    """Computed rows that are used more than once, and their number."""

    rows: DataFrame
    size: int


Hold = Callable[["DataFrame"], Held]


def checkpoint(rows: DataFrame) -> Held:
    kept = rows.localCheckpoint()
    return Held(kept, kept.count())


class Contents(NamedTuple):
    """A summary of the messages and fates of a step. It shows which tables have no rows."""

    topics: frozenset[str]
    types: frozenset[str]
    correlated: bool
    """Whether any message has a correlation id."""
    fates: frozenset[str]
    orphans: bool
    minutes: int
    """The highest number of minutes with messages in one hour."""
    channels: frozenset[str]
    """The names of channels that have a schema and messages."""
    unread: bool = False
    """Whether retention removed messages before they were read."""


class Inputs(NamedTuple):
    """The inputs from which a table is built."""

    spark: SparkSession
    messages: DataFrame
    """Bronze messages of the hours that are built."""
    traffic: DataFrame
    """Counts of these messages, see traffic.py."""
    nearby: DataFrame
    """These messages, and those up to the horizon before and after them: answers, ancestors, descendants."""
    wide: DataFrame
    """These messages, and those up to twice the horizon away: messages in `nearby` can refer to them."""
    related: DataFrame
    """The messages of `wide` that refer to others, and the requests among them, see related.py."""
    fates: DataFrame
    """Bronze fates that refer to any of `messages`. A range may extend beyond them."""
    letters: DataFrame
    """Dead letters: subscriber, seq, at, topic, id, cause, reason, error_type, traceback, attempts."""
    orphans: DataFrame
    """Answers for which no request was waiting: seq, id, request_id, topic, why, at."""
    unread: tuple[tuple[str, int, datetime], ...]
    """Messages that retention removed before they were read: topic, count, and the hour in which they are counted."""
    upto: datetime
    """The time of the stream: the highest `accepted` so far. The results do not depend on when the pipeline runs."""
    settings: PipelineSettings
    channels: tuple[ChannelContract, ...]
    table: Callable[[str], DataFrame]
    """The rows of another table for these hours. It was built earlier in the same run."""
    settled: Callable[[], DataFrame]
    """Counts of the rows of `deliveries` for these hours, see settled.py."""
    hold: Hold = checkpoint
    """Computes rows that are used more than once, and keeps the result."""

    @property
    def topics(self) -> DataFrame:
        """The distinct topics of `messages`."""
        return self.traffic.select("topic").distinct()

    def of_built_hours(self, rows: DataFrame) -> DataFrame:
        """The rows of the hours that are built. `related` and `wide` have others, too."""
        if self.wide is self.messages:
            return rows
        return rows.join(F.broadcast(self.traffic.select("hour").distinct()), "hour", "left_semi")

    @property
    def upto_us(self) -> int:
        """`upto` as a number for Spark: Spark would read a datetime without a zone as local time, not UTC."""
        return seconds(self.upto) * 1_000_000 + self.upto.microsecond


JOURNAL = Column("journal", "string", "the name of the journal it was read from")


class Table(msgspec.Struct, frozen=True):
    """The meaning of a row, and the columns. The last two, `hour` and `journal`, are the partition of a row."""

    name: str
    layer: str
    about: str
    own_columns: tuple[Column, ...]
    """All but `journal`."""

    @classmethod
    def plain(cls, name: str, columns: Sequence[tuple[str, str]]) -> Table:
        """A table for which only the names and types of columns are known."""
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
        """Select the declared columns, in order and with their types. `journal` is included if the rows have it."""
        wanted = self.columns if JOURNAL.name in rows.columns else self.own_columns
        return rows.select(*(_as(column) for column in wanted))


def _always(contents: Contents) -> bool:
    return True


class BuiltTable(Table, frozen=True, kw_only=True):
    """A table that is built from bronze, and from the tables that it `needs`."""

    needs: tuple[str, ...] = ()
    has_rows: Callable[[Contents], bool] = _always
    """Whether the table can have rows with these contents. If not, it is not built."""
    rules: tuple[str, ...] = ()
    """Further rules that are needed to compute the same rows independently."""


class QueryTable(BuiltTable, frozen=True):
    """A table that is built by a query of Spark."""

    build: Callable[[Inputs], DataFrame]


def seconds(moment: datetime) -> int:
    """Seconds since 1970 of a time in UTC, given without a time zone."""
    return timegm(moment.timetuple())


def _ddl(columns: Sequence[Column]) -> str:
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)


def _as(column: Column) -> Expression:
    return F.col(column.name).cast(column.type).alias(column.name)
