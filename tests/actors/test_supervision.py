"""Supervision as pure decisions: which actors a failure affects, after which pause, and how often."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trunkline.actors.errors import ActorFailed
from trunkline.actors.supervision import Directive, Lifetime, Restart, Strategy, Supervisor, Verdict, decide
from trunkline.errors import InvalidSettings

pytestmark = pytest.mark.usefixtures("both_ways")

NAMES = ("a", "b", "c", "d")


def failed_because(error: BaseException) -> ActorFailed:
    failed = ActorFailed("shop.child", 3, "why")
    failed.__cause__ = error
    return failed


def family(strategy: Strategy = Strategy.ONE_FOR_ONE, **restart: object) -> Supervisor:
    made = Supervisor(strategy)
    for name in NAMES:
        made.add(name, Restart(**restart))  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("strategy", "concerned"),
    [
        (Strategy.ONE_FOR_ONE, ("b",)),
        (Strategy.ONE_FOR_ALL, NAMES),
        (Strategy.REST_FOR_ONE, ("b", "c", "d")),
    ],
)
def test_whom_a_failure_concerns(strategy: Strategy, concerned: tuple[str, ...]) -> None:
    assert family(strategy).ended("b", 0.0, failed=True) == Verdict(concerned, 0.1)


@pytest.mark.parametrize(
    ("lifetime", "failed", "again"),
    [
        (Lifetime.PERMANENT, True, True),
        (Lifetime.PERMANENT, False, True),
        (Lifetime.TRANSIENT, True, True),
        (Lifetime.TRANSIENT, False, False),
        (Lifetime.TEMPORARY, True, False),
        (Lifetime.TEMPORARY, False, False),
    ],
)
def test_who_is_started_anew(lifetime: Lifetime, failed: bool, again: bool) -> None:
    made = family(lifetime=lifetime)
    verdict = made.ended("b", 0.0, failed=failed)
    assert bool(verdict.restart) == again
    assert ("b" in made) == again
    assert not verdict.escalate


def test_pauses_double_up_to_a_limit_and_five_are_enough() -> None:
    made = family(times=5)
    pauses = [made.ended("a", float(second), failed=True).pause_s for second in range(5)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert made.ended("a", 5.0, failed=True) == Verdict(escalate=True)
    assert "a" not in made
    # Those of others do not count.
    assert made.ended("b", 5.0, failed=True).pause_s == 0.1


def test_old_failures_are_forgotten() -> None:
    made = family(times=5)
    for second in range(5):
        made.ended("a", float(second), failed=True)
    assert made.ended("a", 64.5, failed=True).pause_s == 0.1


def test_the_longest_pause() -> None:
    made = family(within_s=1e9, max_backoff_s=60.0)
    assert max(made.ended("a", 0.0, failed=True).pause_s for _ in range(10_000)) == 60.0


def test_by_default_a_child_is_started_anew_each_time() -> None:
    made = family()
    assert [made.ended("a", 0.0, failed=True).pause_s for _ in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_pauses_differ_by_chance() -> None:
    made = family(jitter=0.5)
    pauses = [made.ended("a", 100.0 * count, failed=True, chance=count / 2).pause_s for count in range(3)]
    assert pauses == [0.05, 0.1, 0.1 * 1.5]
    with pytest.raises(InvalidSettings, match="jitter"):
        Restart(jitter=1.5)


class Oven(Exception):
    pass


class Hot(Oven):
    pass


@pytest.mark.parametrize(
    ("error", "directive"),
    [
        (Hot(), Directive.RESUME),
        (Oven(), Directive.STOP),
        (KeyError("k"), Directive.ESCALATE),
        (asyncio.CancelledError(), Directive.RESTART),
        (failed_because(Hot()), Directive.RESUME),
        (failed_because(ValueError()), Directive.ESCALATE),
    ],
)
def test_what_is_done_depends_on_the_kind_of_failure(error: BaseException, directive: Directive) -> None:
    """The nearest class counts. An error that wraps another one is judged by the inner one."""
    directives: dict[type[BaseException], Directive] = {
        Oven: Directive.STOP,
        Hot: Directive.RESUME,
        Exception: Directive.ESCALATE,
    }
    assert decide(directives, error) is directive


def test_stop_and_escalate_end_a_child() -> None:
    made = family()
    assert made.ended("a", 0.0, failed=True, directive=Directive.STOP) == Verdict()
    assert made.ended("b", 0.0, failed=True, directive=Directive.ESCALATE) == Verdict(escalate=True)
    assert made.children == ("c", "d")


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="below backoff_s"):
        Restart(backoff_s=2.0, max_backoff_s=1.0)


@given(
    st.sampled_from(Strategy),
    st.integers(0, 6),
    st.lists(st.tuples(st.sampled_from(NAMES), st.floats(0, 100)), max_size=40),
)
@example(Strategy.ONE_FOR_ONE, 1, [("a", 68.05493974513352), ("a", 60.0)])
def test_never_more_often_than_allowed(strategy: Strategy, times: int, failures: list[tuple[str, float]]) -> None:
    """For any failures: within any minute no child is restarted for its own failures more than `times` times."""
    made = family(strategy, times=times)
    granted: dict[str, list[float]] = {name: [] for name in NAMES}
    now_s = 0.0
    for name, pause_s in failures:
        now_s += pause_s
        if name not in made:
            continue
        verdict = made.ended(name, now_s, failed=True)
        assert verdict.escalate != bool(verdict.restart)
        if verdict.restart:
            granted[name].append(now_s)
            assert name in verdict.restart
            # In the order they were started.
            assert list(verdict.restart) == [each for each in made.children if each in verdict.restart]
    for moments in granted.values():
        for moment in moments:
            assert len([each for each in moments if moment <= each <= moment + 60.0]) <= times
