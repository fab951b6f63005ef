"""Numbers as ranges: what a member acknowledges together."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from trunkline.brokers.remote.member import ranges


@given(st.lists(st.integers(1, 60)))
@example([])
@example([3, 1, 1, 2])
@example([1, 1, 3])
def test_they_are_the_numbers_in_as_few_ranges_as_possible(numbers: list[int]) -> None:
    found = ranges(numbers)
    assert [number for first, last in found for number in range(first, last + 1)] == sorted(set(numbers))
    assert all(before[1] + 1 < after[0] for before, after in pairwise(found))
