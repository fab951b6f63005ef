"""Retries: how often, and pauses that double up to a limit and never overflow."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trunkline.delivery.retry import ONCE, Retry
from trunkline.errors import InboxFull, InvalidPayload, InvalidSettings, Reject, RequestTimeout


class Dice(random.Random):
    """A random generator that always returns the same value."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def random(self) -> float:
        return self.value


MIDDLE = Dice(0.5)
HIGHEST = Dice(math.nextafter(1.0, 0.0))


def test_the_defaults_are_the_documented_ones() -> None:
    retry = Retry()
    assert (retry.attempts, retry.delay_s, retry.factor, retry.max_delay_s) == (3, 0.1, 2.0, 60.0)
    assert (retry.jitter, retry.never) == (0.2, ())


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"attempts": 0}, "attempts must be above 0"),
        ({"attempts": -1}, "attempts must be above 0"),
        ({"delay_s": -0.1}, "delay_s must be above 0"),
        ({"delay_s": math.nan}, "delay_s must be above 0"),
        ({"max_delay_s": -1.0}, "max_delay_s must be above 0"),
        ({"factor": 0.5}, "factor must be at least 1"),
        ({"jitter": 1.5}, "jitter must be a fraction of the pause, at most 1"),
        ({"jitter": -0.1}, "jitter must be above 0"),
        ({"jitter": math.nan}, "jitter must be above 0"),
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSettings, match=f"Retry.{why}"):
        Retry(**values)


# How often


@pytest.mark.parametrize(("failed", "again"), [(1, True), (2, True), (3, False), (4, False), (10_000, False)])
def test_there_are_so_many_attempts_in_all(failed: int, again: bool) -> None:
    assert Retry(attempts=3).allows(failed, ValueError()) is again


def test_once_is_once() -> None:
    assert not ONCE.allows(1, ValueError())


class Special(KeyError):
    pass


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ValueError(), True),
        (OSError(), True),
        (TimeoutError(), True),
        (KeyError(), False),
        (Special(), False),
        (InboxFull("x", 1), True),
        (RequestTimeout("r", "a", 1.0, None), True),
        (InvalidPayload("x"), False),
        (Reject("x"), False),
    ],
)
def test_what_will_not_help_is_not_tried_again(error: BaseException, again: bool) -> None:
    assert Retry(never=(KeyError,)).allows(1, error) is again


def test_never_wins_over_retryable() -> None:
    assert not Retry(never=(InboxFull,)).allows(1, InboxFull("x", 1))


# How long


def test_the_pause_doubles_up_to_its_bound() -> None:
    retry = Retry(delay_s=0.1, max_delay_s=1.0, jitter=0)
    pauses = [retry.pause_s(failed, MIDDLE) for failed in range(1, 8)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0])


def test_the_bound_holds_for_the_first_pause_too() -> None:
    assert Retry(delay_s=5.0, max_delay_s=1.0, jitter=0).pause_s(1, MIDDLE) == 1.0


@pytest.mark.parametrize("failed", [1, 2, 10_000])
def test_there_may_be_no_pause_at_all(failed: int) -> None:
    assert Retry(delay_s=0).pause_s(failed, HIGHEST) == 0


def test_a_factor_of_one_keeps_the_pause() -> None:
    retry = Retry(delay_s=0.5, factor=1.0, jitter=0)
    assert {retry.pause_s(failed, MIDDLE) for failed in (1, 2, 100, 10_000)} == {0.5}


@given(
    st.integers(1, 10_000),
    st.floats(1.0, 1e12),
    st.floats(1e-6, 1e6),
    st.floats(1e-3, 1e9),
)
@example(10_000, 2.0, 0.1, 60.0)
@example(10_000, 1e6, 0.1, 60.0)
@example(10_000, 1.01, 0.1, 60.0)
@settings(max_examples=100)
def test_a_pause_grows_by_its_factor_and_ends_at_its_bound(
    failed: int, factor: float, delay_s: float, max_delay_s: float
) -> None:
    pause = Retry(delay_s=delay_s, factor=factor, max_delay_s=max_delay_s, jitter=0).pause_s(failed, MIDDLE)
    # In logarithms, where nothing overflows.
    grown = math.log(delay_s) + (failed - 1) * math.log(factor)
    assert math.log(pause) == pytest.approx(min(grown, math.log(max_delay_s)), rel=1e-6, abs=1e-6)
    assert pause <= max_delay_s


@given(st.integers(1, 10_000), st.floats(1e-6, 1.0), st.floats(0.0, 1.0, exclude_max=True))
@settings(max_examples=100)
def test_the_jitter_gives_or_takes_its_part_and_no_more(failed: int, jitter: float, dice: float) -> None:
    plain = Retry(jitter=0).pause_s(failed, MIDDLE)
    pause = Retry(jitter=jitter).pause_s(failed, Dice(dice))
    assert plain * (1 - jitter) - 1e-9 <= pause <= plain * (1 + jitter) + 1e-9
    assert pause >= 0


def test_the_jitter_uses_its_whole_range() -> None:
    retry = Retry(delay_s=1.0, jitter=0.25)
    assert retry.pause_s(1, Dice(0.0)) == pytest.approx(0.75)
    assert retry.pause_s(1, MIDDLE) == pytest.approx(1.0)
    assert retry.pause_s(1, HIGHEST) == pytest.approx(1.25)


def test_chance_comes_from_the_dice_it_is_given() -> None:
    retry = Retry()
    one = [retry.pause_s(failed, random.Random(7)) for failed in range(1, 5)]
    other = [retry.pause_s(failed, random.Random(7)) for failed in range(1, 5)]
    assert one == other
