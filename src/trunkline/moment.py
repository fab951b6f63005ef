"""Points in time as users write them: a datetime, a text in ISO 8601, or seconds since 1970.

A time without a zone is UTC, whatever the zone of the machine. Every time that Trunkline stores or shows is in UTC, so
a time that was shown can be used as input, and a call means the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

from trunkline.errors import InvalidSettings

Moment = datetime | float | str

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def utc(when: Moment) -> datetime:
    """A time as a datetime with the zone UTC. A text that is a number is seconds since 1970. Raises InvalidSettings."""
    with _named(when):
        found = _read(when)
        return found if isinstance(found, datetime) else EPOCH + timedelta(microseconds=round(found * 1_000_000))


def microseconds(when: Moment) -> int:
    """The microseconds since 1970. Raises InvalidSettings."""
    with _named(when):
        found = _read(when)
        return (found - EPOCH) // MICROSECOND if isinstance(found, datetime) else round(found * 1_000_000)


def nanoseconds(when: Moment) -> int:
    """The nanoseconds since 1970. Raises InvalidSettings."""
    with _named(when):
        found = _read(when)
        return (found - EPOCH) // MICROSECOND * 1000 if isinstance(found, datetime) else int(found * 1e9)


def _read(when: Moment) -> datetime | float:
    """A datetime in UTC, or seconds since 1970."""
    if isinstance(when, str):
        seconds = _number(when)
        when = datetime.fromisoformat(when) if seconds is None else seconds
    if not isinstance(when, datetime):
        return when
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


@contextmanager
def _named(when: Moment) -> Iterator[None]:
    try:
        yield
    except (ValueError, OverflowError):
        raise InvalidSettings(f"{when!r} is not a time: write 2026-11-16T10:00:00Z, or seconds since 1970") from None
