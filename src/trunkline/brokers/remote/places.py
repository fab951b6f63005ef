"""Places: the position of each publisher on each topic. From them a subscriber counts the messages it has missed.

Every client counts what it publishes on a topic, by priority, and its batches carry that count. The next batch that
arrives therefore shows how many messages are missing, whatever the cause. That includes a broker that crashed while it
held messages.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

MAX_PLACES = 10_000
"""The limit for one subscription, about 6 MB. The publishers that have been inactive for longest are forgotten
first."""


MAX_GAPS = 1000


class Gap(NamedTuple):
    """Messages of a publisher that never arrived: positions from `first` up to but not including `end`."""

    origin: int
    topic: str
    priority: int
    first: int
    end: int
    reason: str
    at_ns: int


class Places:
    """The places of one subscription. No I/O."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, str, int], int] = {}
        self._older: dict[tuple[int, str, int], int] = {}
        """Publishers that have published nothing since `_next` was started. When `_next` is full, it replaces this
        table."""
        self._gaps: deque[Gap] = deque(maxlen=MAX_GAPS)

    def miss(self, gap: Gap) -> None:
        """Record why messages never arrived."""
        self._gaps.append(gap)

    def gap(self, origin: int, topic: str, priority: int, position: int) -> Gap | None:
        """The gap that contains a message, if it is still remembered."""
        for each in self._gaps:
            if each[:3] == (origin, topic, priority) and each.first <= position < each.end:
                return each
        return None

    def passed(self, origin: int, topic: str, priority: int, position: int, count: int) -> int:
        """Note that `count` messages from `position` on arrived or were reported as dropped.

        Returns how many are missing before them.
        """
        if not origin:
            return 0
        key = (origin, topic, priority)
        expected = self._next.get(key)
        if expected is None:
            expected = self._older.get(key, position)
            if len(self._next) >= MAX_PLACES // 2:
                self._older, self._next = self._next, {}
        end = position + count
        self._next[key] = end if end > expected else expected
        return position - expected if position > expected else 0

    def overlap(self, origin: int, topic: str, priority: int, position: int, count: int) -> int:
        """How many of these messages were already passed, or counted as missing."""
        key = (origin, topic, priority)
        expected = self._next.get(key, self._older.get(key, position))
        return max(0, min(count, expected - position))
