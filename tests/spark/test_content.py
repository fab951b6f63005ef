"""Tables about the content: conversations, executions, conformance and typed tables, against plain Python."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark import truth_content as truth
from tests.spark.kernels import jupyter, kernels
from tests.spark.traffic import MESSAGES, START, Row, Traffic, frame, inputs, message, traffic
from trunkline.codec import JSON, MSGPACK, RAW, Zlib
from trunkline.hub.registry_file import FILE, KeptRegistry, RegistryFile
from trunkline.journal.errors import JournalUnusable
from trunkline.registry.channel import KeptChannel
from trunkline.registry.schemas import KeptSchema, KeptVersion
from trunkline.schema import hash_of, schema_of
from trunkline.spark.tables import conformance, conversations, executions, typed
from trunkline.spark.tables.channel_contracts import Finder, belongs, contracts, on_any
from trunkline.spark.tables.conversations import Hints, climbed
from trunkline.spark.tables.driver_frame import driver_frame
from trunkline.spark.tables.payloads import texts
from trunkline.spark.tables.table import ChannelContract, QueryTable

SEEDS = (2, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, *range(3, 11))))


def rows_of(table: QueryTable, made: DataFrame) -> list[Row]:
    assert made.columns == [column.name for column in table.own_columns]
    assert made.dtypes == table.shape(made).dtypes
    return [row.asDict(recursive=True) for row in made.collect()]


def ordered(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=repr)


def made(spark: SparkSession, table: QueryTable, given: Traffic, hours: list[datetime] | None = None) -> list[Row]:
    return ordered(rows_of(table, table.build(inputs(spark, given, hours))))


def some_hours(given: Traffic, seed: int) -> list[datetime]:
    """All of them, or, with every second seed, one of them and those that it refers to, as in a run."""
    hours = given.hours()
    return hours if seed % 2 else truth.closed(given, {hours[(seed // 2 - 1) % len(hours)]})


# Conversations


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_conversations_are_the_trees_of_what_refers_to_what(spark: SparkSession, seed: int) -> None:
    given = traffic(seed)
    expected = ordered(truth.conversations(given))
    assert {row["depth"] for row in expected} >= {2, 3}
    hours = some_hours(given, seed)
    assert made(spark, conversations.TABLE, given, hours) == [row for row in expected if row["hour"] in hours]


def talk(*said: tuple[str, str | None], step_s: float = 1.0, **fields: Any) -> Traffic:
    """Messages by id and correlation id, one after the other."""
    rows = [
        message(seq, START + timedelta(seconds=step_s * seq), id=id, correlation_id=about, **fields)
        for seq, (id, about) in enumerate(said, start=1)
    ]
    return Traffic(rows, [], [], [])


@pytest.mark.long
def test_circles_and_chains_across_hours_have_an_end(spark: SparkSession) -> None:
    chain = ((f"n{number}", f"n{number - 1}" if number else None) for number in range(8))
    ring = [("a", "b"), ("b", "a"), ("c", "c"), ("d", "c"), ("e", "later"), ("later", "e")]
    given = talk(*chain, *ring, step_s=1500, type="error")
    found = made(spark, conversations.TABLE, given)
    assert found == ordered(truth.conversations(given))
    (row,) = (row for row in found if row["root_id"] == "n0")
    assert 2 < row["depth"] < 8, "what comes after the horizon is not part of it"


@pytest.mark.long
def test_any_number_of_messages_may_share_one_correlation_id(spark: SparkSession) -> None:
    given = talk(*((f"m{number}", "order-7") for number in range(300)), step_s=5)
    (row,) = made(spark, conversations.TABLE, given)
    assert (row["root_id"], row["key"], row["messages"], row["fan_out"]) == ("m0", "order-7", 300, 299)


def test_a_reply_that_names_several_messages_has_one_parent(spark: SparkSession) -> None:
    answer = {"type": "response", "request_id": "r"}
    said: list[dict[str, Any]] = [
        {"id": "a"},
        {"id": "b", "type": "request", "request_id": "r"},
        {"id": "c", "correlation_id": "a", **answer},
        {"id": "d", "correlation_id": "b", **answer},
        {"id": "e", "correlation_id": "unknown", **answer},
        {"id": "a"},
        {"id": "f", "correlation_id": "a"},
        {"id": "g", "correlation_id": "unknown"},
    ]
    rows = [message(seq, START + timedelta(seconds=seq), **fields) for seq, fields in enumerate(said, start=1)]
    given = Traffic(rows, [], [], [])
    found = made(spark, conversations.TABLE, given)
    assert found == ordered(truth.conversations(given))
    assert sorted((row["root_id"], row["messages"]) for row in found) == [("a", 2), ("a", 2), ("b", 4)]


def test_nothing_that_refers_to_anything(spark: SparkSession) -> None:
    assert made(spark, conversations.TABLE, talk(("a", None), ("b", None))) == []


def test_chains_longer_than_the_limit_are_left_out_below_it(spark: SparkSession) -> None:
    steps = [(seq, seq - 1, seq // 4) for seq in range(1, 12)]
    links = driver_frame(spark, steps, "seq long, parent long, parent_at long")
    found = {row["seq"]: row for row in climbed(links, Hints(len(steps)), rounds=3).collect()}
    assert sorted(found) == list(range(1, 9))
    assert {(row["root"], row["root_at"], row["steps"] - seq) for seq, row in found.items()} == {(0, 0, 0)}


# Executions


@pytest.mark.parametrize("seed", SEEDS)
def test_executions_are_put_together_from_what_kernels_say(spark: SparkSession, seed: int) -> None:
    given = kernels(seed)
    expected = ordered(truth.executions(given))
    assert {row["status"] for row in expected} >= {"ok", "open"}
    hours = some_hours(given, seed)
    assert made(spark, executions.TABLE, given, hours) == [row for row in expected if row["hour"] in hours]


def test_the_generator_makes_all_kinds_of_executions() -> None:
    rows = [row for seed in (1, 2, 3) for row in truth.executions(kernels(seed))]
    assert {row["status"] for row in rows} == {"ok", "error", "aborted", "open"}
    for column in ("truncated", "complete", "silent"):
        assert {row[column] for row in rows} == {True, False}
    assert {"image/png", "text/plain"} <= {mime for row in rows for mime in row["mime_types"]}
    assert any(row["stderr"] for row in rows)
    assert any(row["started"] is not None and row["started"] < row["asked"] for row in rows), "early outputs"


@pytest.mark.long
def test_an_execution_that_writes_without_end_is_cut(spark: SparkSession) -> None:
    """Part of the output is placed before its request, in the previous hour."""
    say = partial(jupyter, "stream", parent="e1")
    said = [("iopub.stream", say({"name": "stdout", "text": f"{line:03}\n" * 10})) for line in range(600)]
    said.insert(100, ("shell.execute_request", jupyter("execute_request", {"code": "spam()"}, "e1")))
    asked = START + timedelta(minutes=10)
    rows = [
        message(100 + seq, asked + timedelta(seconds=seq), topic=f"kernel.k.{kind}", payload=json.dumps(what).encode())
        for seq, (kind, what) in enumerate(said, start=-100)
    ]
    (row,) = made(spark, executions.TABLE, Traffic(rows, [], [], []))
    assert (row["asked"], row["hour"]) == (asked, asked)
    assert row["stdout"] == "".join(f"{line:03}\n" * 10 for line in range(600))[:10_000]
    assert row["truncated"]


# Channels


ORDER = {
    "type": "object",
    "properties": {"total": {"type": "integer"}, "place": {"type": "string"}},
    "required": ["total"],
}
CHANNELS = (
    ChannelContract("orders", "orders.*", ORDER),
    ChannelContract("free", "orders.paid"),
    ChannelContract("ticks", "ticks", {"type": "object", "properties": {"n": {"type": "integer"}}}),
    ChannelContract("talk", "chat.>", {"type": "array", "items": {"type": ["string", "integer", "null"]}}),
    ChannelContract("all", ">", {"type": "object", "properties": {"place": {"enum": ["Zürich"]}}}),
)


def test_the_channel_of_a_topic_is_that_of_the_hub(spark: SparkSession) -> None:
    channels = (
        *CHANNELS,
        ChannelContract("a", "a.*.c", {}),
        ChannelContract("b", "a.b.*", {}),
        ChannelContract("c", "a.>", {}),
        ChannelContract("d", "a.b.c.*", {}),
        ChannelContract("plus", "a+b.x", {}),
    )
    topics = [
        "orders.new",
        "orders.paid",
        "orders.a.b",
        "a.b.c",
        "a.x.c",
        "a.b.x",
        "a.b",
        "a",
        "a.b.c.d",
        "a+b.x",
        "aab.x",
    ]
    topics += ["_reply.shop", "_to.orders", "ticks", "ticks.x", "chat", "chat.grüße", "木"]
    hub, finder = truth.registry(channels), Finder(channels)
    rows = driver_frame(spark, [(topic,) for topic in topics], "topic string")
    said = rows.select("topic", *(belongs(channel, channels).alias(channel.name) for channel in channels)).collect()
    for row in said:
        found, mine = hub.find(row["topic"]), finder.find(row["topic"])
        name = None if found is None else found.name
        assert (None if mine is None else mine.name) == name
        assert [channel.name for channel in channels if row[channel.name]] == ([name] if name else []), row["topic"]
    fitting = rows.where(on_any(channels[5:7])).collect()
    assert {row["topic"] for row in fitting} == {"a.b.c", "a.x.c", "a.b.x"}
    assert rows.where(on_any([])).count() == 0


def test_contracts_are_what_the_hub_has_kept(tmp_path: Path) -> None:
    assert contracts(tmp_path) == ()
    hash = hash_of(ORDER)
    version = KeptVersion(version="1.0.0", hash=hash, schema=ORDER)
    channels = [
        KeptChannel(channel="ticks", pattern="ticks", owner="me", created_ns=0),
        KeptChannel(channel="orders", pattern="orders.*", owner="me", created_ns=0, schema_hash=hash),
        KeptChannel(channel="lost", pattern="lost", owner="me", created_ns=0, schema_hash="of nothing"),
    ]
    RegistryFile(tmp_path).write(
        KeptRegistry(channels=channels, schemas=[KeptSchema(name="order", compatibility="none", versions=[version])])
    )
    assert contracts(tmp_path) == (
        ChannelContract("lost", "lost"),
        ChannelContract("orders", "orders.*", ORDER),
        ChannelContract("ticks", "ticks"),
    )
    (tmp_path / FILE).write_bytes(b"{")
    with pytest.raises(JournalUnusable, match=FILE):
        contracts(tmp_path)


# Conformance


@pytest.mark.parametrize("seed", SEEDS)
def test_conformance_is_what_the_hub_would_say(spark: SparkSession, seed: int) -> None:
    given = traffic(seed)._replace(channels=CHANNELS)
    expected = ordered(truth.conformance(given))
    assert {(row["channel"], row["ok"]) for row in expected} >= {("orders", True), ("orders", False), ("all", True)}
    hours = some_hours(given, seed)
    assert made(spark, conformance.TABLE, given, hours) == [row for row in expected if row["hour"] in hours]


def test_without_schemas_there_is_nothing_to_conform_to(spark: SparkSession) -> None:
    given = traffic(1)
    assert made(spark, conformance.TABLE, given) == []
    assert made(spark, conformance.TABLE, given._replace(channels=CHANNELS[1:2])) == []


# Payloads


def test_payloads_become_json_whatever_they_are(spark: SparkSession) -> None:
    value = {"n": 1, "b": b"raw", "at": datetime(2026, 11, 16, tzinfo=UTC), 7: None}
    cases: list[tuple[bytes, str, str, str | None]] = [
        (b' {"a": 1.10}', JSON, "", ' {"a": 1.10}'),
        (b"", JSON, "", None),
        (b'{"a": 1} x', JSON, "", None),
        (b'"\xff"', JSON, "", None),
        (msgspec.msgpack.encode(value), MSGPACK, "", '{"n":1,"b":"cmF3","at":"2026-11-16T00:00:00Z","7":null}'),
        (b"\xc7\x01\x05a", MSGPACK, "", None),
        (b"\x92\x01", MSGPACK, "", None),
        (b"{}", RAW, "", None),
        (b"{}", "text/plain", "", None),
        (Zlib().apply(b"[1]"), JSON, "zlib", "[1]"),
        (b"[1]", JSON, "zlib", None),
        (b"[1]", JSON, "aes-256-gcm:key", None),
    ]
    rows = [
        message(seq, START, payload=payload, content_type=kind, encoding=packed)
        for seq, (payload, kind, packed, _) in enumerate(cases)
    ]
    read = texts(frame(spark, rows, MESSAGES), ["seq"])
    assert read.columns == ["seq", "text", "problem"]
    for row in read.collect():
        assert row["text"] == cases[row["seq"]][3]
        assert (row["problem"] is None) == (row["text"] is not None)


def test_large_payloads_pass(spark: SparkSession) -> None:
    """Eight of 10 MiB: more than fits into one batch."""
    payload = F.concat(F.lit('{"x": "'), F.repeat(F.lit("ä"), 5 * 1024 * 1024 - 10), F.lit('"}')).cast("binary")
    rows = spark.range(8, numPartitions=1).select(
        F.col("id").alias("seq"),
        F.lit("ticks").alias("topic"),
        payload.alias("payload"),
        F.lit(JSON).alias("content_type"),
        F.lit("").alias("encoding"),
    )
    (row,) = (
        rows.select(F.octet_length("payload").alias("size"), F.xxhash64("payload").alias("hash")).distinct().collect()
    )
    assert row["size"] > 10 * 1024 * 1024 - 100
    read = texts(rows, ["seq"]).select("seq", F.xxhash64(F.col("text").cast("binary")).alias("hash")).collect()
    assert sorted(read) == [(seq, row["hash"]) for seq in range(8)]


# Typed tables


class Address(msgspec.Struct):
    street: str
    numbers: list[int]


class Tree(msgspec.Struct):
    name: str
    below: list[Tree] = []


Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class Order(msgspec.Struct):
    id: str
    total: float
    count: int
    paid: bool
    at: Moment
    tags: list[str]
    home: Address
    note: str | None = None
    times: list[Moment] = []
    tree: Tree | None = None
    extra: dict[str, int] = {}
    either: int | str = 0
    anything: Any = None
    Total: int = 0


def order(number: int, **changes: Any) -> Order:
    at = datetime(2026, 11, 16, 10, number, 0, 123456, tzinfo=UTC)
    fields: dict[str, Any] = {"home": Address("Zürich", [1, 2]), "times": [at], "tags": ["a", "木"], **changes}
    return Order(f"o{number}", 9.5, number, True, at, **fields)


def published(*payloads: Any, topic: str = "orders.new", kind: str = JSON) -> list[Row]:
    encode = msgspec.json.encode if kind == JSON else msgspec.msgpack.encode
    return [
        message(seq, START + timedelta(minutes=seq), topic=topic, payload=encode(payload), content_type=kind)
        for seq, payload in enumerate(payloads, start=1)
    ]


def only(spark: SparkSession, given: Traffic) -> list[Row]:
    (table,) = typed.tables(given.channels)
    return sorted(rows_of(table, table.build(inputs(spark, given))), key=lambda row: int(row["seq"]))


@pytest.mark.long
def test_a_column_for_each_field(spark: SparkSession) -> None:
    orders = [
        order(1, tree=Tree("a", [Tree("b")]), extra={"x": 1}, either="5", anything=[1, {"y": None}], Total=3),
        order(2, note="hé", either=5),
    ]
    channel = ChannelContract("shop.orders", "orders.*", schema_of(Order))
    (table,) = typed.tables((channel,))
    assert table.name == "typed_shop_orders"
    declared = {column.name: column.type for column in table.own_columns}
    assert declared == {
        "seq": "bigint",
        "id": "string",
        "topic": "string",
        "sender": "string",
        "published": "timestamp",
        "id_": "string",
        "total": "double",
        "count": "bigint",
        "paid": "boolean",
        "at": "timestamp",
        "tags": "array<string>",
        "home": "struct<`street`: string, `numbers`: array<bigint>>",
        "note": "string",
        "times": "array<timestamp>",
        "tree": "string",
        "extra": "string",
        "either": "string",
        "anything": "string",
        "Total_": "bigint",
        "hour": "timestamp",
    }
    for kind in (JSON, MSGPACK):
        given = Traffic(published(*orders, {"id": "broken"}, kind=kind), [], [], [], (channel,))
        found = only(spark, given)
        assert [row["seq"] for row in found] == [1, 2]
        for row, sent in zip(found, orders, strict=True):
            at = sent.at.replace(tzinfo=None)
            assert row["published"] == START + timedelta(minutes=row["seq"])
            assert (row["id"], row["id_"], row["total"], row["Total_"]) == (f"m{row['seq']}", sent.id, 9.5, sent.Total)
            assert (row["count"], row["paid"], row["at"], row["times"]) == (sent.count, True, at, [at])
            assert (row["tags"], row["note"]) == (["a", "木"], sent.note)
            assert row["home"] == {"street": "Zürich", "numbers": [1, 2]}
            for name in ("tree", "extra", "either", "anything"):
                value = None if row[name] is None else json.loads(row[name])
                assert value == truth.as_json(getattr(sent, name)), name


@pytest.mark.parametrize("seed", [1])
def test_typed_tables_hold_what_conforms(spark: SparkSession, seed: int) -> None:
    given = traffic(seed)._replace(channels=CHANNELS)
    for table in typed.tables(CHANNELS):
        name = table.name.removeprefix("typed_")
        found = {row["seq"]: row for row in rows_of(table, table.build(inputs(spark, given)))}
        expected = truth.payloads(given, name)
        assert found.keys() == expected.keys(), name
        for seq, value in expected.items():
            match name:
                case "orders":
                    assert (found[seq]["total"], found[seq]["place"]) == (value["total"], value.get("place"))
                case "talk":
                    assert json.loads(found[seq]["value"]) == value
        last = given.hours()[-1:]
        rows = rows_of(table, table.build(inputs(spark, given, last)))
        assert ordered(rows) == ordered([row for row in found.values() if row["hour"] in last])


@pytest.mark.parametrize(
    ("schema", "type", "sent", "shown"),
    [
        ({"type": "integer"}, "bigint", [5, 2**80], [5, None]),
        (
            {"type": "string", "format": "date-time"},
            "timestamp",
            ["12:30", "2026-11-16t10:00:00z"],
            [None, datetime(2026, 11, 16, 10)],
        ),
        ({"type": "array", "items": {"type": "boolean"}}, "array<boolean>", [[True], []], [[True], []]),
        ({"anyOf": [{"type": "null"}, {"enum": [1, 2.5]}]}, "double", [None, 2.5], [None, 2.5]),
        ({"type": "object"}, "string", [{"a": 1}, {}], ['{"a":1}', "{}"]),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"enum": ["a", "b"]}}}, "string", ["a", "c"], ["a"]),
        (True, "string", ["text", [1]], ['"text"', "[1]"]),
    ],
)
def test_payloads_that_are_no_objects_have_one_column(
    spark: SparkSession, schema: Any, type: str, sent: list[Any], shown: list[Any]
) -> None:
    given = Traffic(published(*sent), [], [], [], (ChannelContract("c", "orders.new", schema),))
    (table,) = typed.tables(given.channels)
    assert [(column.name, column.type) for column in table.own_columns[5:-1]] == [("value", type)]
    assert [row["value"] for row in only(spark, given)] == shown


def test_fields_with_odd_names(spark: SparkSession) -> None:
    names = ["a.b", "a b", "", "`x`", "Hour", "A", "a", "grüße", "topic"]
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    given = Traffic(
        published({name: number for number, name in enumerate(names)}),
        [],
        [],
        [],
        (ChannelContract("c", "orders.new", schema),),
    )
    (table,) = typed.tables(given.channels)
    columns = [column.name for column in table.own_columns[5:-1]]
    assert columns == ["a_b", "a_b_", "_", "_x_", "Hour_", "A", "a_", "grüße", "topic_"]
    (row,) = only(spark, given)
    assert [row[column] for column in columns] == list(range(len(names)))


def test_names_of_tables_are_their_own_and_stay() -> None:
    names = ["a.b", "a_b", "A.b", "sensor_data", "x-y", "x/y", "w" * 255, "木.b"]
    found = typed.table_names(names)
    assert len({name.lower() for name in found.values()}) == len(names)
    assert (found["a.b"], found["sensor_data"], found["木.b"]) == ("typed_a_b", "typed_sensor_data", "typed_木_b")
    assert all(len(name.encode()) <= 130 for name in found.values())
    assert found == typed.table_names(names[::-1])
