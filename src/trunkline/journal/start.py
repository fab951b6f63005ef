"""The start of a subscription that reads from the journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trunkline.delivery.options import END, LAST
from trunkline.errors import InvalidSettings
from trunkline.journal.reader import Reader
from trunkline.moment import nanoseconds

Start = Callable[[Reader], tuple[int, Sequence[int]]]
"""Queries the journal for the start: the number to continue after, and the numbers of messages to deliver first."""


def start_of(start: int | str, last: int, pattern: str) -> tuple[int, Start | None]:
    """The position of a new cursor, and the query for it if the journal must be read."""
    if isinstance(start, int):
        return max(0, start - 1), None
    if start == END:
        return last, None
    if start == "beginning":
        return 0, None
    if start == LAST:
        return last, lambda reader: reader.last_of_each(pattern)
    try:
        since_ns = nanoseconds(start)
    except InvalidSettings:
        raise InvalidSettings(
            f'start={start!r}: a subscription starts at the "beginning", the "end", a sequence number, a time such as '
            '2026-11-16T10:00:00Z, or with the "last" message of each topic'
        ) from None
    return 0, lambda reader: (reader.last_before(since_ns), ())
