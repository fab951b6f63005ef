"""The circuit breaker: closed, open, half open, and a probe without a result."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.delivery.breaker import Breaker, BreakerState, Circuit
from trunkline.errors import InvalidSettings

OPEN_S = 30


def circuit(failures: int = 3, probes: int = 1) -> Circuit:
    return Circuit(Breaker(failures=failures, open_s=OPEN_S, probes=probes))


def opened(failures: int = 3, probes: int = 1) -> Circuit:
    """Open since 0."""
    opened = circuit(failures, probes)
    for _ in range(failures):
        opened.failed(0)
    assert state(opened) is BreakerState.OPEN
    return opened


def state(circuit: Circuit) -> BreakerState:
    """The current state. For mypy, which assumes that an attribute does not change."""
    return circuit.state


def test_the_defaults_are_the_documented_ones() -> None:
    rules = Breaker()
    assert (rules.failures, rules.open_s, rules.probes) == (5, 30.0, 1)


@pytest.mark.parametrize("values", [{"failures": 0}, {"open_s": 0}, {"open_s": math.nan}, {"probes": -1}])
def test_rules_that_make_no_sense_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings, match="above 0"):
        Breaker(**values)


# Closed


def test_a_new_circuit_lets_everything_through() -> None:
    fresh = circuit()
    assert state(fresh) is BreakerState.CLOSED
    assert [fresh.allow(now) for now in range(100)] == [0] * 100


def test_it_opens_after_so_many_failures_in_a_row() -> None:
    failing = circuit(failures=3)
    for now in range(2):
        failing.failed(now)
        assert state(failing) is BreakerState.CLOSED
        assert failing.allow(now) == 0
    failing.failed(2)
    assert state(failing) is BreakerState.OPEN
    assert failing.allow(2) == OPEN_S


def test_a_success_in_between_starts_the_count_again() -> None:
    flaky = circuit(failures=3)
    for now in range(20):
        flaky.failed(now)
        flaky.failed(now)
        flaky.succeeded()
    assert state(flaky) is BreakerState.CLOSED
    assert flaky.allow(20) == 0


# Open


def test_an_open_circuit_says_how_long_it_stays_so() -> None:
    broken = opened()
    assert broken.allow(1) == 29
    assert broken.allow(29.5) == 0.5
    assert state(broken) is BreakerState.OPEN


def test_asking_does_not_keep_it_open() -> None:
    broken = opened()
    for now in range(OPEN_S):
        assert broken.allow(now) == OPEN_S - now
    assert broken.allow(OPEN_S) == 0


# Half open


@pytest.mark.parametrize("probes", [1, 3])
def test_after_a_while_it_lets_its_probes_through_and_no_more(probes: int) -> None:
    broken = opened(probes=probes)
    assert [broken.allow(OPEN_S) for _ in range(probes)] == [0] * probes
    assert state(broken) is BreakerState.HALF_OPEN
    assert broken.allow(OPEN_S) > 0
    assert broken.allow(OPEN_S + 1) > 0


def test_a_probe_that_succeeds_closes_it() -> None:
    broken = opened()
    assert broken.allow(OPEN_S) == 0
    broken.succeeded()
    assert state(broken) is BreakerState.CLOSED
    assert [broken.allow(OPEN_S) for _ in range(10)] == [0] * 10


def test_after_closing_it_takes_all_failures_again_to_open() -> None:
    mended = opened(failures=3)
    mended.allow(OPEN_S)
    mended.succeeded()
    mended.failed(31)
    mended.failed(31)
    assert state(mended) is BreakerState.CLOSED
    mended.failed(31)
    assert state(mended) is BreakerState.OPEN


def test_a_probe_that_fails_opens_it_for_another_while() -> None:
    broken = opened()
    assert broken.allow(OPEN_S) == 0
    broken.failed(35)
    assert state(broken) is BreakerState.OPEN
    assert broken.allow(36) == 29
    assert broken.allow(65) == 0
    assert state(broken) is BreakerState.HALF_OPEN


def test_a_probe_whose_result_never_comes_does_not_shut_it_for_ever() -> None:
    broken = opened()
    assert broken.allow(OPEN_S) == 0
    assert broken.allow(OPEN_S + 10) == 20
    assert broken.allow(2 * OPEN_S) == 0
    assert broken.allow(2 * OPEN_S) == OPEN_S
    broken.succeeded()
    assert state(broken) is BreakerState.CLOSED


def test_the_wait_it_names_is_one_after_which_it_lets_through() -> None:
    broken = opened()
    now = 0.0
    for _ in range(5):
        wait_s = broken.allow(now)
        assert wait_s > 0
        now += wait_s
        assert broken.allow(now) == 0


# Any course of events


events = st.lists(
    st.tuples(st.sampled_from(["send", "send", "succeed", "fail", "lose"]), st.integers(0, 20)), max_size=60
)


@given(events, st.integers(1, 4), st.integers(1, 3))
@settings(max_examples=100)
def test_it_lets_no_more_through_than_it_should_and_never_stays_shut(
    events: list[tuple[str, int]], failures: int, probes: int
) -> None:
    """Results come only for calls that were allowed, as on a bus. Some never come."""
    circuit = Circuit(Breaker(failures=failures, open_s=OPEN_S, probes=probes))
    now = 0
    under_way = 0
    in_a_row = 0
    trials: list[int] = []
    for event, passed in events:
        now += passed
        if event == "send":
            was = circuit.state
            wait_s = circuit.allow(now)
            assert 0 <= wait_s <= OPEN_S
            if was is BreakerState.CLOSED:
                assert wait_s == 0
                assert in_a_row < failures
            elif wait_s == 0:
                trials.append(now)
            if wait_s == 0:
                under_way += 1
        elif under_way:
            under_way -= 1
            if event == "succeed":
                circuit.succeeded()
                assert state(circuit) is BreakerState.CLOSED
                in_a_row = 0
                trials.clear()
            elif event == "fail":
                circuit.failed(now)
                in_a_row += 1
                if in_a_row >= failures:
                    assert state(circuit) is BreakerState.OPEN
        for begin in trials:
            # A stretch begins with its first probe; the others may come at its end, and the next stretch right after.
            assert sum(begin <= trial < begin + OPEN_S for trial in trials) <= 2 * probes - 1
    assert circuit.allow(now + OPEN_S) == 0
