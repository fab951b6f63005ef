"""The books of a remote subscriber, and their ranges, compared with plain sets and dicts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from trunkline.delivery import books
from trunkline.delivery.books import LOST, Books
from trunkline.delivery.fates import Fate
from trunkline.delivery.ranges import Ranges

numbers = st.integers(1, 40)
SECOND = 1_000_000_000


def spread(ranges: list[tuple[int, int]]) -> set[int]:
    return {number for first, last in ranges for number in range(first, last + 1)}


def sorted_pair(pair: tuple[int, int]) -> tuple[int, int]:
    return min(pair), max(pair)


@given(st.lists(st.tuples(st.booleans(), numbers, numbers)))
def test_ranges_are_a_set(steps: list[tuple[bool, int, int]]) -> None:
    ranges = Ranges()
    truth: set[int] = set()
    for adds, one, other in steps:
        first, last = min(one, other), max(one, other)
        inside = truth & set(range(first, last + 1))
        if not adds:
            assert spread(ranges.take(first, last)) == inside
            truth -= inside
        elif not inside:
            ranges.add(first, last)
            truth |= set(range(first, last + 1))
        assert spread(list(ranges)) == truth
        assert ranges.total == len(truth)
        assert [number for number in range(42) if number in ranges] == sorted(truth)


class Told(RuleBasedStateMachine):
    """Messages are delivered, dropped, reported on, and lost. A dict has the expected result."""

    @initialize()
    def begin(self) -> None:
        self.books = Books()
        self.next = 1
        self.now = SECOND
        self.truth: dict[int, Fate | None] = {}
        self.lost: set[int] = set()

    @rule(count=st.integers(1, 5), gap=st.integers(0, 2), pause=st.integers(0, 2 * SECOND))
    def hand(self, count: int, gap: int, pause: int) -> None:
        self.now += pause
        first = self.next + gap
        self.next = first + count
        self.books.accepted += count
        self.books.hand(first, self.next - 1, self.now)
        self.truth |= dict.fromkeys(range(first, self.next))

    @rule(count=st.integers(1, 5))
    def drop(self, count: int) -> None:
        first = self.next
        self.next += count
        self.books.accepted += count
        self.books.end(first, self.next - 1, Fate.DROPPED, "full", self.now)
        self.truth |= dict.fromkeys(range(first, self.next), Fate.DROPPED)

    @rule(one=numbers, other=numbers, fate=st.sampled_from([Fate.DELIVERED, Fate.FILTERED, Fate.DEAD]))
    def report(self, one: int, other: int, fate: Fate) -> None:
        first, last = min(one, other), max(one, other)
        expected = {
            number
            for number in range(first, last + 1)
            if number in self.truth and (self.truth[number] in (None, Fate.DEAD) or number in self.lost)
        }
        assert spread(self.books.report(first, last, fate, "", self.now)) == expected
        self.truth |= dict.fromkeys(expected, fate)
        self.lost -= expected

    @rule(one=numbers, other=numbers)
    def report_next(self, one: int, other: int) -> None:
        first, last = min(one, other), max(one, other)
        oldest = min((number for number, fate in self.truth.items() if fate is None), default=0)
        named = range(first, last + 1)
        expected = first == oldest and all(number in self.truth and self.truth[number] is None for number in named)
        if self.books.report_next(first, last, self.now):
            assert expected
            self.truth |= dict.fromkeys(named, Fate.DELIVERED)
        else:
            # What was opened again may be in two ranges.
            assert not expected or first < last

    @rule(wanted=st.integers(1, 4), others=st.lists(st.tuples(numbers, numbers), max_size=1))
    def report_in_order(self, wanted: int, others: list[tuple[int, int]]) -> None:
        """The oldest open messages, as ranges without a gap, perhaps followed by another one that is not the next."""
        opened = list(self.books.open)
        ranges = [*opened[:wanted], *(sorted_pair(pair) for pair in others)]
        firsts, lasts = [first for first, _ in ranges], [last for _, last in ranges]
        taken = self.books.report_in_order(firsts, lasts, self.now)
        assert taken == (ranges != [] and ranges == opened[: len(ranges)])
        if taken:
            reported = spread(ranges)
            assert all(self.truth[number] is None for number in reported)
            self.truth |= dict.fromkeys(reported, Fate.DELIVERED)

    @rule(one=numbers, other=numbers)
    def still_has(self, one: int, other: int) -> None:
        first, last = min(one, other), max(one, other)
        back = {number for number in self.lost if first <= number <= last}
        assert spread(self.books.report(first, last, Fate.IN_FLIGHT, "", self.now)) == back
        self.truth |= dict.fromkeys(back)
        self.lost -= back

    @rule()
    def lose(self) -> None:
        gone = {number for number, fate in self.truth.items() if fate is None}
        assert spread(self.books.lose(self.now)) == gone
        self.truth |= dict.fromkeys(gone, Fate.DROPPED)
        self.lost |= gone

    @rule(number=numbers)
    def revive(self, number: int) -> None:
        if number not in self.truth and self.books.fate_of(number) is not None:
            return  # a gap: a dead letter of this subscriber is no message of another topic
        self.books.revive(number, self.now)
        self.truth.setdefault(number, Fate.DEAD)
        self.next = max(self.next, number + 1)

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "books"):
            return
        # Messages in between, on another topic, do not count.
        for number in self.truth:
            known = self.books.fate_of(number)
            assert (None if known is None else known[0]) is (self.truth[number] or Fate.IN_FLIGHT)
            if known is not None and number in self.lost:
                assert known[1] == LOST
        account = self.books.account()
        assert account.balanced
        assert account.accepted == len(self.truth)
        assert account.in_flight == sum(fate is None for fate in self.truth.values())
        assert account.delivered == sum(fate is Fate.DELIVERED for fate in self.truth.values())
        assert account.dropped == sum(fate is Fate.DROPPED for fate in self.truth.values())


TestTold = Told.TestCase


def test_what_nobody_reports_on_does_not_grow_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(books, "MAX_OPEN", 100)
    told = Books()
    for number in range(1, 1001, 2):
        told.accepted += 1
        told.hand(number, number, SECOND)
    account = told.account()
    assert account.balanced
    assert (account.in_flight, account.dropped) == (100, 400)
    assert told.fate_of(1) == (Fate.DROPPED, books.UNREPORTED, SECOND)


def test_what_follows_within_a_second_is_one_entry() -> None:
    told = Books()
    for number in range(1, 100_001):
        told.hand(number, number, SECOND)
        told.report(number, number, Fate.DELIVERED, "", SECOND)
    assert len(told.spans) == 1
    assert told.delivered == 100_000
