"""The hour and minute of a time, by arithmetic: always in UTC, whatever the time zone of the session is."""

from __future__ import annotations

from pyspark.sql import Column as Expression
from pyspark.sql import functions as F

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
HOUR_S = 3600


def minute_of(moment: str | Expression) -> Expression:
    return _cut(moment, MINUTE_US)


def hour_of(moment: str | Expression) -> Expression:
    return _cut(moment, HOUR_US)


def hour_number(hour: str | Expression) -> Expression:
    """Hours since 1970."""
    return F.floor(F.unix_seconds(_column(hour)) / HOUR_S).cast("bigint")


def _cut(moment: str | Expression, unit_us: int) -> Expression:
    micros = F.unix_micros(_column(moment))
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(unit_us)))


def _column(moment: str | Expression) -> Expression:
    return F.col(moment) if isinstance(moment, str) else moment
