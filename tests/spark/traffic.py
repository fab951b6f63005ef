"""Random traffic as rows, for tests of tables: duplicates, late and missing answers, skewed clocks, odd payloads.

The rows are those of bronze, made without Spark; `inputs` hands them to Spark as a run would.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession

from trunkline.spark.settings import PipelineSettings
from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.spark.tables.related import related
from trunkline.spark.tables.settled import settled
from trunkline.spark.tables.table import ChannelContract, Inputs, Table
from trunkline.spark.tables.traffic import traffic as counted
from trunkline.topic import matches

Row = dict[str, Any]

START = datetime(2026, 11, 16, 22, 50)
TOPICS = ("orders.placed", "orders.paid", "ticks", "chat.grüße", "pricing")
SENDERS = ("shop", "bank", "clock", "木")
SUBSCRIBERS = {"billing": "orders.*", "audit": ">", "watch": "ticks", "shy": "chat.>"}

MESSAGES = (
    "seq long, id string, topic string, time timestamp, accepted timestamp, type string, sender string,"
    " recipient string, priority int, ttl_s double, request_id string, correlation_id string, reply_to string,"
    " attempts long, requires_ack boolean, content_type string, encoding string, schema string, trace string,"
    " headers map<string,string>, timestamp_ns long, payload binary, placed timestamp, hour timestamp, late boolean"
)
FATES = (
    "number long, subscriber string, pattern string, fate string, first long, last long, count long, reason string,"
    " time timestamp"
)
LETTERS = (
    "subscriber string, seq long, at timestamp, topic string, id string, cause string, reason string,"
    " error_type string, traceback string, attempts int"
)
ORPHANS = "seq long, id string, request_id string, topic string, why string, at timestamp"


class Traffic(NamedTuple):
    messages: list[Row]
    fates: list[Row]
    letters: list[Row]
    orphans: list[Row]
    channels: tuple[ChannelContract, ...] = ()

    @property
    def upto(self) -> datetime:
        return max((row["accepted"] for row in self.messages), default=START)

    def hours(self) -> list[datetime]:
        return sorted({row["hour"] for row in self.messages})


def hour_of(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def message(seq: int, accepted: datetime, settings: PipelineSettings = PipelineSettings(), **fields: Any) -> Row:
    """A bronze message. Fields that are not given have typical values."""
    time = fields.pop("time", accepted)
    late = abs((accepted - time).total_seconds()) > settings.watermark_s
    placed = accepted if late else time
    payload = fields.pop("payload", b"{}")
    row: Row = {
        "seq": seq,
        "id": f"m{seq}",
        "topic": "ticks",
        "type": "publish",
        "sender": "shop",
        "recipient": None,
        "priority": 50,
        "ttl_s": None,
        "request_id": None,
        "correlation_id": None,
        "reply_to": None,
        "attempts": 0,
        "requires_ack": False,
        "content_type": "application/json",
        "encoding": "",
        "schema": None,
        "trace": None,
        "headers": None,
    }
    row.update(fields)
    row.update(
        time=time,
        accepted=accepted,
        timestamp_ns=int(time.replace(tzinfo=UTC).timestamp() * 1_000_000) * 1000,
        payload=payload,
        placed=placed,
        hour=hour_of(placed),
        late=late,
    )
    return {name.split()[0]: row[name.split()[0]] for name in _names(MESSAGES)}


def traffic(seed: int, size: int = 200, settings: PipelineSettings = PipelineSettings()) -> Traffic:
    """Messages over about two hours, with some requests, and their fates."""
    chance = random.Random(seed)
    messages: list[Row] = []
    orphans: list[Row] = []
    waiting: list[tuple[datetime, Row]] = []
    now = START
    seq = 0
    asked: list[Row] = []
    while len(messages) < size:
        now += timedelta(microseconds=chance.randrange(1, 80_000_000 if chance.random() < 0.5 else 200_000))
        seq += chance.choice((1, 1, 1, 1, 3))
        due = [each for each in waiting if each[0] <= now]
        if due and chance.random() < 0.7:
            waiting.remove(due[0])
            answer = {**due[0][1]}
            row = message(seq, now, settings, **answer)
            messages.append(row)
            if answer["type"] != "error" and chance.random() < 0.15:
                orphans.append(
                    {
                        "seq": seq,
                        "id": row["id"],
                        "request_id": row["request_id"],
                        "topic": row["topic"],
                        "why": chance.choice(("late", "early", "unknown")),
                        "at": now,
                    }
                )
            continue
        fields: Row = {
            "topic": chance.choice(TOPICS),
            "sender": chance.choice(SENDERS),
            "payload": _payload(chance),
            "time": now - timedelta(seconds=_skew(chance)),
        }
        if chance.random() < 0.1:
            fields["content_type"], fields["payload"] = "application/msgpack", msgspec.msgpack.encode({"n": seq})
        if messages and chance.random() < 0.3:
            fields["correlation_id"] = chance.choice(messages)["id"] if chance.random() < 0.8 else f"c{seq % 7}"
        if chance.random() < 0.3:
            fields.update(type="request", request_id=f"r{seq}", reply_to="_reply.shop", topic="pricing")
        row = message(seq, now, settings, **fields)
        messages.append(row)
        if row["type"] == "request":
            asked.append(row)
            for _ in range(chance.choice((0, 1, 1, 1, 1, 2))):
                answer = {
                    "topic": "_reply.shop",
                    "type": chance.choice(("response", "response", "response", "error")),
                    "sender": chance.choice(SENDERS),
                    "request_id": row["request_id"],
                    "correlation_id": row["correlation_id"],
                    "payload": b'{"price": 1}',
                }
                pause = chance.choice((0.0001, 0.5, 2, 29, 31, 120))
                waiting.append((now + timedelta(seconds=pause), answer))
    fates = _fates(chance, messages)
    letters = _letters(chance, fates, messages)
    return Traffic(messages, fates, letters, orphans)


def _skew(chance: random.Random) -> float:
    kind = chance.random()
    if kind < 0.8:
        return chance.random() * 0.01
    if kind < 0.95:
        return chance.uniform(-300, 1500)
    return chance.uniform(4000, 90_000) * chance.choice((-1, 1))


def _payload(chance: random.Random) -> bytes:
    return chance.choice(
        (
            b"",
            b"not json {",
            b"\xff\xfe\x00",
            json.dumps({"total": chance.randrange(100), "place": "Zürich"}).encode(),
            json.dumps({"total": "many"}).encode(),
            json.dumps(["a", 1, None]).encode(),
        )
    )


def _fates(chance: random.Random, messages: list[Row]) -> list[Row]:
    """Ranges of delivered messages, single rows for the others. Some messages have none yet."""
    found: list[Row] = []
    number = 0

    def add(
        subscriber: str, pattern: str, fate: str, first: int, last: int, count: int, why: str, at: datetime
    ) -> None:
        nonlocal number
        number += 1
        values = (number, subscriber, pattern, fate, first, last, count, why, at)
        found.append(dict(zip(_plain(FATES), values, strict=True)))

    for subscriber, pattern in SUBSCRIBERS.items():
        mine = [row for row in messages if matches(pattern, row["topic"])]
        index = 0
        while index < len(mine) * 0.95:
            run = mine[index : index + chance.randrange(1, 12)]
            index += len(run)
            alone = [row for row in run if chance.random() < 0.15]
            rest = [row for row in run if row not in alone]
            at = run[-1]["accepted"] + timedelta(milliseconds=chance.randrange(1, 5000))
            if rest:
                first, last = rest[0]["seq"], rest[-1]["seq"]
                add(subscriber, pattern, "delivered", first, last, len(rest), "", at)
            for row in alone:
                fate = chance.choice(("filtered", "expired", "dropped", "dead", "delivered"))
                why = {"dead": "ValueError: bad order 17"}.get(fate, "")
                add(subscriber, pattern, fate, row["seq"], row["seq"], 1, why, at)
                if fate == "dead" and chance.random() < 0.3:
                    add(subscriber, pattern, "delivered", row["seq"], row["seq"], 1, "", at + timedelta(seconds=60))
    for row in messages:
        if chance.random() < 0.02:
            add("shop", row["topic"], "refused", row["seq"], row["seq"], 1, "RateLimited: too fast", row["accepted"])
    return found


def _letters(chance: random.Random, fates: list[Row], messages: list[Row]) -> list[Row]:
    by_seq = {row["seq"]: row for row in messages}
    letters = []
    for fate in fates:
        if fate["fate"] != "dead" or chance.random() < 0.2:
            continue
        row = by_seq[fate["first"]]
        place = chance.choice((3, 17))
        letters.append(
            {
                "subscriber": fate["subscriber"],
                "seq": row["seq"],
                "at": fate["time"],
                "topic": row["topic"],
                "id": row["id"],
                "cause": "handler failed",
                "reason": f"ValueError: bad order {chance.randrange(1000)}",
                "error_type": "ValueError",
                "traceback": f'Traceback\n  File "bill.py", line {place}, in bill\nValueError: bad {row["seq"]}\n',
                "attempts": chance.randrange(1, 4),
            }
        )
    return letters


def _names(ddl: str) -> list[str]:
    return [part.strip() for part in ddl.replace("map<string,string>", "map").split(",")]


def _plain(ddl: str) -> list[str]:
    return [part.split()[0].strip("`") for part in _names(ddl)]


def own_ddl(table: Table) -> str:
    """The columns of a table as a build makes them, without those that name the journal."""
    return ", ".join(f"{column.name} {column.type}" for column in table.own_columns)


def frame(spark: SparkSession, rows: list[Row], ddl: str) -> DataFrame:
    return driver_frame(spark, ([row[name] for name in _plain(ddl)] for row in rows), ddl)


def inputs(
    spark: SparkSession,
    given: Traffic,
    hours: list[datetime] | None = None,
    *,
    settings: PipelineSettings = PipelineSettings(),
    table: Callable[[str], DataFrame] | None = None,
) -> Inputs:
    """As in a run, by default for all hours."""
    hours = given.hours() if hours is None else hours
    far = int(settings.horizon_s // 3600) + 1
    near, wide = (
        {hour + timedelta(hours=step) for hour in hours for step in range(-reach, reach + 1)}
        for reach in (far, 2 * far)
    )
    mine = [row for row in given.messages if row["hour"] in hours]
    nearby = [row for row in given.messages if row["hour"] in near]
    seqs = [row["seq"] for row in mine]
    low, high = min(seqs, default=0), max(seqs, default=-1)
    fates = [row for row in given.fates if row["last"] >= low and row["first"] <= high]

    def missing(name: str) -> DataFrame:
        raise AssertionError(f"the table {name} was not given")

    messages = frame(spark, mine, MESSAGES)
    around = frame(spark, [row for row in given.messages if row["hour"] in wide], MESSAGES)
    return Inputs(
        spark=spark,
        messages=messages,
        traffic=counted(messages),
        nearby=frame(spark, nearby, MESSAGES),
        wide=around,
        related=related(around),
        fates=frame(spark, fates, FATES),
        letters=frame(spark, given.letters, LETTERS),
        orphans=frame(spark, given.orphans, ORPHANS),
        unread=(),
        upto=given.upto,
        settings=settings,
        channels=given.channels,
        table=table or missing,
        settled=lambda: spark.createDataFrame(settled((table or missing)("deliveries").toArrow())),
    )


def ordered(rows: Any) -> list[Row]:
    return sorted((dict(sorted(row.items())) for row in rows), key=repr)


def some_hours(given: Traffic, seed: int) -> list[datetime]:
    """Some of them, with others in between."""
    hours = given.hours()
    chosen = [hour for number, hour in enumerate(hours) if (number + seed) % 2]
    assert 0 < len(chosen) < len(hours)
    return chosen


def fate(number: int, subscriber: str, kind: str, first: int, last: int, count: int = 0, **fields: Any) -> Row:
    row = {"number": number, "subscriber": subscriber, "pattern": ">", "fate": kind, "first": first, "last": last}
    row |= {"count": count or last - first + 1, "reason": "", "time": START + timedelta(seconds=number)}
    return row | fields


def messages(*seqs: int, **fields: Any) -> list[Row]:
    return [message(seq, START + timedelta(milliseconds=seq), **fields) for seq in seqs]
