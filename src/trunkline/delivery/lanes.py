"""Lanes: a queue of messages or batches. The highest priority comes first; each priority is first in, first out."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from trunkline.message import NORMAL


class Ranked(Protocol):
    @property
    def priority(self) -> int: ...


T = TypeVar("T", bound=Ranked)


class Lanes(Generic[T]):
    """A queue per priority. Most messages have normal priority, so its lane is separate and is read directly."""

    __slots__ = ("_levels", "_others", "elsewhere", "normal")

    def __init__(self) -> None:
        self.normal: deque[T] = deque()
        """Never replaced: the fast paths keep a reference to it."""
        self._others: dict[int, deque[T]] = {}
        self._levels: list[int] = []
        self.elsewhere = 0
        """The number of items in lanes of other priorities."""

    def __len__(self) -> int:
        return len(self.normal) + self.elsewhere

    def __iter__(self) -> Iterator[T]:
        """The items, in the order in which they would be taken."""
        for level in self._levels:
            if level > NORMAL:
                yield from self._others[level]
        yield from self.normal
        for level in self._levels:
            if level < NORMAL:
                yield from self._others[level]

    @property
    def levels(self) -> list[int]:
        """The priorities of the waiting items, the highest first."""
        found = [level for level in self._levels if self._others[level]] if self.elsewhere else []
        if self.normal:
            found.append(NORMAL)
            found.sort(reverse=True)
        return found

    def put(self, message: T, *, front: bool = False) -> None:
        lane = self.normal
        if message.priority != NORMAL:
            lane = self._lane(message.priority)
            self.elsewhere += 1
        if front:
            lane.appendleft(message)
        else:
            lane.append(message)

    def _lane(self, priority: int) -> deque[T]:
        lane = self._others.get(priority)
        if lane is None:
            lane = self._others[priority] = deque()
            self._levels = sorted(self._others, reverse=True)
        return lane

    def pop(self) -> T | None:
        """Remove and return the oldest item of the highest priority."""
        if self.elsewhere:
            for level in self._levels:
                if level < NORMAL and self.normal:
                    break
                if self._others[level]:
                    return self._pop(level)
        return self.normal.popleft() if self.normal else None

    def pop_lowest(self, at_most: int) -> T | None:
        """Remove and return the oldest item of the lowest priority, unless that is above `at_most`."""
        below = (level for level in reversed(self._levels) if level < NORMAL and self._others[level])
        above = (level for level in reversed(self._levels) if level > NORMAL and self._others[level])
        lowest = next(below, NORMAL if self.normal else next(above, None))
        if lowest is None or lowest > at_most:
            return None
        return self.normal.popleft() if lowest == NORMAL else self._pop(lowest)

    def _pop(self, level: int) -> T:
        self.elsewhere -= 1
        return self._others[level].popleft()

    def clear(self) -> None:
        self.normal.clear()
        self._others.clear()
        self._levels = []
        self.elsewhere = 0
