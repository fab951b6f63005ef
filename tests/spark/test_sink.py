"""The sink: rows of a DataFrame arrive on a bus once, also after retries; invalid rows are reported."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

import trunkline as tl
from tests.hub.hubs import until
from tests.hub.up import Up, up
from trunkline.errors import BackpressureTimeout, HubUnavailable, PayloadError
from trunkline.hub.serve import run
from trunkline.journal import Reader
from trunkline.spark.sink import writers
from trunkline.spark.sink.task import Written
from trunkline.spark.sink.task_position import SeenEpochs, TaskPosition
from trunkline.spark.sink.writers import BatchWriter, StreamWriter, batch_writer, stream_writer
from trunkline.spark.source.data_source import register

TOPIC = "orders.placed"
DEADLINE_S = 60.0


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Shared by all tests that do not kill it: each test has its own topics."""
    with up(tmp_path_factory.mktemp("hub"), durable=True) as hub:
        yield hub
        assert "Traceback" not in hub.log()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Up]:
    with up(tmp_path, durable=True) as hub:
        yield hub


@pytest.fixture(scope="module", autouse=True)
def loops() -> None:
    """The first loop of uvloop opens a pipe for the signals of its process, and keeps it."""
    run(asyncio.sleep(0))


@pytest.fixture(scope="module")
def sinks(spark: SparkSession) -> SparkSession:
    """The session, with the sink registered."""
    register(spark)
    # After the first work in Python, Spark keeps a connection to this process.
    spark.range(1).mapInArrow(lambda batches: batches, "id long").collect()
    return spark


def save(frame: DataFrame, hub: Up, **options: Any) -> None:
    frame.write.format("trunkline").mode("append").options(bus=hub.address, **options).save()


def stored(hub: Up, pattern: str = TOPIC) -> list[tl.Message]:
    with Reader(hub.journal) as reader:
        return list(reader.messages(pattern))


def letters(hub: Up, name: str) -> list[tl.Message]:
    return stored(hub, f"_dead.spark.{name}")


def batches(count: int, size: int = 2000, start: int = 0) -> Iterator[pa.RecordBatch]:
    """Rows whose payload is their number."""
    for first in range(start, start + count, size):
        numbers = range(first, min(first + size, start + count))
        yield pa.record_batch({"payload": pa.array([b"%d" % number for number in numbers])})


def writer(address: str, topic: str = TOPIC, **options: str) -> BatchWriter:
    made = batch_writer(StructType().add("payload", "binary"), {"bus": address, "topic": topic, **options}, False)
    assert isinstance(made, BatchWriter)
    return made


def epochs(address: str, topic: str) -> StreamWriter:
    made = stream_writer(StructType().add("payload", "binary"), {"bus": address, "topic": topic}, False)
    assert isinstance(made, StreamWriter)
    return made


def numbers(messages: list[tl.Message]) -> list[int]:
    return [int(message.payload) for message in messages]


# What arrives


@pytest.mark.long
def test_ten_thousand_rows_arrive_exactly(sinks: SparkSession, hub: Up) -> None:
    rows = sinks.range(0, 10_000, 1, 3).select(F.col("id").cast("string").alias("payload"))
    save(rows, hub, topic="thousands", name="orders")
    found = stored(hub, "thousands")
    assert sorted(numbers(found)) == list(range(10_000))
    assert len({message.id for message in found}) == 10_000
    assert {message.sender for message in found} == {"orders"}
    for first, last in ((0, 3333), (3333, 6666), (6666, 10_000)):
        part = [number for number in numbers(found) if first <= number < last]
        assert part == sorted(part), "order is kept within a partition"


def test_columns_become_fields(sinks: SparkSession, hub: Up) -> None:
    frame = sinks.sql(
        """
        SELECT 'a.b' AS topic, cast('x' AS binary) AS payload, 75 AS priority, 60.5D AS ttl_s,
               map('k', 'v') AS headers, 'c1' AS correlation_id, 'q1' AS request_id, 'back' AS reply_to,
               'you' AS recipient, 'request' AS type, 'text/plain' AS content_type, 's1' AS schema, 'id1' AS id
        UNION ALL
        SELECT 'a.c', null, null, null, null, null, null, null, null, null, null, null, null
        """
    )
    save(frame, hub)
    (full,) = stored(hub, "a.b")
    assert (full.payload, full.priority, full.ttl_s, full.headers) == (b"x", 75, 60.5, {"k": "v"})
    assert (full.correlation_id, full.request_id, full.reply_to, full.recipient) == ("c1", "q1", "back", "you")
    assert (full.type, full.content_type, full.schema, full.id) == (tl.MessageType.REQUEST, "text/plain", "s1", "id1")
    (bare,) = stored(hub, "a.c")
    defaults = tl.Message(id=bare.id, topic="a.c", sender="spark", timestamp_ns=bare.timestamp_ns)
    assert bare.replace(seq=0) == defaults
    assert bare.id[14] == "8"


def test_what_is_no_payload_becomes_json(sinks: SparkSession, hub: Up) -> None:
    frame = sinks.sql("SELECT 'r1' AS topic, 9.5D AS price, array(1, 2) AS parts, map('a', 1) AS by, null AS note")
    save(frame, hub)
    save(sinks.sql("SELECT struct('x' AS name, 2 AS amount) AS payload"), hub, topic="r2")
    save(sinks.sql("""SELECT '{"n":1}' AS payload"""), hub, topic="r3", content_type="application/json")
    (row,) = stored(hub, "r1")
    assert row.content_type == "application/json"
    assert row.decode() == {"price": 9.5, "parts": [1, 2], "by": {"a": 1}, "note": None}
    assert stored(hub, "r2")[0].decode() == {"name": "x", "amount": 2}
    assert stored(hub, "r3")[0].decode() == {"n": 1}


@pytest.mark.long
def test_what_was_read_can_be_written_again(sinks: SparkSession, hub: Up) -> None:
    save(sinks.sql("SELECT 'once' AS topic, 'x' AS payload, map('k', 'v') AS headers, 'me' AS sender"), hub)
    read = sinks.read.format("trunkline").options(journal=str(hub.journal), topic="once").load()
    save(read.withColumn("topic", F.lit("twice")).drop("id"), hub)
    (one,), (other,) = stored(hub, "once"), stored(hub, "twice")
    assert other.id != one.id
    assert (other.payload, other.headers, other.sender) == (b"x", {"k": "v"}, "me")


# What cannot be published


def test_bad_rows_are_dead_letters_with_the_row(sinks: SparkSession, hub: Up) -> None:
    frame = sinks.sql(
        """
        SELECT * FROM VALUES
            ('bad.good', 'fine', 50, cast(null AS double)),
            ('a..b', 'topic', 50, null),
            (null, 'none', 50, null),
            ('bad.good', 'priority', 101, null),
            ('bad.good', 'ttl', 50, -1),
            ('bad.good', repeat('x', 11000000), 50, null)
        AS t(topic, payload, priority, ttl_s)
        """
    ).coalesce(1)
    save(frame, hub, name="night run", query="q7")
    assert [message.payload for message in stored(hub, "bad.>")] == [b"fine"]
    found = letters(hub, "night-run")
    assert {message.topic for message in found} == {"_dead.spark.night-run"}
    assert {message.type for message in found} == {tl.MessageType.ERROR}
    told = {message.headers["field"]: message for message in found if message.headers is not None}
    assert len(found) == 5
    assert told.keys() == {"topic", "priority", "ttl_s", "payload"}
    assert told["priority"].decode() == {"topic": "bad.good", "payload": "priority", "priority": 101, "ttl_s": None}
    assert told["priority"].headers == {
        "subscriber": "spark sink",
        "cause": "invalid payload",
        "reason": "priority must be a whole number from 0 to 100, not 101",
        "error": "InvalidPriority",
        "field": "priority",
        "topic": "bad.good",
        "query": "q7",
        "epoch": "0",
        "partition": "0",
        "row": "3",
    }
    large = told["payload"]
    assert large.headers is not None
    assert large.headers["cut"] == "true"
    assert large.decode()["payload"] == "x" * 1000
    save(frame, hub, name="night run", query="q7")
    assert len(stored(hub, "bad.>")) == 1, "the same query adds nothing"
    assert len(letters(hub, "night-run")) == 5


def test_too_many_bad_rows_fail_the_write(sinks: SparkSession, hub: Up) -> None:
    bad = sinks.range(0, 3, 1, 3).select(F.lit("a..b").alias("topic"), F.lit("x").alias("payload"))
    with pytest.raises(Exception, match=r"3 rows cannot be published, and max_errors is 2: the dead letters on"):
        save(bad, hub, max_errors=2, name="all")
    broken = pa.record_batch({"topic": pa.array(["a..b"] * 2), "payload": pa.array([b""] * 2)})
    schema = StructType().add("topic", "string").add("payload", "binary")
    task = batch_writer(schema, {"bus": hub.address, "max_errors": "1"}, False)
    with pytest.raises(PayloadError, match=r"2 rows cannot be published"):
        task.write(iter([broken]))
    save(bad, hub, max_errors=3, name="some")
    assert len(letters(hub, "all")) == len(letters(hub, "some")) == 3


def test_a_channel_keeps_its_contract(sinks: SparkSession, hub: Up) -> None:
    schema = {"type": "object", "properties": {"price": {"type": "number"}}, "required": ["price"]}

    async def create() -> None:
        async with tl.connect(hub.address, name="owner") as bus:
            assert isinstance(bus.broker, tl.HubBroker)
            await bus.broker.require_directory().create_channel("prices", schema=schema)

    asyncio.run(create())
    rows = [(number, None if number % 10 == 3 else f"{number}.5") for number in range(100)]
    frame = sinks.createDataFrame(rows, "number int, price string")
    frame = frame.select("number", F.col("price").cast("double")).coalesce(1)
    save(frame, hub, topic="prices", name="prices")
    assert [message.decode()["number"] for message in stored(hub, "prices")] == [n for n in range(100) if n % 10 != 3]
    told = letters(hub, "prices")
    assert [message.decode()["number"] for message in told] == [n for n in range(100) if n % 10 == 3]
    assert {message.headers["field"] for message in told if message.headers} == {"$.price"}
    save(frame.filter("price is null"), hub, topic="prices", name="none")
    assert len(letters(hub, "none")) == 10, "none of them fits"


@pytest.mark.parametrize(
    ("options", "more", "said"),
    [
        ({"bus": "memory:"}, {}, "in one process only"),
        ({"bus": "unix://hub.sock"}, {}, "absolute path"),
        ({"bus": "kafka://x"}, {}, "no broker serves"),
        ({}, {}, "which bus"),
        ({"bus": "unix:///x", "topik": "a"}, {}, "did you mean 'topic'"),
        ({"bus": "unix:///x", "path": "/data"}, {}, "not to a path"),
        ({"bus": "unix:///x"}, {}, "no topic"),
        ({"bus": "unix:///x", "topic": "a.>"}, {}, "wildcard"),
        ({"bus": "unix:///x", "topic": "a"}, {"prioritty": "integer"}, "did you mean 'priority'"),
        ({"bus": "unix:///x", "topic": "a"}, {"id": "integer"}, "must be a string"),
        ({"bus": "unix:///x", "topic": "a"}, {"headers": "string"}, "map<string,string>"),
    ],
)
def test_what_makes_no_messages_is_refused(options: dict[str, str], more: dict[str, str], said: str) -> None:
    schema = StructType().add("payload", "binary")
    for name, type in more.items():
        schema = schema.add(name, type)
    with pytest.raises(tl.UsageError, match=said):
        batch_writer(schema, options, False)


def test_nothing_is_overwritten(sinks: SparkSession, hub: Up) -> None:
    frame = sinks.sql("SELECT 'x' AS payload")
    with pytest.raises(Exception, match="cannot be overwritten"):
        frame.write.format("trunkline").mode("overwrite").options(bus=hub.address, topic="never").save()
    assert stored(hub, "never") == []


# What is tried again


class Failure(Exception):
    pass


def failing(after: int) -> Iterator[pa.RecordBatch]:
    yield from batches(after)
    raise Failure


def test_a_task_that_is_tried_again_adds_nothing_twice(hub: Up) -> None:
    async def play() -> list[int]:
        got: list[int] = []
        async with (
            tl.connect(hub.address, name="watcher") as bus,
            bus.subscribe("again", dedupe_s=60, capacity=100_000) as messages,
        ):
            task = writer(hub.address, "again")
            with pytest.raises(Failure):
                await asyncio.to_thread(task.write_at, TaskPosition("q", 0, 1), failing(12_000))
            there = len(stored(hub, "again"))
            assert 0 < there < 30_000
            whole = batches(30_000, size=777)
            written = await asyncio.to_thread(task.write_at, TaskPosition("q", 0, 1, attempt=1), whole)
            # The hub may still have been storing what the first attempt had sent.
            assert there <= written.repeated <= 12_000
            assert written == Written(30_000, 0, written.repeated)
            await asyncio.to_thread(task.write_at, TaskPosition("q", 0, 2), batches(1, start=30_000))
            while len(got) < 30_001:
                message = await messages.recv()
                assert message is not None
                got.append(int(message.payload))
        return got

    got = asyncio.run(asyncio.wait_for(play(), DEADLINE_S))
    assert got == list(range(30_001)), "a deduplicating consumer"
    assert numbers(stored(hub, "again")) == list(range(30_001)), "a durable topic"


def test_consumers_drop_what_a_plain_topic_brings_twice(tmp_path: Path) -> None:
    async def play(address: str) -> list[int]:
        got: list[int] = []
        async with (
            tl.connect(address, name="watcher") as bus,
            bus.subscribe(TOPIC, dedupe_s=60, capacity=100_000) as messages,
        ):
            task = writer(address)
            with pytest.raises(Failure):
                await asyncio.to_thread(task.write_at, TaskPosition("q", 0, 1), failing(6000))
            await asyncio.to_thread(task.write_at, TaskPosition("q", 0, 1, attempt=1), batches(9000))
            await bus.publish(TOPIC, b"-1")
            while -1 not in got[-1:]:
                message = await messages.recv()
                assert message is not None
                got.append(int(message.payload))
        return got

    with up(tmp_path) as hub:
        got = asyncio.run(asyncio.wait_for(play(hub.address), DEADLINE_S))
    assert got == [*range(9000), -1]


def test_an_epoch_that_is_tried_again_adds_nothing_twice(hub: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = epochs(hub.address, "epochs")
    monkeypatch.setattr(writers, "_seen", SeenEpochs())
    assert stream.write_at(TaskPosition("q", 4, 0, run="a"), batches(5000)) == Written(5000, 0, 0)
    # Another run, other processes: it does not know whether epoch 4 was done.
    monkeypatch.setattr(writers, "_seen", SeenEpochs())
    assert stream.write_at(TaskPosition("q", 4, 0, run="b"), batches(5000)) == Written(5000, 0, 5000)
    assert stream.write_at(TaskPosition("q", 5, 0, run="b"), batches(10, start=5000)) == Written(10, 0, 0)
    assert numbers(stored(hub, "epochs")) == list(range(5010))


RETRIED = """
import sys, pyarrow as pa
from pyspark import TaskContext
from trunkline.spark import session
from trunkline.spark.source.data_source import register

def failing(batches):
    for place, batch in enumerate(batches):
        if place == 2 and TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")
        yield batch

with session("local[2,3]", settings={"spark.sql.execution.arrow.maxRecordsPerBatch": 5000}) as spark:
    register(spark)
    rows = spark.range(0, 60_000, 1, 2).selectExpr("cast(id AS string) AS payload")
    rows = rows.mapInArrow(failing, "payload string")
    rows.write.format("trunkline").mode("append").options(bus=sys.argv[1], topic=sys.argv[2]).save()
"""


@pytest.mark.long
def test_a_task_that_spark_tries_again_adds_nothing_twice(hub: Up) -> None:
    subprocess.run([sys.executable, "-c", RETRIED, hub.address, "retried"], check=True, timeout=10 * DEADLINE_S)
    assert sorted(numbers(stored(hub, "retried"))) == list(range(60_000))


@pytest.mark.long
def test_a_stream_starts_again_where_it_was(sinks: SparkSession, hub: Up, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"

    def run_stream() -> None:
        read = sinks.readStream.schema("payload string").option("maxFilesPerTrigger", 1).parquet(str(source))
        query = (
            read.writeStream.format("trunkline")
            .queryName("flow")
            .options(bus=hub.address, topic="stream", checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def add(first: int) -> None:
        pq.write_table(
            pa.table({"payload": [str(number) for number in range(first, first + 3000)]}), source / f"{first}"
        )

    source.mkdir()
    add(0)
    add(3000)
    run_stream()
    assert sorted(numbers(stored(hub, "stream"))) == list(range(6000))
    assert {message.sender for message in stored(hub, "stream")} == {"flow"}
    # As if it had been killed between the last word of the sink and that of the checkpoint.
    for name in ("1", ".1.crc"):
        (checkpoint / "commits" / name).unlink()
    add(6000)
    run_stream()
    assert sorted(numbers(stored(hub, "stream"))) == list(range(9000))


# When the hub is away, or full


def test_a_hub_that_is_killed_loses_and_doubles_nothing(mortal: Up) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        for place, batch in enumerate(batches(60_000, size=1000)):
            if place in (9, 30):
                mortal.kill()
                mortal.start()
            yield batch

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(writer(mortal.address).write_at, TaskPosition("q", 0, 0), rows()).result(DEADLINE_S)
    assert written.rows == 60_000
    assert numbers(stored(mortal)) == list(range(60_000))


def test_a_hub_that_stays_away_fails_the_task(mortal: Up) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        for place, batch in enumerate(batches(20_000, size=1000)):
            if place == 9:
                mortal.kill()
            yield batch

    with pytest.raises(HubUnavailable, match="no hub at unix"):
        writer(mortal.address, connect_s="0.5").write_at(TaskPosition("q", 0, 0), rows())
    with pytest.raises(HubUnavailable, match="no hub at unix"):
        writer(mortal.address, connect_s="0.2").write_at(TaskPosition("q", 0, 0), batches(1))
    assert writer(mortal.address, connect_s="0.2").write_at(TaskPosition("q", 0, 0), iter(())) == Written()


def test_a_slow_consumer_slows_the_task_and_loses_nothing(tmp_path: Path) -> None:
    async def play(address: str) -> None:
        async with (
            tl.connect(address, name="slow") as bus,
            bus.subscribe(TOPIC, capacity=50, overflow=tl.Overflow.BLOCK) as messages,
        ):
            work = asyncio.create_task(
                asyncio.to_thread(writer(address).write_at, TaskPosition("q", 0, 0), batches(9000))
            )
            await until(lambda: len(messages.inbox.queue) == 50, "its inbox is full")
            done, _ = await asyncio.wait((work,), timeout=1.0)
            assert not done, "it waits"
            with pytest.raises(BackpressureTimeout):
                await asyncio.to_thread(writer(address, timeout_s="0.3").write_at, TaskPosition("p", 0, 0), batches(10))
            got: list[int] = []
            while len(got) < 9000:
                message = await messages.recv()
                assert message is not None
                if message.id in ids:
                    got.append(int(message.payload))
            assert got == list(range(9000))
            assert (await work).rows == 9000

    ids = set(TaskPosition("q", 0, 0).ids(0, 9000))
    with up(tmp_path) as hub:
        asyncio.run(asyncio.wait_for(play(hub.address), DEADLINE_S))
