"""A table of the warehouse: its columns, each with its meaning, and the function of bronze that makes its rows."""

from __future__ import annotations

from calendar import timegm
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

from trunkline.spark.pipeline.settings import PipelineSettings

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


class Inputs(NamedTuple):
    """What a table is made of."""

    spark: SparkSession
    messages: DataFrame
    """Bronze messages of the hours whose rows are made anew."""
    traffic: DataFrame
    """The same, counted: see traffic.py."""
    nearby: DataFrame
    """The same, and what was placed up to the horizon before and after them: answers, ancestors, descendants."""
    fates: DataFrame
    """Bronze fates that are about any of these messages; a range may reach beyond them."""
    letters: DataFrame
    """Dead letters: subscriber, seq, at, topic, id, cause, reason, error_type, traceback, attempts."""
    orphans: DataFrame
    """Answers that nobody waited for: seq, id, request_id, topic, why, at."""
    upto: datetime
    """The time of the stream: the highest `accepted` so far. Nothing depends on when the pipeline runs."""
    settings: PipelineSettings
    channels: tuple[ChannelContract, ...]
    table: Callable[[str], DataFrame]
    """The rows of these hours of a table that was made before, in this run."""

    @property
    def topics(self) -> DataFrame:
        """Their topics, each once."""
        return self.traffic.select("topic").distinct()

    @property
    def upto_us(self) -> int:
        """For Spark, as a number: a time without a zone would be taken for one of this machine's, not UTC."""
        return seconds(self.upto) * 1_000_000 + self.upto.microsecond


class Table(NamedTuple):
    name: str
    layer: str
    about: str
    columns: tuple[Column, ...]
    build: Callable[[Inputs], DataFrame]
    needs: tuple[str, ...] = ()
    """The tables that it is made of, besides bronze."""

    @property
    def ddl(self) -> str:
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)

    def shape(self, rows: DataFrame) -> DataFrame:
        """The declared columns, in order and of their types."""
        return rows.select(*(_as(column) for column in self.columns))


def seconds(moment: datetime) -> int:
    """Since 1970, of a time in UTC that does not say so."""
    return timegm(moment.timetuple())


def _as(column: Column) -> Expression:
    return F.col(column.name).cast(column.type).alias(column.name)
