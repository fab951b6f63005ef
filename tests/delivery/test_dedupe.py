"""The deduplication window compared with a plain list of arrivals."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.delivery.dedupe import MAX_IDS, Window


def test_an_id_is_new_once() -> None:
    window = Window(10)
    assert not window.seen("a", 0)
    assert window.seen("a", 0)
    assert window.seen("a", 9.999)
    assert not window.seen("b", 9.999)
    assert len(window) == 2


def test_an_id_is_new_again_after_the_window() -> None:
    window = Window(10)
    assert not window.seen("a", 0)
    assert not window.seen("a", 10)
    assert window.seen("a", 19.999)


def test_a_duplicate_does_not_stretch_the_window() -> None:
    window = Window(10)
    window.seen("a", 0)
    for now in range(1, 10):
        assert window.seen("a", now)
    assert not window.seen("a", 10)


def test_old_ids_are_let_go() -> None:
    window = Window(10)
    for number in range(1000):
        window.seen(str(number), number / 1000)
    assert len(window) == 1000
    window.seen("later", 100)
    assert len(window) == 1


def test_at_most_so_many_ids_are_kept() -> None:
    window = Window(1000, max_ids=3)
    for number in range(20):
        assert not window.seen(str(number), number)
        assert len(window) <= 3
    assert window.seen("18", 20)
    assert window.seen("17", 20)


def test_beyond_the_bound_the_oldest_goes_first() -> None:
    window = Window(1000, max_ids=2)
    for id in ("a", "b", "c"):
        window.seen(id, 0)
    assert window.seen("c", 1)
    assert window.seen("b", 1)
    assert not window.seen("a", 1)


def test_the_bound_is_generous_by_default() -> None:
    window = Window(10)
    for number in range(5000):
        window.seen(str(number), 0)
    assert len(window) == 5000
    assert MAX_IDS >= 100_000


def test_a_clock_that_went_back_does_not_stretch_the_window() -> None:
    window = Window(10)
    window.seen("before", 3600)
    assert not window.seen("a", 0)
    assert window.seen("a", 9)
    assert not window.seen("a", 11)


arrivals = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 4)), max_size=60)


@given(arrivals, st.integers(1, 12), st.integers(1, 8))
@settings(max_examples=100)
def test_the_window_agrees_with_a_plain_list(arrivals: list[tuple[str, int]], window_s: int, max_ids: int) -> None:
    window = Window(window_s, max_ids)
    came: list[tuple[str, int]] = []
    now = 0
    for id, passed in arrivals:
        now += passed
        came = [(old, at) for old, at in came if now - at < window_s]
        duplicate = id in [old for old, _ in came]
        assert window.seen(id, now) is duplicate
        if not duplicate:
            came = [*came, (id, now)][-max_ids:]
        assert len(window) <= max_ids
