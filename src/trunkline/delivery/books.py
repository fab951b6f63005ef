"""The books of a subscriber: its counters, and the fate of each message, by number. Pure.

Delivered messages are kept as ranges of numbers, others as rows. A row covers consecutive messages with the same fate
and reason. Both are bounded: the counters are always exact, but the ranges and rows answer `explain` only for recent
messages.

A message that was sent to a remote subscriber is not yet delivered: its number is open until the subscriber reports its
fate. When the subscriber is gone, its open messages count as lost. If it reconnects, its reports replace that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from trunkline.delivery.fates import Account, Fate, Outcome
from trunkline.delivery.ranges import Ranges
from trunkline.message import Message
from trunkline.topic import BROADCAST, ENDPOINT_PREFIX, matches

MERGE_NS: Final = 1_000_000_000
MAX_ROWS = 10_000
MAX_ROWS_ELSEWHERE: Final = 1000
"""The limit for each remote subscriber of a hub."""
MAX_ROWS_LEFT: Final = 100_000
"""The limit for all remembered subscribers that left, together: about 20 MB."""
MAX_OPEN = 65_536
"""The maximum number of open ranges. Beyond it, the oldest count as dropped."""
LOST: Final = "lost with its subscriber"
AWAY: Final = "its subscriber was disconnected when it was published"
UNREPORTED: Final = "its subscriber has not reported on it, and has received too many messages since"

_first = attrgetter("first")
_last = attrgetter("last")


class FateEntry:
    """The fate of this subscriber's messages from `first` to `last`."""

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
    """The counters and fates of a subscriber. Nothing else writes them, except loops that update the counters directly
    for speed.

    With `exact`, delivered messages have rows, too. This is for a subscriber that gets only some of the messages that
    its pattern matches (a group, a filter, a rule): a range would include messages that went to others.
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
        """The number of delivered messages that are recorded. A loop that counts one by one records its range at its
        end."""
        self.settled: dict[Fate, int] = dict.fromkeys((Fate.FILTERED, Fate.EXPIRED, Fate.DROPPED, Fate.DEAD), 0)
        self.open = Ranges()
        """The messages that were sent to a remote subscriber and are not reported yet."""
        self.exact = False
        self.running: list[int] = []
        """The first number of each batch that is being taken one by one."""
        self.spans: list[FateEntry] = []
        """Delivered messages.

        Each entry covers all messages of this subscriber from `first` to `last` that have no row.
        """
        self.rows: list[FateEntry] = []
        """The fates that are kept as rows, sorted by number. Rows do not overlap."""
        self._forgotten = 0
        self._max_rows = MAX_ROWS if max_rows is None else max_rows

    @property
    def size(self) -> int:
        """The number of rows and ranges: a measure of their memory."""
        return len(self.rows) + len(self.spans)

    def limit_rows(self, most: int) -> None:
        """Set the maximum number of rows, before anything is recorded."""
        self._max_rows = most

    # Delivery

    def deliver(self, first: int, last: int, count: int, now_ns: int) -> None:
        """Record `count` delivered messages: all messages of this subscriber from `first` to `last`."""
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
        """Like `deliver_one` for each."""
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
        """Record the range of messages that were already counted as delivered. The two ends may be in any order."""
        if last < first:
            first, last = last, first
        if self.spans:
            span = self.spans[-1]
            # Deliveries within one second share a range: a subscriber that takes each message as it is published would
            # soon fill the books.
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

    # Other fates

    def end(self, first: int, last: int, fate: Fate, reason: str, now_ns: int) -> None:
        """Record the fate of these messages. None of them may be open."""
        count = last - first + 1
        if fate is Fate.DELIVERED:
            self.deliver(first, last, count, now_ns)
        else:
            self.settled[fate] += count
            self._put(first, last, fate, reason, now_ns)

    def miss(self, count: int) -> None:
        """Count messages that were for this subscriber and never arrived. Their numbers are not known."""
        self.accepted += count
        self.settled[Fate.DROPPED] += count

    def drop_elsewhere(self, count: int, ranges: Sequence[tuple[int, int]], reason: str, now_ns: int) -> None:
        """Record messages that the hub dropped. `count` is the number of those that `miss` has not counted before."""
        self.miss(count)
        for first, last in ranges:
            self._put(first, last, Fate.DROPPED, reason, now_ns)

    def reopen(self) -> None:
        """Count a dead message as in flight again, because it was redelivered."""
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
        """Remove these numbers from the rows. Returns the rows that contained some of them, as they were."""
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

    # Remote subscribers

    def hand(self, first: int, last: int, now_ns: int) -> None:
        """Record that these messages were sent to the subscriber. They are open until it reports their fates."""
        self.open.add(first, last)
        if self.rows and first <= self.rows[-1].last:
            # It was stored while the subscriber was away, and routed after it had reconnected.
            self.cut(first, last)
        if self.open.total > MAX_OPEN and len(self.open) > MAX_OPEN:
            oldest = next(iter(self.open))
            for begin, end in self.open.take(*oldest):
                self.end(begin, end, Fate.DROPPED, UNREPORTED, now_ns)

    def report_next(self, first: int, last: int, now_ns: int) -> bool:
        """Record a report that these messages were delivered, if they are the oldest open messages.

        Nearly all reports are of this kind. Otherwise this returns False and changes nothing; the caller then uses
        `report`.
        """
        if not self.open.take_first(first, last):
            return False
        self.deliver(first, last, last - first + 1, now_ns)
        return True

    def report_in_order(self, firsts: list[int], lasts: list[int], now_ns: int) -> bool:
        """Like `report_next`, for several ranges.

        There are gaps between them if other subscribers got the messages in between, as with alternating requests and
        answers.
        """
        before = self.open.total
        if not firsts or not self.open.take_lowest(firsts, lasts):
            return False
        self.deliver(firsts[0], lasts[-1], before - self.open.total, now_ns)
        return True

    def report(self, first: int, last: int, fate: Fate, reason: str, now_ns: int) -> list[tuple[int, int]]:
        """Record the reported fate of these messages. Returns the ranges that were sent to it and not reported before.

        A message that was lost, or was dead and then redelivered, can still get another fate.
        """
        if fate is Fate.IN_FLIGHT:
            # The subscriber has reconnected, and still has them.
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
        """Add messages that were sent before these books existed. Those that are already recorded are skipped."""
        for number in range(first, last + 1):
            if not self.has(number, number):
                self.accepted += 1
                self.open.add(number, number)

    def revive(self, number: int, now_ns: int) -> None:
        """Record that a dead message is redelivered.

        If the books no longer contain it, it is first recorded as dead again.
        """
        if self.fate_of(number) is None:
            self.accepted += 1
            self.end(number, number, Fate.DEAD, "it is already a dead letter", now_ns)

    def lose(self, now_ns: int) -> list[tuple[int, int]]:
        """Record the open messages as lost, because the subscriber is gone. Returns their ranges."""
        lost = list(self.open)
        self.open.clear()
        for first, last in lost:
            self.end(first, last, Fate.DROPPED, LOST, now_ns)
        return lost

    def away(self, first: int, last: int, now_ns: int) -> None:
        """Record that the subscriber was disconnected while these messages were published. They are not counted: only
        some of them may match its pattern.
        """
        self._put(first, last, Fate.DROPPED, AWAY, now_ns)

    def without_fate(self, numbers: Ranges) -> Ranges:
        """Those of the numbers that have no fate here, and are not open. Removes the others from `numbers`."""
        for first, last in self.open:
            numbers.take(first, last)
        for entry in (*self.rows, *self.spans):
            if entry.reason != AWAY:
                numbers.take(entry.first, entry.last)
        return numbers

    # Queries

    def has(self, first: int, last: int) -> bool:
        """Whether the subscriber was offered all of these messages, as far as the books still contain them."""
        missing = last - first + 1 - self.open.count(first, last)
        if missing:
            for row in (*self.rows, *self.spans):
                if row.reason == AWAY:
                    continue
                missing -= max(0, min(last, row.last) - max(first, row.first) + 1)
        return missing <= 0

    def fate_of(self, number: int) -> tuple[Fate, str, int] | None:
        """The fate, reason and time of a message that matches the pattern; None if it was not offered, or is no longer
        known.
        """
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
        """The counters. `in_flight` is the number of accepted messages that are neither handed over nor settled."""
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
    """The books of a remote subscriber that is gone."""

    __slots__ = ("after", "books", "left", "name", "pattern")

    def __init__(self, name: str, pattern: str, books: Books, left: int = 0, after: int = 0) -> None:
        self.left = left
        """The number of the last message before it was gone."""
        self.after = after
        """It was offered all messages up to this number. Some of those that follow were not stored yet."""
        self.name = name
        self.pattern = pattern
        self.books = books

    def account(self) -> Account:
        return self.books.account()

    def outcome_of(self, message: Message) -> Outcome | None:
        return self.books.outcome_of(self.name, message.seq) if reaches(message.topic, self.pattern) else None


def reaches(topic: str, pattern: str) -> bool:
    """Whether a subscription to the pattern gets the topic, apart from links. An endpoint also gets broadcasts."""
    return matches(pattern, topic) or (topic == BROADCAST and pattern.startswith(ENDPOINT_PREFIX))
