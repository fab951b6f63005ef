"""The books of a subscriber: its counters, and the fate of each message, by number. Pure.

Delivered messages are kept as ranges of numbers, others as rows; a row covers a range if its messages are alike. Both
are bounded: the counters are always exact, and the ranges and rows answer `explain` for recent messages.

For a remote subscriber, a message that was sent is not yet delivered: its number is open until the subscriber has
reported on it. When the subscriber is gone, open messages are lost with it. If it reconnects, its report replaces that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

from trunkline.delivery.fates import Account, Fate, Outcome
from trunkline.delivery.ranges import Ranges
from trunkline.message import Message
from trunkline.topic import BROADCAST, ENDPOINT_PREFIX, matches

MERGE_NS: Final = 1_000_000_000
MAX_ROWS = 10_000
MAX_ROWS_ELSEWHERE: Final = 1000
"""Of each of the many subscribers of a hub."""
MAX_ROWS_LEFT: Final = 100_000
"""Of all subscribers together that left and are remembered: about 20 MB."""
MAX_OPEN = 65_536
"""Ranges that may be open. The oldest beyond it count as dropped."""
LOST: Final = "lost with its subscriber"
UNREPORTED: Final = "its subscriber has not reported on it, and has received too much since"

_first = attrgetter("first")
_last = attrgetter("last")


class FateEntry:
    """What became of the messages of this subscriber from `first` to `last`."""

    __slots__ = ("at_ns", "fate", "first", "last", "reason", "since_ns")

    def __init__(self, first: int, last: int, fate: Fate, reason: str, at_ns: int) -> None:
        self.first = first
        self.last = last
        self.fate = fate
        self.reason = reason
        self.since_ns = at_ns
        self.at_ns = at_ns

    def part(self, first: int, last: int) -> FateEntry:
        return FateEntry(first, last, self.fate, self.reason, self.at_ns)


class Books:
    """Nothing else writes counters or fates of a subscriber, but for loops marked as twins, which count for speed.

    `exact` keeps a row for each delivered message as well: for a subscriber that gets only some of what its pattern
    matches (a group, a filter, a rule), a range would claim what went to others.
    """

    __slots__ = (
        "_forgotten",
        "_max_rows",
        "accepted",
        "covered",
        "delivered",
        "exact",
        "open",
        "rows",
        "running",
        "settled",
        "spans",
    )

    def __init__(self, max_rows: int | None = None) -> None:
        self.accepted = 0
        self.delivered = 0
        self.covered = 0
        """How many of the delivered have their range. A loop that counts one by one records its range at its end."""
        self.settled: dict[Fate, int] = dict.fromkeys((Fate.FILTERED, Fate.EXPIRED, Fate.DROPPED, Fate.DEAD), 0)
        self.open = Ranges()
        """Handed over to a subscriber elsewhere, and not reported on."""
        self.exact = False
        self.running: list[int] = []
        """The first number of each batch that is being taken one by one."""
        self.spans: list[FateEntry] = []
        """Delivered: all of this subscriber from `first` to `last` that has no row of its own."""
        self.rows: list[FateEntry] = []
        """In the order of their numbers. They do not overlap."""
        self._forgotten = 0
        self._max_rows = MAX_ROWS if max_rows is None else max_rows

    @property
    def size(self) -> int:
        """Rows and ranges: a measure of the memory that they take."""
        return len(self.rows) + len(self.spans)

    def limit_rows(self, most: int) -> None:
        """Before anything is in them."""
        self._max_rows = most

    # Delivery

    def deliver(self, first: int, last: int, count: int, now_ns: int) -> None:
        """So many were taken, all of its messages from `first` to `last`."""
        self.delivered += count
        self.covered += count
        self.cover(first, last, now_ns)

    def deliver_one(self, number: int, now_ns: int) -> None:
        self.delivered += 1
        self.covered += 1
        if self.exact:
            self._put(number, number, Fate.DELIVERED, "", now_ns)
        else:
            if self.rows:
                self.cut(number, number)
            self.cover(number, number, now_ns)

    def deliver_each(self, numbers: Sequence[int], now_ns: int) -> None:
        """As `deliver_one` for each."""
        self.delivered += len(numbers)
        self.covered += len(numbers)
        at, count = 0, len(numbers)
        while at < count:
            first = last = numbers[at]
            at += 1
            while at < count and numbers[at] == last + 1:
                last += 1
                at += 1
            if self.exact:
                self._put(first, last, Fate.DELIVERED, "", now_ns)
            else:
                if self.rows:
                    self.cut(first, last)
                self.cover(first, last, now_ns)

    def cover(self, first: int, last: int, now_ns: int) -> None:
        """Record as delivered what was counted before: what was taken first and last, in whatever order that is."""
        if last < first:
            first, last = last, first
        if self.spans:
            span = self.spans[-1]
            # Batches of one second share a range: a subscriber in step with its publisher would fill the books at once.
            if 0 <= now_ns - span.since_ns < MERGE_NS:
                if first < span.first:
                    span.first = first
                if last > span.last:
                    span.last = last
                span.at_ns = now_ns
                return
        self.spans.append(FateEntry(first, last, Fate.DELIVERED, "", now_ns))
        if len(self.spans) > self._max_rows:
            del self.spans[0]

    # Other ends

    def end(self, first: int, last: int, fate: Fate, reason: str, now_ns: int) -> None:
        """How these ended. None of them is open."""
        count = last - first + 1
        if fate is Fate.DELIVERED:
            self.deliver(first, last, count, now_ns)
        else:
            self.settled[fate] += count
            self._put(first, last, fate, reason, now_ns)

    def miss(self, count: int) -> None:
        """So many were for this subscriber and never came. Their numbers are not known."""
        self.accepted += count
        self.settled[Fate.DROPPED] += count

    def drop_elsewhere(self, count: int, ranges: Sequence[tuple[int, int]], reason: str, now_ns: int) -> None:
        """The hub dropped so many that it had not counted as missing before, and says which."""
        self.miss(count)
        for first, last in ranges:
            self._put(first, last, Fate.DROPPED, reason, now_ns)

    def reopen(self) -> None:
        """A message that died here is in flight again."""
        self.settled[Fate.DEAD] -= 1

    def _put(self, first: int, last: int, fate: Fate, reason: str, now_ns: int) -> None:
        rows = self.rows
        row = rows[-1] if rows else None
        if row is None or first > row.last + 1:
            rows.append(FateEntry(first, last, fate, reason, now_ns))
        elif first == row.last + 1:
            if fate is row.fate and reason == row.reason and 0 <= now_ns - row.since_ns < MERGE_NS:
                row.last = last
                row.at_ns = now_ns
                return
            rows.append(FateEntry(first, last, fate, reason, now_ns))
        else:
            self.cut(first, last)
            rows.insert(bisect_left(rows, first, key=_first), FateEntry(first, last, fate, reason, now_ns))
        if len(rows) > self._max_rows:
            self._forget_lowest()

    def cut(self, first: int, last: int) -> list[FateEntry]:
        """Forget what the rows say of these. Returns the rows that said something."""
        rows = self.rows
        start = bisect_left(rows, first, key=_last)
        stop = bisect_right(rows, last, start, key=_first)
        found = rows[start:stop]
        if found:
            kept = []
            if found[0].first < first:
                kept.append(found[0].part(found[0].first, first - 1))
            if found[-1].last > last:
                kept.append(found[-1].part(last + 1, found[-1].last))
            rows[start:stop] = kept
            if len(rows) > self._max_rows:
                self._forget_lowest()
        return found

    def _forget_lowest(self) -> None:
        self._forgotten = max(self._forgotten, self.rows.pop(0).last)

    # A subscriber elsewhere

    def hand(self, first: int, last: int, now_ns: int) -> None:
        """These are on their way."""
        self.open.add(first, last)
        if len(self.open) > MAX_OPEN:
            oldest = next(iter(self.open))
            for begin, end in self.open.take(*oldest):
                self.end(begin, end, Fate.DROPPED, UNREPORTED, now_ns)

    def report_next(self, first: int, last: int, now_ns: int) -> bool:
        """The subscriber says that these were delivered, which are the oldest it has not reported on.

        That is what nearly all reports say. False if they are others: then `report` is to be asked, and nothing has
        happened.
        """
        if not self.open.take_first(first, last):
            return False
        self.deliver(first, last, last - first + 1, now_ns)
        return True

    def report_in_order(self, ranges: Iterable[tuple[int, int]], now_ns: int) -> int:
        """As `report_next`, of several ranges, up to the first that is not the oldest. How many were taken.

        They have gaps if other subscribers got what is in between, as with requests and answers in turn.
        """
        taken = count = begin = end = 0
        for first, last in ranges:
            if not self.open.take_first(first, last):
                break
            begin, end = begin or first, last
            count += last - first + 1
            taken += 1
        if taken:
            self.deliver(begin, end, count, now_ns)
        return taken

    def report(self, first: int, last: int, fate: Fate, reason: str, now_ns: int) -> list[tuple[int, int]]:
        """The subscriber says how these ended. Returns those that count: handed to it, and not reported on before.

        What was lost, or dead and given again, may still end otherwise.
        """
        if fate is Fate.IN_FLIGHT:
            # It has come again, and still has them.
            found = self._open_again(first, last, dead=False)
            for begin, end in found:
                self.open.add(begin, end)
            return found
        found = self.open.take(first, last)
        if sum(end - begin + 1 for begin, end in found) < last - first + 1:
            found += self._open_again(first, last)
        for begin, end in found:
            self.end(begin, end, fate, reason, now_ns)
        return found

    def _open_again(self, first: int, last: int, *, dead: bool = True) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for row in self.cut(first, last):
            begin, end = max(first, row.first), min(last, row.last)
            if row.reason == LOST or (dead and row.fate is Fate.DEAD):
                found.append((begin, end))
                self.settled[row.fate] -= end - begin + 1
            else:
                self._put(begin, end, row.fate, row.reason, row.at_ns)
        return found

    def add_handed(self, first: int, last: int) -> None:
        """These were handed over before these books were begun, unless they are in them."""
        for number in range(first, last + 1):
            if not self.has(number, number):
                self.accepted += 1
                self.open.add(number, number)

    def revive(self, number: int, now_ns: int) -> None:
        """A message that died here before, perhaps longer ago than is known, is given to its subscriber again."""
        if self.fate_of(number) is None:
            self.accepted += 1
            self.end(number, number, Fate.DEAD, "it died before", now_ns)

    def lose(self, now_ns: int) -> list[tuple[int, int]]:
        """The subscriber is gone: what it had not reported on."""
        lost = list(self.open)
        self.open.clear()
        for first, last in lost:
            self.end(first, last, Fate.DROPPED, LOST, now_ns)
        return lost

    # What they tell

    def has(self, first: int, last: int) -> bool:
        """Whether it was offered all of these, as far as that is still known."""
        missing = last - first + 1 - self.open.count(first, last)
        if missing:
            for row in (*self.rows, *self.spans):
                missing -= max(0, min(last, row.last) - max(first, row.first) + 1)
        return missing <= 0

    def fate_of(self, number: int) -> tuple[Fate, str, int] | None:
        """Of a message that its pattern matches; None if it was not offered, or longer ago than is known."""
        if self.open.total and number in self.open:
            return Fate.IN_FLIGHT, "handed over; its subscriber has not reported on it", 0
        rows = self.rows
        place = bisect_left(rows, number, key=_last)
        if place < len(rows) and rows[place].first <= number:
            row = rows[place]
            return row.fate, row.reason, row.at_ns
        if self.exact or number <= self._forgotten:
            return None
        if any(number >= first for first in self.running):
            return Fate.DELIVERED, "", 0
        for span in reversed(self.spans):
            if span.first <= number <= span.last:
                return Fate.DELIVERED, "", span.at_ns
        return None

    def outcome_of(self, name: str, number: int) -> Outcome | None:
        known = self.fate_of(number)
        return None if known is None else Outcome(name, *known)

    def account(self, in_flight: int = 0) -> Account:
        """`in_flight` were accepted, and are neither handed over nor settled."""
        return Account(
            accepted=self.accepted,
            delivered=self.delivered,
            filtered=self.settled[Fate.FILTERED],
            expired=self.settled[Fate.EXPIRED],
            dropped=self.settled[Fate.DROPPED],
            dead=self.settled[Fate.DEAD],
            in_flight=self.open.total + in_flight,
        )


class Leaver:
    """What is kept of a subscriber elsewhere that is gone: its books."""

    __slots__ = ("books", "name", "pattern")

    def __init__(self, name: str, pattern: str, books: Books) -> None:
        self.name = name
        self.pattern = pattern
        self.books = books

    def account(self) -> Account:
        return self.books.account()

    def outcome_of(self, message: Message) -> Outcome | None:
        return self.books.outcome_of(self.name, message.seq) if reaches(message.topic, self.pattern) else None


def reaches(topic: str, pattern: str) -> bool:
    """Whether a subscription to the pattern gets the topic, links apart: an endpoint also gets broadcasts."""
    return matches(pattern, topic) or (topic == BROADCAST and pattern.startswith(ENDPOINT_PREFIX))
