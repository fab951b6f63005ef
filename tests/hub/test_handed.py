"""What a subscription was sent, against a set of numbers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.hub import handed
from trunkline.hub.claims import Sent
from trunkline.hub.handed import Handed, Left

numbers = st.integers(1, 60)


@st.composite
def ranges(draw: st.DrawFn) -> list[tuple[int, int]]:
    """That do not overlap, in any order."""
    cuts = sorted(draw(st.sets(st.integers(1, 50), min_size=2, max_size=12)))
    found = [(first, last - 1) for first, last in zip(cuts[::2], cuts[1::2], strict=False)]
    return draw(st.permutations(found))


@given(ranges(), numbers, numbers)
def test_it_counts_what_was_sent(given_ranges: list[tuple[int, int]], first: int, last: int) -> None:
    sent = Handed()
    truth: set[int] = set()
    for begin, end in given_ranges:
        sent.add(begin, end)
        truth.update(range(begin, end + 1))
    assert sent.count(first, last) == len([each for each in truth if first <= each <= last])


@given(ranges(), numbers, numbers, numbers, st.integers(0, 30))
def test_no_more_is_claimed_than_was_sent(
    given_ranges: list[tuple[int, int]], first: int, last: int, count: int, began: int
) -> None:
    sent = Handed()
    truth = set(range(1, began + 1))
    for begin, end in given_ranges:
        if begin > began:
            sent.add(begin, end)
            truth.update(range(begin, end + 1))
    inside = [each for each in truth if first <= each <= last]
    expected = first <= last and {first, last} <= truth and count <= len(inside)
    assert (first <= last and Sent(sent, began).has(first, last, count)) is expected


def test_it_is_bounded_and_forgets_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed, "MAX_RANGES", 100)
    sent = Handed()
    for number in range(1, 2001, 2):
        sent.add(number, number)
        assert len(sent) <= 101
    assert sent.count(1, 1) == 0
    assert sent.count(1999, 1999) == 1
    assert sent.count(1, 2000) == len(sent)


def test_what_follows_is_one_range() -> None:
    sent = Handed()
    for number in range(1, 1000):
        sent.add(number, number)
    assert len(sent) == 1
    assert sent.count(5, 10_000) == 995


def test_a_client_that_comes_again_may_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handed, "MAX_LEFT", 2)
    left = Left()
    sent = Handed()
    sent.add(1, 5)
    left.put(7, 1, "a.>", sent)
    for other in ((8, 1, "a.>"), (7, 2, "a.>"), (7, 1, "a.b")):
        assert len(left.take(*other)) == 0
    assert left.take(7, 1, "a.>").count(1, 5) == 5
    assert len(left.take(7, 1, "a.>")) == 0
    left.put(0, 1, "a.>", sent)
    assert len(left.take(0, 1, "a.>")) == 0, "who has no origin cannot be known again"
    for origin in (1, 2, 3):
        left.put(origin, 1, "a.>", sent)
    assert len(left.take(1, 1, "a.>")) == 0
