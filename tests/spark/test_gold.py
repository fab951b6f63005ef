"""Gold tables and plain Python: topics, senders and subscribers by minute, accounting, slow consumers, anomalies."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark import truth_gold as truth
from tests.spark.traffic import FATES, START, Row, Traffic, frame, inputs, message, own_ddl, traffic
from trunkline.spark.settings import PipelineSettings
from trunkline.spark.tables import (
    accounting,
    anomalies,
    deliveries,
    requests,
    sender_minute,
    slow_consumers,
    subscriber_minute,
    topic_minute,
)
from trunkline.spark.tables.sketches import merged
from trunkline.spark.tables.table import Inputs, QueryTable
from trunkline.spark.tables.traffic import traffic as counted

pytestmark = pytest.mark.long
"""The minutes and the books are compared in test_whole_runs.py as well, in less time."""
SEEDS = (1, 2)
SIZE = 400
SKETCHED = 0.0101
"""How far a percentile may be from the exact one."""


def given(
    spark: SparkSession,
    traffic: Traffic,
    hours: list[datetime] | None = None,
    settings: PipelineSettings = PipelineSettings(),
) -> Inputs:
    """As in a run: plain Python makes the silver tables, and gold tables use each other."""
    hours = traffic.hours() if hours is None else hours
    made: dict[str, DataFrame] = {}

    def table(name: str) -> DataFrame:
        return made[name]

    all_of = inputs(spark, traffic, hours, settings=settings, table=table)
    for name, rows, ddl in (
        ("deliveries", truth.deliveries(traffic), own_ddl(deliveries.TABLE)),
        ("requests", truth.requests(traffic), own_ddl(requests.TABLE)),
    ):
        made[name] = frame(spark, [row for row in rows if row["hour"] in hours], ddl)
    # As the contract has it, and no more: only what is about a message of these hours.
    seqs = {row["seq"] for row in traffic.messages if row["hour"] in hours}
    about = [row for row in traffic.fates if any(row["first"] <= seq <= row["last"] for seq in seqs)]
    made["topic_minute"] = topic_minute.TABLE.build(all_of)
    made["subscriber_minute"] = subscriber_minute.TABLE.build(all_of)
    return all_of._replace(fates=frame(spark, about, FATES))


def rows_of(table: QueryTable, inputs: Inputs) -> list[Row]:
    made = table.build(inputs)
    assert made.columns == [column.name for column in table.own_columns]
    assert made.dtypes == table.shape(made).dtypes
    return [row.asDict(recursive=True) for row in made.collect()]


def same(rows: list[Row], wanted: list[Row], *keys: str) -> None:
    """Row by row. Percentiles within the error of a sketch."""

    def key(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in keys)

    rows, wanted = sorted(rows, key=key), sorted(wanted, key=key)
    assert [key(row) for row in rows] == [key(row) for row in wanted]
    for row, expected in zip(rows, wanted, strict=True):
        assert row.keys() == expected.keys()
        for name, value in row.items():
            other = expected[name]
            if isinstance(value, float) and isinstance(other, float | int):
                assert value == pytest.approx(other, rel=SKETCHED if "_p" in name else 1e-9), (name, row, expected)
            else:
                assert value == other, (name, row, expected)


def part(rows: list[Row], hours: list[datetime]) -> list[Row]:
    return [row for row in rows if row["hour"] in hours]


Truth = Callable[[Traffic], list[Row]]
MINUTES: list[tuple[QueryTable, Truth, str]] = [
    (topic_minute.TABLE, truth.topic_minute, "topic"),
    (sender_minute.TABLE, truth.sender_minute, "sender"),
    (subscriber_minute.TABLE, truth.subscriber_minute, "subscriber"),
]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("table", "wanted", "who"), MINUTES, ids=[table.name for table, _, _ in MINUTES])
def test_minutes_are_what_plain_python_makes_of_them(
    spark: SparkSession, table: QueryTable, wanted: Truth, who: str, seed: int
) -> None:
    random = set_back(traffic(seed, SIZE))
    hours = some_hours(random, seed)
    assert any(row["lag_max_ms"] == 0 for row in part(truth.subscriber_minute(random), hours))
    same(rows_of(table, given(spark, random, hours)), part(wanted(random), hours), who, "minute")


@pytest.mark.parametrize("seed", SEEDS)
def test_the_books_are_what_plain_python_makes_of_them(spark: SparkSession, seed: int) -> None:
    random = spoiled(traffic(seed, SIZE))
    hours = some_hours(random, seed)
    wanted = truth.accounting(random)
    assert any(row["in_flight"] for row in wanted)
    assert {row["adds_up"] for row in part(wanted, hours)} == {True, False}
    same(rows_of(accounting.TABLE, given(spark, random, hours)), part(wanted, hours), "subscriber", "topic", "hour")


def some_hours(random: Traffic, seed: int) -> list[datetime]:
    """All of them, or some in the middle: a row must not depend on which others are made with it."""
    hours = random.hours()
    assert len(hours) > 2
    return hours if seed % 2 else hours[1:-1]


def set_back(given: Traffic) -> Traffic:
    """Every second fate is settled before its message was accepted, by a clock that was set back."""
    earlier = [row | {"time": row["time"] - timedelta(hours=row["number"] % 2)} for row in given.fates]
    return given._replace(fates=earlier)


def spoiled(given: Traffic) -> Traffic:
    """Every fifth range counts one message too few, and every fifth fate is lost."""
    fates = [
        row | {"count": row["count"] - (row["first"] < row["last"] and row["number"] % 5 == 0)} for row in given.fates
    ]
    return given._replace(fates=[row for row in fates if row["number"] % 5 != 1])


def test_slow_consumers_are_those_whose_minutes_say_so(spark: SparkSession) -> None:
    random = traffic(1)
    all_of = given(spark, random, settings=PipelineSettings(slow_s=2.5))
    # The percentiles have a test of their own: here they are what they are.
    minutes = rows_of(subscriber_minute.TABLE, all_of)
    wanted = truth.slow_consumers(minutes, 2.5)
    assert {row["why"] for row in wanted} == {"slow", "dropped", "slow and dropped"}
    same(rows_of(slow_consumers.TABLE, all_of), wanted, "hour", "rank")


# Anomalies: each case has its own hour, and all are made at once

FIRST = START + timedelta(minutes=10)
"""The first minute of an hour."""


def steady(case: int, topics: dict[str, Callable[[int], int]], accepted_in: int = 0) -> list[Row]:
    """An hour with this many messages in each minute. Their clocks may be ahead: all were accepted in one minute."""
    hour = FIRST + timedelta(hours=case)
    return [
        message(0, hour + timedelta(minutes=accepted_in or minute), time=hour + timedelta(minutes=minute), topic=topic)
        for minute in range(60)
        for topic, rate in topics.items()
        for _ in range(rate(minute))
    ]


def usual(minute: int) -> int:
    return 12 + minute % 3


def asked(case: int) -> list[Row]:
    """Half an hour with a request a minute, of which two take long to answer."""
    rows = []
    for minute in range(30):
        at = FIRST + timedelta(hours=case, minutes=minute)
        took = timedelta(milliseconds=400 if minute in (9, 20) else 50 + minute % 4)
        rows.append(message(0, at, topic="pricing", type="request", request_id=f"r{minute}"))
        rows.append(message(0, at + took, topic="_reply.shop", type="response", request_id=f"r{minute}"))
    return rows


CASES: dict[str, list[Row]] = {}
CASES["usual"] = steady(0, {"orders": usual, "ticks": usual})
CASES["spikes"] = steady(1, {"orders": lambda minute: 60 if minute in (9, 30) else usual(minute)})
CASES["dips"] = steady(2, {"ticks": lambda minute: 5 if minute in (40, 59) else 100, "orders": usual})
CASES["silence"] = steady(
    3,
    {
        "ticks": lambda minute: 0 if minute in (5, 6, 7, 20, 21, 22, 40, 41) else usual(minute),
        "orders": lambda minute: usual(minute) if minute < 50 else 0,
        "rare": lambda minute: 1 if minute < 30 else 0,
    },
)
CASES["ahead"] = [
    *steady(4, {"orders": lambda minute: usual(minute) if minute < 31 else 0}),
    *steady(4, {"early": lambda minute: int(minute == 55)}, accepted_in=30),
]
CASES["slower"] = asked(5)


@pytest.fixture(scope="module")
def odd(spark: SparkSession) -> list[Row]:
    rows = [row for case in CASES.values() for row in sorted(case, key=lambda row: row["accepted"])]
    cases = Traffic([row | {"seq": seq, "id": f"m{seq}"} for seq, row in enumerate(rows, 1)], [], [], [])
    all_of = given(spark, cases)
    found = rows_of(anomalies.TABLE, all_of)
    same(found, truth.anomalies(cases, rows_of(topic_minute.TABLE, all_of)), "hour", "topic", "minute", "what")
    return found


def told(odd: list[Row], case: str) -> set[tuple[str, str, int, int]]:
    hour = FIRST + timedelta(hours=list(CASES).index(case))
    return {(row["what"], row["topic"], row["minute"].minute, row["minutes"]) for row in part(odd, [hour])}


def test_a_rate_that_is_unlike_the_minutes_before_is_odd(odd: list[Row]) -> None:
    assert told(odd, "usual") == set()
    # At minute 9 there is no past yet.
    assert told(odd, "spikes") == {("rate", "orders", 30, 1)}
    # The last minute may go on.
    assert told(odd, "dips") == {("rate", "ticks", 40, 1)}


def test_a_topic_that_falls_silent_is_odd(odd: list[Row]) -> None:
    # What began before there was a past, or was over in two minutes, is not told. What goes on is, up to the last
    # minute that is known of. A message a minute that does not come thrice may be chance.
    assert told(odd, "silence") == {
        ("silence", "ticks", 20, 3),
        ("silence", "orders", 50, 9),
        ("silence", "rare", 30, 29),
    }


def test_a_clock_that_is_ahead_makes_nobody_silent(odd: list[Row]) -> None:
    assert told(odd, "ahead") == set()


def test_answers_that_take_longer_than_before_are_odd(odd: list[Row]) -> None:
    assert told(odd, "slower") == {("latency", "pricing", 20, 1)}


# Books that do not balance: each case has its own topic, and all are made at once


class Book(NamedTuple):
    topics: list[str]
    """Of its messages, by number: 1, 2, …"""
    fates: list[tuple[str, str, str, int, int, int]]
    """Subscriber, pattern, fate, first, last and count."""


BOOKS = {
    "adds up": Book(
        ["ticks"] * 10,
        [
            ("watch", "ticks", "delivered", 1, 8, 6),
            ("watch", "ticks", "dead", 3, 3, 1),
            ("watch", "ticks", "delivered", 4, 4, 1),  # alone, at the moment of the range, and inside of it
        ],
    ),
    "surplus": Book(["a.b"] * 5 + ["a.c"], [("audit", "a.>", "delivered", 1, 6, 4)]),
    "gaps": Book(
        ["orders"] * 9,
        [
            ("bill", "orders", "delivered", 1, 3, 3),
            ("bill", "orders", "delivered", 6, 8, 3),
            ("member", "orders", "delivered", 2, 2, 1),
            ("member", "orders", "delivered", 7, 7, 1),
            ("shop", "orders", "refused", 5, 5, 1),
        ],
    ),
    "endpoint": Book(
        ["_to.pricing", "_all"] * 4,
        [
            ("pricing", "_to.pricing", "delivered", 1, 3, 2),
            ("pricing", "_to.pricing", "delivered", 2, 2, 1),  # an endpoint hears what is for all, too
        ],
    ),
    "missing": Book(["lost"] * 5, [("search", "lost", "delivered", 1, 5, 7)]),
    "twins": Book(["twice"] * 5, [("twin", "twice", "delivered", 1, 5, 5)] * 2),
}


@pytest.fixture(scope="module")
def books(spark: SparkSession) -> dict[tuple[str, str], Row]:
    """By subscriber and topic."""
    messages: list[Row] = []
    fates: list[Row] = []
    for book in BOOKS.values():
        before = len(messages)
        for topic in book.topics:
            seq = len(messages) + 1
            messages.append(message(seq, FIRST + timedelta(seconds=seq), topic=topic))
        for subscriber, pattern, fate, first, last, count in book.fates:
            row = {"number": len(fates) + 1, "subscriber": subscriber, "pattern": pattern, "fate": fate, "reason": ""}
            row |= {"first": before + first, "last": before + last, "count": count}
            fates.append(row | {"time": FIRST + timedelta(hours=1)})
    all_of = Traffic(messages, fates, [], [])
    rows = rows_of(accounting.TABLE, given(spark, all_of))
    same(rows, truth.accounting(all_of), "subscriber", "topic")
    return {(row["subscriber"], row["topic"]): row for row in rows}


def test_books_that_add_up(books: dict[tuple[str, str], Row]) -> None:
    row = books["watch", "ticks"]
    assert (row["delivered"], row["dead"], row["in_flight"], row["unaccounted"]) == (7, 1, 2, 0)
    assert (row["adds_up"], row["accepted"], row["claimed"]) == (True, 10, 8)


def test_a_message_that_a_range_does_not_count_is_unaccounted(books: dict[tuple[str, str], Row]) -> None:
    # Two too many. Nobody knows which; the last topic has but one.
    most, last = books["audit", "a.b"], books["audit", "a.c"]
    assert (most["delivered"], most["unaccounted"], most["claimed"]) == (4, 1, 0)
    assert (last["delivered"], last["unaccounted"], last["claimed"]) == (0, 1, 4)
    assert not most["adds_up"]


def test_a_message_between_ranges_is_unaccounted_unless_others_share_the_work(
    books: dict[tuple[str, str], Row],
) -> None:
    bill, member = books["bill", "orders"], books["member", "orders"]
    # Number 5 was refused: no subscriber gets it.
    assert (bill["unaccounted"], bill["in_flight"], bill["adds_up"]) == (1, 1, False)
    assert (member["unaccounted"], member["in_flight"], member["adds_up"]) == (0, 2, True)
    assert ("shop", "orders") not in books


def test_messages_on_topics_that_one_does_not_listen_to_are_not_ones_own(books: dict[tuple[str, str], Row]) -> None:
    assert books["pricing", "_all"]["accepted"] == 1
    assert books["pricing", "_to.pricing"]["in_flight"] == 2


def test_what_the_books_speak_of_and_nobody_has_shows_in_what_is_claimed(books: dict[tuple[str, str], Row]) -> None:
    row = books["search", "lost"]
    assert (row["delivered"], row["claimed"]) == (5, 7)


def test_two_subscribers_of_one_name_count_once(books: dict[tuple[str, str], Row]) -> None:
    row = books["twin", "twice"]
    assert (row["delivered"], row["unaccounted"]) == (5, 0)
    assert row["claimed"] == 10, "both have said so"


# Sketches


def test_minutes_merge_into_hours_as_if_they_had_never_been_apart(spark: SparkSession) -> None:
    random = traffic(7, 400)
    table = topic_minute.TABLE.build(given(spark, random))
    rows = [row.asDict(recursive=True) for row in merged(table, ["topic", "hour"]).collect()]
    requests = truth.requests(random)
    assert len(rows) == len({(row["topic"], row["hour"]) for row in random.messages})
    for row in rows:
        mine = [each for each in random.messages if (each["topic"], each["hour"]) == (row["topic"], row["hour"])]
        delays = truth.exact(truth.micros(each["accepted"] - each["time"]) / 1000 for each in mine)
        took = truth.exact(
            each["latency_ms"]
            for each in requests
            if (each["topic"], each["hour"], each["outcome"]) == (row["topic"], row["hour"], "answered")
        )
        assert sum(entry["count"] for entry in row["delay_sketch"]) == len(mine)
        for stem, exact in (("delay", delays), ("latency", took)):
            for percent, value in exact.items():
                assert row[f"{stem}_p{percent}_ms"] == (value and pytest.approx(value, rel=SKETCHED))


def test_percentiles_hold_for_many_values_of_any_size(spark: SparkSession) -> None:
    at = "timestamp_micros(1794870000000000L + cast(exp(id * 0.0023) as bigint))"
    fixed = "'ticks' topic", "'shop' sender", "'publish' type", "binary('') payload"
    same_time = ("timestamp_micros(1794870000000000L) placed", "timestamp_micros(1794870000000000L) time")
    placed = "id seq", "timestamp_micros(1794870000000000L) hour"
    many = spark.range(10_000).selectExpr(*fixed, *placed, *same_time, f"{at} accepted")
    nothing = given(spark, Traffic([], [], [], []), [])
    (row,) = topic_minute.TABLE.build(nothing._replace(traffic=counted(many))).collect()
    for percent in (50, 95, 99):
        exact_ms = int(math.exp((percent * 100 - 1) * 0.0023)) / 1000
        assert row[f"delay_p{percent}_ms"] == pytest.approx(exact_ms, rel=SKETCHED)
