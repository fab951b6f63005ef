"""Deliveries and their counts against plain Python on random traffic, and corner cases by hand."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from tests.spark import truth_silver as truth
from tests.spark.traffic import START, Row, Traffic, fate, message, messages, ordered, some_hours, traffic
from trunkline.journal import lake
from trunkline.spark.pipeline.driver_rows import MOMENT, schema_of
from trunkline.spark.tables import deliveries, settled

SEEDS = range(1, 13)
MESSAGES = pa.schema([*schema_of("messages", deliveries.NEEDED), ("placed", MOMENT), ("hour", MOMENT)])


def tables(given: Traffic, hours: list[datetime] | None = None) -> list[pa.Table]:
    mine = [row for row in given.messages if hours is None or row["hour"] in hours]
    batches = pa.Table.from_pylist(mine, MESSAGES).to_batches(max_chunksize=50)
    fates = deliveries.FateLookup(pa.Table.from_pylist(given.fates, lake.SCHEMAS["fates"]))
    return [part for batch in batches for part in fates.delivered(batch)]


def made(given: Traffic, hours: list[datetime] | None = None) -> list[Row]:
    return ordered(row for part in tables(given, hours) for row in rows(part))


def rows(table: pa.Table) -> list[Row]:
    """As Spark returns them: times without a zone."""
    return [
        {name: value.replace(tzinfo=None) if isinstance(value, datetime) else value for name, value in row.items()}
        for row in table.to_pylist()
    ]


def check(given: Traffic, expected: list[Row], seed: int) -> None:
    assert expected, "the traffic shows nothing"
    assert made(given) == ordered(expected)
    hours = some_hours(given, seed)
    assert made(given, hours) == ordered(row for row in expected if row["hour"] in hours)


@pytest.mark.parametrize("seed", SEEDS)
def test_deliveries_are_what_the_fates_say(seed: int) -> None:
    given = traffic(seed)
    expected = truth.deliveries(given)
    assert {row["fate"] for row in expected} == {"delivered", "filtered", "expired", "dropped", "dead", "refused"}
    check(given, expected, seed)


def tangle(seed: int, size: int = 60) -> Traffic:
    """Fates that overlap in every way: ranges of all sizes, wrong patterns, duplicate rows, unordered."""
    chance = random.Random(seed)
    seqs = sorted(chance.sample(range(1, 300_000), size // 2)) + list(range(400_000, 400_000 + size // 2))
    rows = [
        message(seq, START + timedelta(seconds=30 * place), topic=chance.choice(("a", "a.b", "b")))
        for place, seq in enumerate(seqs)
    ]
    fates = []
    for number in chance.sample(range(1, 1000), 2 * size):
        first = chance.choice(seqs) + chance.choice((0, 0, -1, 1))
        span = chance.choice((1, 1, 2, 16, 17, 256, 257, 4096, 5000, 65_536, 70_000, 500_000))
        count = span if chance.random() < 0.5 else max(1, span - 1)
        kind = chance.choice(("delivered", "dropped", "dead"))
        pattern = chance.choice((">", "a.>", "*", "b", "c"))
        fates.append(fate(number, chance.choice("xyz"), kind, first, first + span - 1, count, pattern=pattern))
    return Traffic(rows, fates, [], [])


@pytest.mark.parametrize("most", [deliveries.MOST, 10], ids=["at once", "in parts"])
@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_rows_lie_over_each_other_one_counts(monkeypatch: pytest.MonkeyPatch, seed: int, most: int) -> None:
    monkeypatch.setattr(deliveries, "MOST", most)
    given = tangle(seed)
    check(given, truth.deliveries(given), seed)


def test_the_order_of_messages_does_not_matter() -> None:
    given = tangle(seed=1)
    expected = truth.deliveries(given)
    random.Random(1).shuffle(given.messages)
    assert made(given) == ordered(expected)


def outcome(fates: list[Row], *seqs: int, **fields: Any) -> dict[tuple[int, str], str]:
    rows = made(Traffic(messages(*seqs, **fields), fates, [], []))
    assert len({(row["seq"], row["subscriber"]) for row in rows}) == len(rows)
    return {(row["seq"], row["subscriber"]): row["fate"] for row in rows}


def test_a_row_of_its_own_counts_more_than_a_range_with_others_between() -> None:
    fates = [
        fate(1, "x", "dead", 2, 2),
        fate(2, "x", "delivered", 1, 4, 3),
        fate(3, "x", "delivered", 3, 3),
        fate(4, "x", "dropped", 3, 3),
    ]
    found = outcome(fates, 1, 2, 3, 4, 5)
    assert found == {(1, "x"): "delivered", (2, "x"): "dead", (3, "x"): "dropped", (4, "x"): "delivered"}


def test_letters_that_were_replayed_in_a_row_are_delivered() -> None:
    fates = [fate(1, "x", "dead", 1, 1), fate(2, "x", "dead", 2, 2), fate(3, "x", "delivered", 1, 2)]
    assert outcome(fates, 1, 2) == {(1, "x"): "delivered", (2, "x"): "delivered"}


def test_a_range_says_nothing_of_topics_that_do_not_match() -> None:
    fates = [
        fate(1, "x", "delivered", 1, 9, 1, pattern="ticks"),
        fate(2, "x", "dropped", 1, 9, 1, pattern="orders.*"),
        fate(3, "y", "delivered", 5, 5, pattern="orders.*"),  # an endpoint gets more than its pattern says
    ]
    assert outcome(fates, 5, topic="ticks") == {(5, "x"): "delivered", (5, "y"): "delivered"}


def test_without_fates_or_messages_there_are_no_deliveries() -> None:
    assert outcome([], 1, 2) == {}
    assert outcome([fate(1, "x", "delivered", 1, 9)]) == {}


@pytest.mark.parametrize("seed", SEEDS)
def test_counts_of_parts_add_up_to_the_deliveries(seed: int) -> None:
    given = traffic(seed)
    expected: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in truth.deliveries(given):
        minute = row["published"].replace(second=0, microsecond=0)
        key = (row["subscriber"], row["topic"], row["pattern"], row["fate"], row["range"], minute, bucket(row))
        expected[(*key, row["hour"])].append(row)
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for part in tables(given):
        for row in rows(settled.settled(part)):
            found[tuple(row[name] for name in settled.KEYS)].append(row)
    assert found.keys() == expected.keys()
    for key, counts in found.items():
        theirs = expected[key]
        assert sum(row["count"] for row in counts) == len(theirs)
        assert sum(row["bytes"] for row in counts) == sum(row["bytes"] for row in theirs)
        assert max(row["lag_ms"] for row in counts) == max(row["lag_ms"] for row in theirs)
        assert min(row["lowest"] for row in counts) == min(row["seq"] for row in theirs)
        assert max(row["highest"] for row in counts) == max(row["seq"] for row in theirs)


def bucket(row: Row) -> int | None:
    micros = round(row["lag_ms"] * 1000)
    if row["fate"] != "delivered":
        return None
    return math.ceil(math.log(micros) * 50) if micros >= 1 else -1
