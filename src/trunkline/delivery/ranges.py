"""Ranges of numbers: which messages a subscriber was sent, and which of them are still open. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class Ranges:
    """A set of numbers as ranges, in order. Adding at the end and taking from the front cost nearly nothing."""

    __slots__ = ("_begins", "_ends", "total")

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self.total = 0
        """How many numbers are in the set."""

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._begins)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._begins, self._ends, strict=True)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._begins, number) - 1
        return place >= 0 and number <= self._ends[place]

    def count(self, first: int, last: int) -> int:
        """How many numbers from `first` to `last` are in the set."""
        return sum(end - begin + 1 for begin, end in self.within(first, last))

    def within(self, first: int, last: int) -> list[tuple[int, int]]:
        """The ranges of numbers from `first` to `last` that are in the set."""
        start, stop = bisect_left(self._ends, first), bisect_right(self._begins, last)
        inside = zip(self._begins[start:stop], self._ends[start:stop], strict=True)
        return [(max(first, begin), min(last, end)) for begin, end in inside]

    def add(self, first: int, last: int) -> None:
        """Add numbers, none of which is in the set."""
        begins, ends = self._begins, self._ends
        self.total += last - first + 1
        if not ends or first > ends[-1] + 1:
            begins.append(first)
            ends.append(last)
        elif first == ends[-1] + 1:
            ends[-1] = last
        else:
            # Messages of another priority arrive in another order.
            place = bisect_left(begins, first)
            begins.insert(place, first)
            ends.insert(place, last)

    def take(self, first: int, last: int) -> list[tuple[int, int]]:
        """Remove the numbers from `first` to `last`. Returns the ranges that were in the set."""
        begins, ends = self._begins, self._ends
        start = bisect_left(ends, first)
        stop = bisect_right(begins, last)
        if start >= stop:
            return []
        if stop - start == 1 and first <= begins[start] and ends[start] <= last:
            begin, end = begins.pop(start), ends.pop(start)
            self.total -= end - begin + 1
            return [(begin, end)]
        found = [
            (max(first, begin), min(last, end)) for begin, end in zip(begins[start:stop], ends[start:stop], strict=True)
        ]
        left: list[tuple[int, int]] = []
        if begins[start] < first:
            left.append((begins[start], first - 1))
        if ends[stop - 1] > last:
            left.append((last + 1, ends[stop - 1]))
        begins[start:stop] = [begin for begin, _ in left]
        ends[start:stop] = [end for _, end in left]
        self.total -= sum(end - begin + 1 for begin, end in found)
        return found

    def take_first(self, first: int, last: int) -> bool:
        """Remove these numbers, if all of them are in the set and no lower number is. Otherwise returns False and
        removes none.
        """
        begins, ends = self._begins, self._ends
        if not begins or begins[0] != first or ends[0] < last:
            return False
        if ends[0] == last:
            del begins[0], ends[0]
        else:
            begins[0] = last + 1
        self.total -= last - first + 1
        return True

    def take_lowest(self, firsts: list[int], lasts: list[int]) -> bool:
        """Remove these ranges, if they are the lowest of the set. Otherwise returns False and removes none."""
        begins, ends, count = self._begins, self._ends, len(firsts)
        if begins[:count] != firsts or ends[:count] != lasts:
            return False
        del begins[:count], ends[:count]
        self.total -= sum(lasts) - sum(firsts) + count
        return True

    def clear(self) -> None:
        self._begins.clear()
        self._ends.clear()
        self.total = 0
