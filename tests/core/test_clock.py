"""Ids and numbers: valid UUIDv7, unique, in order, one real one a millisecond."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trunkline.clock import BLOCK_IDS, BLOCK_NS, Ids, Sequence, World

MS = 1_000_000
START_NS = 1_700_000_000_000 * MS


class Source:
    """UUIDv7s of a fake clock, counting how many were drawn."""

    def __init__(self) -> None:
        self.drawn = 0
        self.now_ns = START_NS

    def __call__(self) -> str:
        self.drawn += 1
        millisecond = self.now_ns // MS
        # The counter sits above the 12 bits that a block counts up, as in a real UUIDv7 with a counter.
        value = millisecond << 80 | 7 << 76 | 2 << 62 | self.drawn << 12 | 0xABC
        return str(uuid.UUID(int=value))


def draw(source: Source, ids: Ids, steps_ns: Iterator[int], count: int) -> list[str]:
    drawn = []
    for _ in range(count):
        source.now_ns += next(steps_ns)
        drawn.append(ids.next(source.now_ns))
    return drawn


def steps(*pattern: int) -> Iterator[int]:
    while True:
        yield from pattern


@pytest.mark.parametrize(
    "pattern",
    [
        pytest.param((0,), id="a clock that stands still: blocks run out"),
        pytest.param((80,), id="80 ns an id: some blocks run out"),
        pytest.param((1_000,), id="1 µs an id: a thousand a block"),
        pytest.param((MS,), id="one id a millisecond"),
        pytest.param((5 * MS, 0, 0, 1, MS - 1, MS + 1), id="bursts"),
    ],
)
def test_twenty_thousand_ids_are_uuid7_unique_and_in_order(pattern: tuple[int, ...]) -> None:
    source = Source()
    drawn = draw(source, Ids(source), steps(*pattern), 20_000)
    assert len(set(drawn)) == 20_000
    assert drawn == sorted(drawn)
    for text in drawn[::97]:
        parsed = uuid.UUID(text)
        assert str(parsed) == text
        assert parsed.version == 7
        assert parsed.variant == uuid.RFC_4122


def test_the_ids_of_the_real_world_are_uuid7_unique_and_in_order() -> None:
    world = World()
    ids = Ids(world.uuid7)
    drawn = [ids.next(START_NS) for _ in range(20_000)]
    assert len(set(drawn)) == 20_000
    assert drawn == sorted(drawn)
    assert {uuid.UUID(text).version for text in drawn} == {7}


def test_the_time_of_an_id_is_the_time_of_its_block() -> None:
    source = Source()
    ids = Ids(source)
    for elapsed_ms in (0, 10, 3_000):
        source.now_ns = START_NS + elapsed_ms * MS
        assert uuid.UUID(ids.next(source.now_ns)).int >> 80 == source.now_ns // MS


def test_a_block_is_drawn_once_a_millisecond() -> None:
    source = Source()
    ids = Ids(source)
    for _ in range(100):
        ids.next(START_NS)
    assert source.drawn == 1
    ids.next(START_NS + BLOCK_NS // 2)
    assert source.drawn == 1
    ids.next(START_NS + BLOCK_NS + 1)
    assert source.drawn == 2
    ids.next(START_NS + BLOCK_NS + 2)
    assert source.drawn == 2
    ids.next(START_NS + 60_000 * BLOCK_NS)
    assert source.drawn == 3


def test_an_exhausted_block_is_followed_by_a_new_one() -> None:
    source = Source()
    ids = Ids(source)
    block = [ids.next(START_NS) for _ in range(BLOCK_IDS)]
    assert source.drawn == 1
    assert block[0].endswith("000")
    assert block[-1].endswith("fff")
    following = ids.next(START_NS)
    assert source.drawn == 2
    assert following > block[-1]


@pytest.mark.parametrize("count", [0, 1, 2, BLOCK_IDS - 1, BLOCK_IDS, BLOCK_IDS + 1, 3 * BLOCK_IDS + 5])
def test_many_ids_at_once_are_what_one_by_one_would_have_been(count: int) -> None:
    together, singly = Source(), Source()
    many, one = Ids(together), Ids(singly)
    for _ in range(3):
        assert many.take(count, START_NS) == [one.next(START_NS) for _ in range(count)]
    assert together.drawn == singly.drawn
    assert many.next(START_NS) == one.next(START_NS)


def test_many_ids_at_once_begin_a_new_block_when_it_is_time() -> None:
    source = Source()
    ids = Ids(source)
    early = ids.take(5, START_NS)
    late = ids.take(5, START_NS + BLOCK_NS + 1)
    assert source.drawn == 2
    assert sorted({*early, *late}) == [*early, *late]


def test_open_begins_a_block_at_once() -> None:
    source = Source()
    ids = Ids(source)
    first = ids.next(START_NS)
    second = ids.open(START_NS)
    assert source.drawn == 2
    assert second > first
    assert ids.next(START_NS) > second
    assert source.drawn == 2


def test_a_clock_that_goes_back_repeats_no_id() -> None:
    source = Source()
    ids = Ids(source)
    drawn = [ids.next(START_NS + elapsed) for elapsed in (0, 10 * MS, 5 * MS, 0, 11 * MS, 12 * MS, 3)]
    drawn += [ids.next(0) for _ in range(2 * BLOCK_IDS)]
    assert len(set(drawn)) == len(drawn)


@given(st.lists(st.integers(0, 3 * MS), max_size=200))
@settings(max_examples=50)
def test_ids_are_in_order_for_any_pace(pace: list[int]) -> None:
    source = Source()
    drawn = draw(source, Ids(source), iter(pace), len(pace))
    assert drawn == sorted(set(drawn))


def test_two_buses_on_one_source_share_no_id() -> None:
    source = Source()
    one, other = Ids(source), Ids(source)
    drawn = [ids.next(START_NS) for _ in range(5_000) for ids in (one, other)]
    assert len(set(drawn)) == 10_000


def test_a_sequence_counts_from_one() -> None:
    numbers = Sequence()
    assert numbers.last == 0
    assert [numbers.next() for _ in range(3)] == [1, 2, 3]
    assert numbers.last == 3


def test_a_sequence_goes_on_where_it_was_left() -> None:
    numbers = Sequence(41)
    assert numbers.next() == 42
    assert numbers.last == 42


def test_each_world_has_dice_of_its_own() -> None:
    one, other = World(), World()
    assert one.random is not other.random
    assert uuid.UUID(one.uuid7()).version == 7
    assert abs(one.time_ns() - other.time_ns()) < 60_000 * MS
