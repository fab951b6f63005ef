"""Places: the position of each publisher on each topic. From them a subscriber counts the messages it has missed.

Every client counts what it publishes on a topic, by priority, and its batches carry that count. So the next batch that
arrives shows how many messages did not, whatever the cause, including a broker that died while it held messages.
"""

from __future__ import annotations

MAX_PLACES = 10_000
"""Of one subscription: at most 6 MB. Who has published nothing for longest is forgotten first."""


class Places:
    """Pure. Of one subscription."""

    def __init__(self) -> None:
        self._next: dict[tuple[int, str, int], int] = {}
        self._older: dict[tuple[int, str, int], int] = {}
        """Of those who have not published since `_next` was begun. When that is full it takes this one's place."""

    def passed(self, origin: int, topic: str, priority: int, position: int, count: int) -> int:
        """So many messages from `position` on are here, or were dropped by name; how many before them are missing."""
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
        """How many of these were passed, or counted as missing, before."""
        key = (origin, topic, priority)
        expected = self._next.get(key, self._older.get(key, position))
        return max(0, min(count, expected - position))
