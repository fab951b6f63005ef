"""Token buckets: never more than the rate and the burst allow, over any period; recovery; separate keys."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trunkline.delivery.limits import Buckets, Rate
from trunkline.errors import InvalidSettings


@pytest.mark.parametrize(("rate", "size"), [(Rate(per_s=5), 5), (Rate(per_s=0.1), 1), (Rate(per_s=5, burst=2), 2)])
def test_a_burst_is_a_seconds_worth_unless_given(rate: Rate, size: float) -> None:
    assert rate.size == size


@pytest.mark.parametrize("values", [{"per_s": 0}, {"per_s": -1}, {"per_s": math.nan}, {"per_s": 1, "burst": 0}])
def test_a_rate_that_makes_no_sense_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match="above 0"):
        Rate(**values)


def test_a_burst_passes_at_once_and_then_the_rate_rules() -> None:
    buckets = Buckets(Rate(per_s=2, burst=3))
    assert [buckets.take("a", 0) for _ in range(3)] == [0, 0, 0]
    assert buckets.take("a", 0) == 0.5
    assert buckets.take("a", 0.25) == 0.25
    assert buckets.take("a", 0.5) == 0
    assert buckets.take("a", 0.5) == 0.5


def test_a_bucket_recovers_to_its_burst_and_not_beyond() -> None:
    buckets = Buckets(Rate(per_s=2, burst=3))
    for _ in range(3):
        buckets.take("a", 0)
    assert [buckets.take("a", 1_000_000) == 0 for _ in range(4)] == [True, True, True, False]


def test_being_refused_costs_nothing() -> None:
    buckets = Buckets(Rate(per_s=1, burst=1))
    assert buckets.take("a", 0) == 0
    for tenth in range(1, 10):
        assert buckets.take("a", tenth / 10) > 0
    assert buckets.take("a", 1.001) == 0


def test_keys_do_not_share() -> None:
    buckets = Buckets(Rate(per_s=1, burst=1))
    assert buckets.take("a", 0) == 0
    assert buckets.take("b", 0) == 0
    assert buckets.take("a", 0) > 0
    assert buckets.take("b", 0) > 0


def test_a_clock_that_went_back_does_not_drain_the_bucket() -> None:
    buckets = Buckets(Rate(per_s=1, burst=2))
    assert buckets.take("a", 100) == 0
    assert buckets.take("a", 50) == 0
    assert buckets.take("a", 50) == 1
    assert buckets.take("a", 51) == 0


rates = st.sampled_from([0.1, 0.5, 1.0, 3.0, 7.0, 100.0])
pauses = st.lists(st.floats(0, 2), min_size=1, max_size=60)


@given(rates, st.none() | st.integers(1, 10), pauses)
@settings(max_examples=150)
def test_no_stretch_of_time_has_more_than_the_rate_and_one_burst(
    per_s: float, burst: int | None, pauses: list[float]
) -> None:
    rate = Rate(per_s=per_s, burst=burst)
    buckets = Buckets(rate)
    now = 0.0
    passed: list[float] = []
    for pause in pauses:
        now += pause
        if buckets.take("a", now) == 0:
            passed.append(now)
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            stretch_s = passed[last] - passed[first]
            assert last - first + 1 <= per_s * stretch_s + rate.size + 1e-5


@given(rates, st.none() | st.integers(1, 10), pauses)
@settings(max_examples=100)
def test_no_one_is_refused_without_need(per_s: float, burst: int | None, pauses: list[float]) -> None:
    rate = Rate(per_s=per_s, burst=burst)
    buckets = Buckets(rate)
    now, level = 0.0, rate.size
    for pause in pauses:
        now += pause
        level = min(rate.size, level + pause * per_s)
        wait_s = buckets.take("a", now)
        if wait_s == 0:
            assert level >= 1 - 1e-5
            level -= 1
        else:
            assert level < 1 + 1e-5
            assert wait_s == pytest.approx((1 - level) / per_s, abs=1e-4)


@given(rates, st.integers(1, 3), pauses)
@example(0.1, 1, [1.3314080716890022, *[0.0] * 7])
@settings(max_examples=150)
def test_who_waits_as_long_as_told_is_let_through(per_s: float, burst: int, pauses: list[float]) -> None:
    buckets = Buckets(Rate(per_s=per_s, burst=burst))
    now = 0.0
    for pause in pauses:
        now += pause
        wait_s = buckets.take("a", now)
        if wait_s > 0:
            now += wait_s
            assert buckets.take("a", now) == 0


def test_the_key_that_was_idle_longest_is_forgotten_first() -> None:
    buckets = Buckets(Rate(per_s=1, burst=1), max_buckets=2)
    buckets.take("a", 0)
    buckets.take("b", 1)
    buckets.take("a", 1.5)
    # Full again by now are both; `b` was idle longest.
    buckets.take("c", 10)
    assert set(buckets._levels) == {"a", "c"}


def test_there_are_never_more_buckets_than_allowed_once_they_are_full_again() -> None:
    buckets = Buckets(Rate(per_s=1, burst=1), max_buckets=10)
    for number in range(1000):
        buckets.take(str(number), number * 10.0)
        assert len(buckets._levels) <= 10


def test_a_key_is_not_forgotten_before_its_bucket_is_full_again() -> None:
    # Otherwise a sender with many keys would have no limit.
    buckets = Buckets(Rate(per_s=1, burst=1), max_buckets=1)
    assert buckets.take("a", 0) == 0
    buckets.take("b", 0)
    assert buckets.take("a", 0) > 0
