"""Lanes: messages by priority, the highest first, first in first out within one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from trunkline.message import NORMAL, Message


class Lanes:
    """A queue per priority. Most messages have the normal one, so its lane stands apart and is read directly."""

    __slots__ = ("_levels", "_others", "elsewhere", "normal")

    def __init__(self) -> None:
        self.normal: deque[Message] = deque()
        """Never replaced: the fast paths keep it."""
        self._others: dict[int, deque[Message]] = {}
        self._levels: list[int] = []
        self.elsewhere = 0
        """How many wait in lanes of another priority."""

    def __len__(self) -> int:
        return len(self.normal) + self.elsewhere

    def __iter__(self) -> Iterator[Message]:
        """In the order they would be taken."""
        for level in self._levels:
            if level > NORMAL:
                yield from self._others[level]
        yield from self.normal
        for level in self._levels:
            if level < NORMAL:
                yield from self._others[level]

    def put(self, message: Message, *, front: bool = False) -> None:
        lane = self.normal
        if message.priority != NORMAL:
            lane = self._lane(message.priority)
            self.elsewhere += 1
        if front:
            lane.appendleft(message)
        else:
            lane.append(message)

    def _lane(self, priority: int) -> deque[Message]:
        lane = self._others.get(priority)
        if lane is None:
            lane = self._others[priority] = deque()
            self._levels = sorted(self._others, reverse=True)
        return lane

    def pop(self) -> Message | None:
        """The oldest of the highest priority."""
        if self.elsewhere:
            for level in self._levels:
                if level < NORMAL and self.normal:
                    break
                if self._others[level]:
                    return self._pop(level)
        return self.normal.popleft() if self.normal else None

    def pop_lowest(self, at_most: int) -> Message | None:
        """The oldest of the lowest priority, unless that is above `at_most`."""
        below = (level for level in reversed(self._levels) if level < NORMAL and self._others[level])
        above = (level for level in reversed(self._levels) if level > NORMAL and self._others[level])
        lowest = next(below, NORMAL if self.normal else next(above, None))
        if lowest is None or lowest > at_most:
            return None
        return self.normal.popleft() if lowest == NORMAL else self._pop(lowest)

    def _pop(self, level: int) -> Message:
        self.elsewhere -= 1
        return self._others[level].popleft()

    def clear(self) -> None:
        self.normal.clear()
        self._others.clear()
        self._levels = []
        self.elsewhere = 0
