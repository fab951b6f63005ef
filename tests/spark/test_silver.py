"""Requests, orphans and dead letters against plain Python on random traffic, and corner cases by hand."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import Phase
from hypothesis import given as drawn
from hypothesis import settings as examples
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from tests.spark import truth_silver as truth
from tests.spark.traffic import (
    START,
    Row,
    Traffic,
    fate,
    frame,
    inputs,
    message,
    messages,
    ordered,
    own_ddl,
    some_hours,
    traffic,
)
from trunkline.spark.settings import PipelineSettings
from trunkline.spark.tables import conversations, dead_letters, deliveries, orphans, requests
from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.spark.tables.patterns import matching
from trunkline.spark.tables.table import QueryTable
from trunkline.topic import matches

pytestmark = pytest.mark.long
"""The same tables are compared in test_whole_runs.py as well, on one journal and in less time."""
SEEDS = range(1, 13)
SETTINGS = PipelineSettings()


def made(
    spark: SparkSession,
    table: QueryTable,
    given: Traffic,
    hours: list[datetime] | None = None,
    settings: PipelineSettings = SETTINGS,
) -> list[Row]:
    def earlier(name: str) -> DataFrame:
        assert name == "deliveries"
        rows = [row for row in truth.deliveries(given) if hours is None or row["hour"] in hours]
        return frame(spark, rows, own_ddl(deliveries.TABLE))

    rows = table.build(inputs(spark, given, hours, settings=settings, table=earlier))
    return ordered(row.asDict() for row in table.shape(rows).collect())


def check(spark: SparkSession, table: QueryTable, given: Traffic, expected: list[Row], seed: int) -> None:
    assert expected, "the traffic shows nothing"
    assert made(spark, table, given) == ordered(expected)
    hours = some_hours(given, seed)
    assert made(spark, table, given, hours) == ordered(row for row in expected if row["hour"] in hours)


# Patterns


TOKENS = st.sampled_from(("a", "b", "a+b", "_x", "$1", "grüße", "(", "[a]"))
WILD = st.one_of(TOKENS, st.just("*"))
TOPIC = st.lists(TOKENS, min_size=1, max_size=3).map(".".join)
PATTERN = st.builds(
    lambda tokens, rest: ".".join(tokens + rest), st.lists(WILD, min_size=1, max_size=3), st.sampled_from(([], [">"]))
)


def test_topics_match_patterns_as_they_do_on_the_bus(spark: SparkSession) -> None:
    @examples(max_examples=3, phases=[Phase.generate])  # shrinking would take minutes
    @drawn(st.sets(PATTERN, min_size=30, max_size=40), st.sets(TOPIC, min_size=30, max_size=40))
    def agree(patterns: set[str], topics: set[str]) -> None:
        patterns |= {">", "*", "a.>"}
        wanted = driver_frame(spark, [(each,) for each in patterns], "pattern string")
        given = driver_frame(spark, [(each,) for each in topics], "topic string")
        found = sorted((row["pattern"], row["topic"]) for row in matching(given, wanted).collect())
        assert found == sorted((each, topic) for each in patterns for topic in topics if matches(each, topic))

    agree()


# Requests


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_have_the_answers_that_came(spark: SparkSession, seed: int) -> None:
    given = traffic(seed)
    expected = truth.requests(given)
    assert {row["outcome"] for row in expected} >= {"answered", "failed", "timed out"}
    check(spark, requests.TABLE, given, expected, seed)


def test_each_way_a_request_can_end(spark: SparkSession) -> None:
    def ask(seq: int, name: str | None, **fields: Any) -> Row:
        return message(seq, START + timedelta(seconds=seq), type="request", request_id=name, **fields)

    def answer(seq: int, name: str | None, type: str = "response", **fields: Any) -> Row:
        return message(seq, START + timedelta(seconds=seq), type=type, request_id=name, sender=f"s{seq}", **fields)

    rows = [
        ask(1, "answered"),
        ask(2, "failed"),
        ask(3, "failed first"),
        ask(4, "orphaned"),
        ask(5, "late, then in time"),
        ask(6, "refused"),
        ask(7, "twice"),
        ask(8, "twice"),
        ask(9, None),
        ask(10, "too late"),
        answer(11, "answered"),
        answer(12, "answered", "error"),
        answer(13, "failed", "error"),
        answer(14, "failed first", "error"),
        answer(15, "failed first"),
        answer(16, "orphaned"),
        answer(17, "orphaned"),
        answer(18, "late, then in time"),
        answer(19, "late, then in time"),
        answer(20, "twice"),
        answer(21, "refused"),
        answer(22, "never asked"),
        answer(23, None, "error"),
        answer(24, "answered", "ack"),
        ask(3611, "timed out"),
        ask(3612, "open"),
        answer(3620, "too late"),
        message(3641, START + timedelta(seconds=3641)),
    ]
    lost = [
        {"seq": seq, "id": f"m{seq}", "request_id": "", "topic": "", "why": "late", "at": START} for seq in (16, 17, 18)
    ]
    given = Traffic(rows, [fate(1, "bus", "refused", 6, 6)], [], lost)
    found = {row["seq"]: row for row in made(spark, requests.TABLE, given)}
    assert {seq: (row["outcome"], row["answer_seq"], row["answers"]) for seq, row in found.items()} == {
        1: ("answered", 11, 2),
        2: ("failed", 13, 1),
        3: ("failed", 14, 2),
        4: ("orphaned", 16, 2),
        5: ("answered", 19, 2),
        6: ("refused", 21, 1),
        7: ("answered", 20, 1),
        8: ("answered", 20, 1),
        9: ("timed out", None, 0),
        10: ("timed out", None, 0),
        3611: ("timed out", None, 0),
        3612: ("open", None, 0),
    }
    assert (found[5]["latency_ms"], found[5]["responder"]) == (14_000.0, "s19")
    assert ordered(found.values()) == ordered(truth.requests(given))


def test_which_hours_are_made_together_does_not_matter_to_a_request(spark: SparkSession) -> None:
    hour = START.replace(minute=0) + timedelta(hours=1)
    rows = [
        # By a clock that is ahead: it counts in the hour after that of its answer.
        message(1, hour - timedelta(seconds=2), time=hour + timedelta(seconds=1), type="request", request_id="a"),
        message(2, hour - timedelta(seconds=1), type="response", request_id="a"),
        message(3, hour + timedelta(seconds=60)),
    ]
    given = Traffic(rows, [], [], [])
    (row,) = made(spark, requests.TABLE, given)
    assert (row["outcome"], row["answers"], row["latency_ms"]) == ("answered", 1, 1000.0)
    assert made(spark, requests.TABLE, given, [hour]) == [row]


@pytest.mark.parametrize("before", [timedelta(), timedelta(minutes=30)], ids=["across hours", "within an hour"])
def test_an_answer_that_is_placed_before_its_request_counts(spark: SparkSession, before: timedelta) -> None:
    """It came 0.2 s early, or its sender's clock is half a second slow."""
    hour = START.replace(minute=0) + timedelta(hours=1) - before
    later = hour + timedelta(seconds=0.1)
    rows = [
        message(1, hour - timedelta(seconds=0.1), type="response", request_id="early"),
        message(2, later, type="request", request_id="early"),
        message(3, later, type="request", request_id="behind"),
        message(4, later, time=later - timedelta(seconds=0.5), type="response", request_id="behind"),
        message(5, hour + timedelta(minutes=5)),
    ]
    given = Traffic(rows, [], [], [])
    found = made(spark, requests.TABLE, given)
    assert [(row["seq"], row["outcome"], row["answer_seq"]) for row in found] == [
        (2, "answered", 1),
        (3, "answered", 4),
    ]
    assert made(spark, requests.TABLE, given, [found[0]["hour"]]) == found
    (tree,) = made(spark, conversations.TABLE, given, [found[0]["hour"]])
    assert (tree["root_id"], tree["messages"], tree["depth"]) == ("m3", 2, 2)


# Conversations


def test_those_who_took_part_are_in_order_and_each_once_also_in_a_conversation_of_two(spark: SparkSession) -> None:
    pairs = [("b", "a"), ("a", "b"), ("a", "a"), (None, "a"), ("a", None), (None, None)]
    rows = []
    for number, (asker, other) in enumerate(pairs):
        at = START + timedelta(seconds=number)
        rows.append(message(2 * number, at, sender=asker, topic=f"x.{asker}"))
        rows.append(message(2 * number + 1, at, sender=other, topic=f"x.{other}", correlation_id=f"m{2 * number}"))
    found = {row["root_id"]: row for row in made(spark, conversations.TABLE, Traffic(rows, [], [], []))}
    assert [found[f"m{2 * number}"]["senders"] for number in range(len(pairs))] == [
        ["a", "b"],
        ["a", "b"],
        ["a"],
        [None, "a"],
        [None, "a"],
        [None],
    ]
    assert [len(found[f"m{2 * number}"]["topics"]) for number in range(len(pairs))] == [2, 2, 1, 2, 2, 1]


# Orphans


@pytest.mark.parametrize("seed", SEEDS)
def test_orphans_have_their_request(spark: SparkSession, seed: int) -> None:
    given = traffic(seed, 400)
    expected = truth.orphans(given)
    assert any(row["request_seq"] for row in expected)
    check(spark, orphans.TABLE, given, expected, seed)


def test_an_orphan_whose_request_was_asked_in_the_hour_before(spark: SparkSession) -> None:
    start = START.replace(minute=59)
    rows = [
        message(seq, start + timedelta(minutes=4 * seq), type=type, request_id="a", sender=f"s{seq}")
        for seq, type in enumerate(("request", "response"))
    ]
    given = Traffic(rows, [], [], [{"seq": 1, "id": "", "request_id": "a", "topic": "", "why": "late", "at": START}])
    assert rows[0]["hour"] < rows[1]["hour"]
    (row,) = made(spark, orphans.TABLE, given, [rows[1]["hour"]])
    assert (row["asker"], row["after_ms"]) == ("s0", 240_000.0)


def test_orphans_whose_request_is_unknown_or_asked_twice(spark: SparkSession) -> None:
    def at(seq: int, type: str, name: str | None) -> Row:
        return message(seq, START + timedelta(seconds=seq), type=type, request_id=name, sender=f"s{seq}")

    rows = [at(1, "request", "a"), at(2, "request", "a"), at(3, "response", "a"), at(4, "response", "b")]
    rows += [at(5, "response", None), at(6, "response", "c"), at(7, "request", "c")]
    kept = [
        {"seq": seq, "id": "", "request_id": "", "topic": "", "why": "late", "at": START} for seq in (3, 4, 5, 6, 9)
    ]
    given = Traffic(rows, [], [], kept)
    found = made(spark, orphans.TABLE, given)
    assert found == ordered(truth.orphans(given))
    assert [(row["seq"], row["asker"], row["after_ms"]) for row in sorted(found, key=lambda row: row["seq"])] == [
        (3, "s1", 2000.0),
        (4, None, None),
        (5, None, None),
        (6, "s7", -1000.0),
    ]


# Dead letters

OF_FINGERPRINTS = ("fingerprint", "first_seen", "last_seen", "senders")


@pytest.mark.parametrize("seed", SEEDS)
def test_dead_letters_have_what_is_known_of_them(spark: SparkSession, seed: int) -> None:
    given = traffic(seed, 400)
    expected = truth.dead_letters(given)
    assert {row["replayed"] for row in expected} == {True, False}
    assert None in {row["traceback"] for row in expected}
    for hours in (given.hours(), some_hours(given, seed)):
        found = made(spark, dead_letters.TABLE, given, hours)
        plain = [{name: value for name, value in row.items() if name not in OF_FINGERPRINTS} for row in found]
        assert ordered(plain) == ordered(row for row in expected if row["hour"] in hours)
        # Two places in the code fail, and what is left of letters that are gone is a third.
        assert fingerprints(found) == fingerprints([{**row, "fingerprint": place(row)} for row in found])
        for row in found:
            alike = [each for each in found if (each["fingerprint"], each["hour"]) == (row["fingerprint"], row["hour"])]
            assert row["first_seen"] == min(each["died"] for each in alike)
            assert row["last_seen"] == max(each["died"] for each in alike)
            assert row["senders"] == sorted({each["sender"] for each in alike})


def place(row: Row) -> tuple[str, str | None]:
    return row["subscriber"], row["traceback"] and row["traceback"].split("\n")[1]


def fingerprints(rows: list[Row]) -> set[frozenset[tuple[int, str]]]:
    """Which rows share a fingerprint."""
    shared: dict[Any, set[tuple[int, str]]] = {}
    for row in rows:
        shared.setdefault(row["fingerprint"], set()).add((row["seq"], row["subscriber"]))
    return {frozenset(each) for each in shared.values()}


def buried(*said: Row) -> Traffic:
    """Dead letters with this cause: from their letter, or from their fate if there is none."""
    rows = messages(*range(1, len(said) + 1))
    fates, letters = [], []
    for seq, each in enumerate(said, 1):
        fates.append(fate(seq, each.get("subscriber", "x"), "dead", seq, seq, reason=each.pop("fate", "")))
        if each:
            letter = {"subscriber": "x", "seq": seq, "at": START, "topic": "ticks", "id": f"m{seq}", "attempts": 1}
            letter |= {"cause": "handler failed", "reason": "", "error_type": "ValueError", "traceback": None}
            letters.append(letter | each)
    return Traffic(rows, fates, letters, [])


def trace(*frames: tuple[str, int, str], end: str = "ValueError: bad") -> str:
    return "\n".join(
        ("Traceback:", *(f'  File "{file}", line {line}, in {name}\n    x()' for file, line, name in frames), end)
    )


def test_one_bug_has_one_fingerprint(spark: SparkSession) -> None:
    deep = [("/srv/app/main.py", line, "walk") for line in range(7)]
    same = [
        [{"traceback": trace(("/srv/a/bill.py", 3, "bill"), end="ValueError: order 17"), "reason": "order 17"},
         {"traceback": trace(("C:\\b\\bill.py", 3, "bill"), end="ValueError: order 18"), "reason": "order 18"}],
        [{"traceback": trace(("/srv/a/bill.py", 4, "bill"))}],
        [{"traceback": trace(("/srv/a/bill.py", 3, "pay"))}],
        [{"traceback": trace(("/srv/a/tax.py", 3, "bill"))}],
        [{"traceback": trace(("bill.py", 3, "bill")), "subscriber": "y"}],
        [{"traceback": trace(("bill.py", 3, "bill")), "error_type": "KeyError"}],
        [{"traceback": trace(("bill.py", 3, "bill")), "cause": "rejected by the handler"}],
        [{"traceback": trace(*deep)}, {"traceback": trace(("/usr/bin/other.py", 1, "start"), *deep)}],
        [{"reason": f"no user {name} at {at} in {number}"} for name, at, number in (
            ("'ann'", "0x7f00aa", "3"), ('"bob, jr."', "0xdeadbeef", "17"), ("''", "0x0", "123456"))],
        [{"reason": f"id {each} is gone", "traceback": ""} for each in (
            "0190f5ea-7b1c-7000-8000-00000000000a", "9f86d081884c7d65", "DEADBEEF01")],
        [{"reason": "can't pay, don't ask"}],
        [{"reason": "can't pay, didn't ask"}],
        [{"fate": "handler failed: KeyError: 'a1'"}, {"fate": "handler failed: KeyError: 'b2'"}],
        [{"fate": "not acknowledged: KeyError: 'a1'"}],
        [{"fate": ""}],
    ]  # fmt: skip
    given = buried(*(each for group in same for each in group))
    found = sorted(made(spark, dead_letters.TABLE, given), key=lambda row: row["seq"])
    assert all(len(row["fingerprint"]) == 16 for row in found)
    numbers = iter(range(1, len(found) + 1))
    groups = {frozenset(next(numbers) for _ in group) for group in same}
    assert {frozenset(seq for seq, _ in each) for each in fingerprints(found)} == groups


def test_the_fate_says_the_cause_when_the_letter_is_gone(spark: SparkSession) -> None:
    given = buried({"fate": "handler timed out: HandlerTimeout: 3 s"}, {"fate": "because: of: this"}, {"fate": ""})
    found = sorted(made(spark, dead_letters.TABLE, given), key=lambda row: row["seq"])
    assert [(row["cause"], row["reason"], row["error_type"], row["attempts"]) for row in found] == [
        ("handler timed out", "HandlerTimeout: 3 s", None, None),
        (None, "because: of: this", None, None),
        (None, "", None, None),
    ]


def test_the_last_of_several_deaths_and_letters_counts(spark: SparkSession) -> None:
    fates = [
        fate(1, "x", "dead", 1, 1, reason="first"),
        fate(2, "x", "delivered", 1, 1),
        fate(3, "x", "dead", 1, 1, reason="second"),
        fate(4, "x", "dead", 2, 2),
        fate(5, "x", "delivered", 2, 2),
    ]
    base = {"subscriber": "x", "seq": 1, "topic": "ticks", "id": "m1", "cause": "rejected by the handler"}
    base |= {"error_type": None, "traceback": None, "attempts": None}
    letters = [{**base, "at": START + timedelta(seconds=number), "reason": str(number)} for number in (2, 1)]
    one, other = made(spark, dead_letters.TABLE, Traffic(messages(1, 2), fates, letters, []))
    assert (one["died"], one["deaths"], one["reason"], one["replayed"]) == (fates[2]["time"], 2, "2", False)
    assert (other["died"], other["deaths"], other["replayed_at"]) == (fates[3]["time"], 1, fates[4]["time"])


def test_failures_put_the_letters_of_a_bug_together(spark: SparkSession) -> None:
    given = traffic(4, 400)
    rows = made(spark, dead_letters.TABLE, given)
    table = frame(spark, rows, own_ddl(dead_letters.TABLE))
    found = [row.asDict() for row in dead_letters.failures(table).collect()]
    assert [row["count"] for row in found] == sorted((row["count"] for row in found), reverse=True)
    assert {row["fingerprint"] for row in found} == {row["fingerprint"] for row in rows}
    for failure in found:
        alike = [row for row in rows if row["fingerprint"] == failure["fingerprint"]]
        last = max(alike, key=lambda row: (row["died"], row["seq"], row["subscriber"]))
        assert failure == {
            "fingerprint": last["fingerprint"],
            "count": len(alike),
            "first_seen": min(row["died"] for row in alike),
            "last_seen": last["died"],
            "senders": sorted({row["sender"] for row in alike}),
            "subscribers": sorted({row["subscriber"] for row in alike}),
            "replayed": sum(row["replayed"] for row in alike),
            **{name: last[name] for name in ("cause", "error_type", "reason", "traceback")},
        }
