"""The books of a subscriber elsewhere: what it was offered and handed, and what it has said became of it. Pure.

Handed over is not delivered: a number is open until its subscriber has reported on it. When the subscriber is gone,
what is open is lost with it; should it come again after all, what it says then counts.
"""

from __future__ import annotations

from collections import deque

from trunkline.delivery.fates import MERGE_NS, Account, Fate, Outcome
from trunkline.delivery.ranges import Ranges
from trunkline.message import Message
from trunkline.topic import BROADCAST, ENDPOINT_PREFIX, matches

MAX_ENTRIES = 1000
"""Of what was delivered, and as many of what ended otherwise; the oldest are forgotten first. Counters are exact."""
MAX_OPEN = 65_536
"""Ranges that may be open. Of the oldest beyond it nobody will ever say anything."""
LOST = "lost with its subscriber"
UNREPORTED = "its subscriber has said nothing of it, and has got too much since"


class Entry:
    """What became of all messages of this subscriber from `first` to `last`; if delivered, of those without another."""

    __slots__ = ("at_ns", "fate", "first", "last", "reason", "since_ns")

    def __init__(self, first: int, last: int, fate: Fate, reason: str, at_ns: int) -> None:
        self.first = first
        self.last = last
        self.fate = fate
        self.reason = reason
        self.since_ns = at_ns
        self.at_ns = at_ns


class Leaver:
    """A subscriber elsewhere that is gone: its books, and nothing else of it."""

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
    """Whether a subscription to the pattern gets the topic, links apart: an endpoint also gets what is for everyone."""
    return matches(pattern, topic) or (topic == BROADCAST and pattern.startswith(ENDPOINT_PREFIX))


class Books:
    """Everything is told in numbers of messages that were offered to this subscriber, and to it alone."""

    __slots__ = ("_delivered", "_others", "accepted", "delivered", "open", "settled")

    def __init__(self) -> None:
        self.accepted = 0
        self.delivered = 0
        self.settled: dict[Fate, int] = dict.fromkeys((Fate.FILTERED, Fate.EXPIRED, Fate.DROPPED, Fate.DEAD), 0)
        self.open = Ranges()
        self._delivered: deque[Entry] = deque(maxlen=MAX_ENTRIES)
        self._others: deque[Entry] = deque(maxlen=MAX_ENTRIES)

    def hand(self, first: int, last: int, now_ns: int) -> None:
        """These are on their way."""
        self.open.add(first, last)
        if len(self.open) > MAX_OPEN:
            oldest = next(iter(self.open))
            for begin, end in self.open.take(*oldest):
                self.end(begin, end, Fate.DROPPED, UNREPORTED, now_ns)

    def end(self, first: int, last: int, fate: Fate, reason: str, now_ns: int) -> None:
        """How these ended. None of them was handed over, or what it was handed is settled by the caller."""
        count = last - first + 1
        if fate is not Fate.DELIVERED:
            self.settled[fate] += count
            entry = self._others[-1] if self._others else None
            if entry is not None and (entry.last + 1, entry.fate, entry.reason) == (first, fate, reason):
                entry.last = last
                entry.at_ns = now_ns
            else:
                self._others.append(Entry(first, last, fate, reason, now_ns))
            return
        self.delivered += count
        entry = self._delivered[-1] if self._delivered else None
        if entry is not None and 0 <= now_ns - entry.since_ns < MERGE_NS:
            # What lies between is of other topics, is open, or has an entry of its own.
            entry.first = min(entry.first, first)
            entry.last = max(entry.last, last)
            entry.at_ns = now_ns
        else:
            self._delivered.append(Entry(first, last, fate, "", now_ns))

    def report(self, first: int, last: int, fate: Fate, reason: str, now_ns: int) -> list[tuple[int, int]]:
        """The subscriber says how these ended. Returns those it could speak of: handed to it, and not reported on.

        What was lost, or dead and given again, may still end otherwise.
        """
        if fate is Fate.IN_FLIGHT:
            # It has come again, and still has them.
            found = self._reopen(first, last, dead=False)
            for begin, end in found:
                self.open.add(begin, end)
            return found
        found = self.open.take(first, last)
        if sum(end - begin + 1 for begin, end in found) < last - first + 1:
            found += self._reopen(first, last)
        for begin, end in found:
            self.end(begin, end, fate, reason, now_ns)
        return found

    def _reopen(self, first: int, last: int, *, dead: bool = True) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        kept: list[Entry] = []
        for entry in self._others:
            begin, end = max(first, entry.first), min(last, entry.last)
            if begin > end or not (entry.reason == LOST or (dead and entry.fate is Fate.DEAD)):
                kept.append(entry)
                continue
            found.append((begin, end))
            self.settled[entry.fate] -= end - begin + 1
            kept += [
                Entry(one, other, entry.fate, entry.reason, entry.at_ns)
                for one, other in ((entry.first, begin - 1), (end + 1, entry.last))
                if one <= other
            ]
        if found:
            self._others = deque(kept, MAX_ENTRIES)
        return found

    def take_up(self, first: int, last: int) -> None:
        """These were handed over before these books were begun, unless they know better."""
        for number in range(first, last + 1):
            if not self.has(number, number):
                self.accepted += 1
                self.open.add(number, number)

    def revive(self, number: int, now_ns: int) -> None:
        """A message that died here before, perhaps longer ago than is known, is given to its subscriber again."""
        known = self.fate_of(number)
        if known is None:
            self.accepted += 1
            self.end(number, number, Fate.DEAD, "it died before", now_ns)

    def lose(self, now_ns: int) -> list[tuple[int, int]]:
        """The subscriber is gone: what it had not reported on."""
        lost = list(self.open)
        self.open.clear()
        for first, last in lost:
            self.end(first, last, Fate.DROPPED, LOST, now_ns)
        return lost

    def has(self, first: int, last: int) -> bool:
        """Whether it was offered all of these, as far as that is still known."""
        missing = last - first + 1 - self.open.count(first, last)
        if missing:
            for entry in (*self._others, *self._delivered):
                missing -= max(0, min(last, entry.last) - max(first, entry.first) + 1)
        return missing <= 0

    def fate_of(self, number: int) -> tuple[Fate, str, int] | None:
        """Of a message that its pattern matches; None if it was not offered, or longer ago than is known."""
        if number in self.open:
            return Fate.IN_FLIGHT, "handed over; its subscriber has not said what became of it", 0
        for entries in (self._others, self._delivered):
            for entry in reversed(entries):
                if entry.first <= number <= entry.last:
                    return entry.fate, entry.reason, entry.at_ns
        return None

    def outcome_of(self, name: str, number: int) -> Outcome | None:
        known = self.fate_of(number)
        return None if known is None else Outcome(name, *known)

    def account(self, waiting: int = 0) -> Account:
        """`waiting` were accepted, and are not handed over yet."""
        return Account(
            accepted=self.accepted,
            delivered=self.delivered,
            filtered=self.settled[Fate.FILTERED],
            expired=self.settled[Fate.EXPIRED],
            dropped=self.settled[Fate.DROPPED],
            dead=self.settled[Fate.DEAD],
            in_flight=self.open.total + waiting,
        )
