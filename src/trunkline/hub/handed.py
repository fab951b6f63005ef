"""Which messages a subscription was sent: only of those may its client say what became of them. Pure."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import Final

MAX_RANGES: Final = 65_536
"""Of one subscription: 24 bytes each. Beyond it the oldest quarter is forgotten."""
MAX_LEFT: Final = 1000


class Handed:
    """Numbers as ranges, in order. Asking costs the logarithm of their number, adding at the end nearly nothing."""

    __slots__ = ("_begins", "_ends", "_totals")

    def __init__(self) -> None:
        self._begins = array("q")
        self._ends = array("q")
        self._totals = array("q")
        """How many numbers are in each range and in those before it. Only differences count."""

    def __len__(self) -> int:
        """Ranges."""
        return len(self._begins)

    def add(self, first: int, last: int) -> None:
        """These were sent. None of them was before."""
        begins, ends, totals = self._begins, self._ends, self._totals
        count = last - first + 1
        if ends and first == ends[-1] + 1:
            ends[-1] = last
            totals[-1] += count
        elif not ends or first > ends[-1]:
            begins.append(first)
            ends.append(last)
            totals.append((totals[-1] if totals else 0) + count)
            if len(begins) > MAX_RANGES:
                for column in (begins, ends, totals):
                    del column[: MAX_RANGES // 4]
        else:
            # Of another priority, they are in another order.
            place = bisect_left(begins, first)
            before = totals[place - 1] if place else totals[0] - (ends[0] - begins[0] + 1)
            begins.insert(place, first)
            ends.insert(place, last)
            totals.insert(place, before)
            for at in range(place, len(totals)):
                totals[at] += count

    def count(self, first: int, last: int) -> int:
        """How many of these were sent."""
        return self._upto(last) - self._upto(first - 1) if first <= last else 0

    def _upto(self, number: int) -> int:
        """How many up to this one, and a constant."""
        place = bisect_right(self._begins, number) - 1
        if place < 0:
            return self._totals[0] - (self._ends[0] - self._begins[0] + 1) if self._totals else 0
        return self._totals[place] - max(0, self._ends[place] - number)


class Left:
    """What subscriptions were sent whose connection has ended: their client may come again, and report on it."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, int, str], Handed] = OrderedDict()

    def put(self, origin: int, subscription: int, pattern: str, handed: Handed) -> None:
        if origin and len(handed):
            self._kept[origin, subscription, pattern] = handed
            if len(self._kept) > MAX_LEFT:
                self._kept.popitem(last=False)

    def take(self, origin: int, subscription: int, pattern: str) -> Handed:
        """What it was sent before; nothing, if it was not here."""
        return self._kept.pop((origin, subscription, pattern), None) or Handed()
