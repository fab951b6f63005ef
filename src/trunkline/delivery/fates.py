"""Fates: what became of a message for one subscriber, kept so cheaply that it is always on.

What was delivered is kept as ranges of sequence numbers; what was not, as one row per message. Both are bounded: the
counters are exact for ever, the rows answer `explain` for what happened lately.
"""

from __future__ import annotations

import enum
from collections import OrderedDict

import msgspec

MERGE_NS = 1_000_000_000
MAX_ROWS = 10_000


class Fate(enum.StrEnum):
    DELIVERED = "delivered"
    FILTERED = "filtered"
    EXPIRED = "expired"
    DROPPED = "dropped"
    DEAD = "dead"
    IN_FLIGHT = "in flight"
    REFUSED = "refused"
    """Not accepted: the publisher got an error, no subscriber saw it."""


class Outcome(msgspec.Struct, frozen=True):
    """The fate of one message for one subscriber; `reason` says why, `at_ns` when (0: no longer known)."""

    subscriber: str
    fate: Fate
    reason: str = ""
    at_ns: int = 0


class Span(msgspec.Struct):
    """Delivered: everything of this subscriber from `first` to `last` that has no row of its own."""

    first: int
    last: int
    count: int
    since_ns: int
    until_ns: int


class Record:
    """The fates of one subscriber, by sequence number.

    `exact` keeps a row for each delivered message as well: for a subscriber that gets only some of what its pattern
    matches (a group, a filter, a rule), a range would claim what went to others.
    """

    __slots__ = ("_forgotten", "_rows", "exact", "running", "spans")

    def __init__(self) -> None:
        self.exact = False
        self.spans: list[Span] = []
        self.running: list[int] = []
        """The first number of each batch that is being handed out one by one."""
        self._rows: OrderedDict[int, tuple[Fate, str, int]] = OrderedDict()
        self._forgotten = 0

    def delivered(self, first: int, last: int, count: int, now_ns: int) -> None:
        if self.spans:
            span = self.spans[-1]
            # Batches of one second share a row: a subscriber in step with its publisher would fill the record at once.
            if 0 <= now_ns - span.since_ns < MERGE_NS:
                if first < span.first:
                    span.first = first
                if last > span.last:
                    span.last = last
                span.count += count
                span.until_ns = now_ns
                return
        self.spans.append(Span(first, last, count, now_ns, now_ns))
        if len(self.spans) > MAX_ROWS:
            del self.spans[0]

    def delivered_one(self, seq: int, now_ns: int) -> None:
        if self.exact:
            self.row(seq, Fate.DELIVERED, "", now_ns)
        else:
            if self._rows:
                self._rows.pop(seq, None)
            self.delivered(seq, seq, 1, now_ns)

    def row(self, seq: int, fate: Fate, reason: str, now_ns: int) -> None:
        rows = self._rows
        rows.pop(seq, None)
        rows[seq] = (fate, reason, now_ns)
        if len(rows) > MAX_ROWS:
            oldest, _ = rows.popitem(last=False)
            self._forgotten = max(self._forgotten, oldest)

    def fate_of(self, seq: int) -> tuple[Fate, str, int] | None:
        if (row := self._rows.get(seq)) is not None:
            return row
        if self.exact or seq <= self._forgotten:
            return None
        if any(seq >= first for first in self.running):
            return Fate.DELIVERED, "", 0
        for span in reversed(self.spans):
            if span.first <= seq <= span.last:
                return Fate.DELIVERED, "", span.until_ns
        return None


class Account(msgspec.Struct, frozen=True):
    """The books of one subscriber, or of all. `balanced` is the identity everything rests on."""

    accepted: int = 0
    delivered: int = 0
    filtered: int = 0
    expired: int = 0
    dropped: int = 0
    dead: int = 0
    in_flight: int = 0

    @property
    def balanced(self) -> bool:
        settled = self.delivered + self.filtered + self.expired + self.dropped + self.dead
        return self.accepted == settled + self.in_flight

    def __add__(self, other: Account) -> Account:
        return Account(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))

    def __sub__(self, other: Account) -> Account:
        return Account(*(getattr(self, name) - getattr(other, name) for name in self.__struct_fields__))
