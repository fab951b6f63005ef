"""Hours and minutes of a moment, in UTC whatever the session's time zone is, and without asking a calendar."""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
HOUR_S = 3600
DAY_HOURS = 24


def minute_of(moment: str | Expression) -> Expression:
    return _cut(moment, MINUTE_US)


def hour_of(moment: str | Expression) -> Expression:
    return _cut(moment, HOUR_US)


def hour_number(hour: str | Expression) -> Expression:
    """Hours since 1970."""
    return F.floor(F.unix_seconds(_column(hour)) / HOUR_S).cast("bigint")


def hour_name(hour: str | Expression) -> Expression:
    """As directories are called: `2026-11-16T10`."""
    number = hour_number(hour)
    day = F.date_from_unix_date(F.floor(number / DAY_HOURS).cast("int")).cast("string")
    return F.concat(day, F.lit("T"), F.lpad(F.pmod(number, F.lit(DAY_HOURS)).cast("string"), 2, "0"))


def hour_from_name(name: str | Expression) -> Expression:
    """The hour of a directory. Spark can evaluate it for a directory, and so need not read those it is not about."""
    return F.to_timestamp(F.concat(_column(name), F.lit(":00:00Z")))


def _cut(moment: str | Expression, unit_us: int) -> Expression:
    micros = F.unix_micros(_column(moment))
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(unit_us)))


def _column(moment: str | Expression) -> Expression:
    return F.col(moment) if isinstance(moment, str) else moment
