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


def day_of(hour: str | Expression) -> Expression:
    """The date."""
    return F.date_from_unix_date(F.floor(hour_number(hour) / DAY_HOURS).cast("int"))


def hour_of_day(hour: str | Expression) -> Expression:
    return F.pmod(hour_number(hour), F.lit(DAY_HOURS)).cast("int")


def _cut(moment: str | Expression, unit_us: int) -> Expression:
    micros = F.unix_micros(_column(moment))
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(unit_us)))


def _column(moment: str | Expression) -> Expression:
    return F.col(moment) if isinstance(moment, str) else moment
