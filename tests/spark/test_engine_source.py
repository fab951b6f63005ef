"""`format("trunkline")` on NATS and Redis: each stored message once, over restarts; removed entries are reported."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.brokers.redis_servers import RedisServer
from tests.spark.lakes import rows_of
from trunkline.spark.source import partitions
from trunkline.spark.source.data_source import TrunklineSource, register
from trunkline.spark.source.engine_stream import EngineStreamReader

KINDS = ("nats", "redis")
TOPICS = ("orders.placed", "orders.sent", "ticks")
Server = NatsServer | RedisServer


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(kind: str, tmp_path: Path) -> Iterator[Server]:
    with NatsServer(tmp_path / kind) if kind == "nats" else RedisServer("redis", tmp_path / kind) as found:
        yield found


def fill(server: Server, numbers: range, namespace: str = "tl") -> list[tuple[str, int]]:
    """Publish durably, alone and in batches, on three topics; returns topic and payload of each."""
    how = tl.EngineSettings(durable=(">",), synced=True, connect_s=60, namespace=namespace)
    published = [(TOPICS[number % 3], number) for number in numbers]

    async def publish() -> None:
        async with tl.connect(server.url, connection=how) as bus:
            half = len(published) // 2
            for topic, number in published[:half]:
                await bus.publish(topic, number)
            await asyncio.gather(*(bus.publish(topic, number) for topic, number in published[half:]))

    asyncio.run(publish())
    return sorted(published)


def found_in(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    for row in rows:
        assert row["content_type"] == "application/msgpack"
        assert row["accepted"] >= row["time"] or (row["time"] - row["accepted"]).total_seconds() < 1
    return sorted((row["topic"], tl.codec.decode(row["payload"], row["content_type"])) for row in rows)


# On Spark


class EngineQuery:
    """A query that can be restarted, with one checkpoint, into one directory."""

    def __init__(self, spark: SparkSession, options: dict[str, str], place: Path) -> None:
        self._spark = spark
        self._place = place
        self._source = spark.readStream.format("trunkline").options(**options)

    def run(self) -> list[int]:
        """Process everything available. Returns the number of rows of each micro-batch."""
        query = (
            self._source.schema("seq long, topic string")
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self._place / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self._place / "rows"))
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    def numbers(self) -> list[int]:
        found = self._spark.read.schema("seq long").parquet(str(self._place / "rows"))
        return [row["seq"] for row in found.collect()]


@pytest.mark.long
def test_a_query_reads_what_was_published_and_goes_on_from_its_checkpoint(
    spark: SparkSession, kind: str, server: Server, tmp_path: Path
) -> None:
    published = fill(server, range(60))
    options = {kind: server.url, "topics": "orders.>"}
    loaded = spark.read.format("trunkline").options(**options).load()
    wanted = [each for each in published if each[0].startswith("orders.")]
    assert found_in([row.asDict() for row in loaded.collect()]) == wanted
    # A filter of the query is tried before rows are made.
    assert loaded.where("topic = 'orders.sent'").count() == 20

    query = EngineQuery(spark, options, tmp_path / "place")
    assert sum(query.run()) == 40
    fill(server, range(60, 120))
    assert sum(query.run()) == 40
    assert query.run() == []
    numbers = query.numbers()
    every = {row["seq"] for row in loaded.sparkSession.read.format("trunkline").options(**options).load().collect()}
    assert len(numbers) == len(set(numbers)) == 80
    assert set(numbers) == every

    fill(server, range(60), namespace="other")
    other = {**options, kind: f"{server.url}?namespace=other"}
    with pytest.raises(StreamingQueryException, match="the checkpoint belongs to"):
        EngineQuery(spark, other, tmp_path / "place").run()


@pytest.mark.long
def test_the_programs_of_the_guide_run(spark: SparkSession, tmp_path: Path) -> None:
    section = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text().partition("## Into Spark, directly")[2]
    names: dict[str, Any] = {}
    exec(section.partition("```python\n")[2].partition("```")[0], names)
    with NatsServer(tmp_path / "nats") as server:
        fill(server, range(30))
        assert names["stored_orders"](spark, "nats", server.url).count() == 20
        query = names["follow_orders"](spark, "nats", server.url, str(tmp_path))
        try:
            query.processAllAvailable()
        finally:
            query.stop()
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 20


# Offsets, without Spark


def stream(kind: str, url: str, **options: str) -> EngineStreamReader:
    source = TrunklineSource({kind: url, **options})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, EngineStreamReader)
    return reader


def read(parts: list[InputPartition]) -> list[dict[str, Any]]:
    return rows_of(batch for part in parts for batch in partitions.read(part))


def micro_batches(reader: EngineStreamReader, limit: ReadLimit) -> list[list[dict[str, Any]]]:
    found = []
    offset = reader.initialOffset()
    while (end := reader.latestOffset(offset, limit)) != offset:
        found.append(read(reader.partitions(offset, end)))
        offset = end
    return found


def test_micro_batches_are_as_large_as_allowed(kind: str, server: Server) -> None:
    published = fill(server, range(200))
    found = micro_batches(stream(kind, server.url, partitions="3"), ReadMaxRows(7))
    assert found_in([row for batch in found for row in batch]) == published
    assert [len(batch) for batch in found if batch] == [7] * 28 + [4]
    some = micro_batches(stream(kind, server.url, topics="orders.*"), ReadMaxRows(50))
    assert found_in([row for batch in some for row in batch]) == [each for each in published if each[0] != "ticks"]
    assert [len(batch) for batch in some if batch] == [50, 50, 34]


def test_a_new_query_starts_where_it_is_told(kind: str, server: Server) -> None:
    fill(server, range(30))
    numbers = sorted(row["seq"] for row in micro_batches(stream(kind, server.url), ReadAllAvailable())[0])
    middle = stream(kind, server.url, start=str(numbers[10]))
    assert sorted(row["seq"] for row in micro_batches(middle, ReadAllAvailable())[0]) == numbers[10:]
    end = stream(kind, server.url, start="end")
    start = end.initialOffset()
    assert end.latestOffset(start, ReadAllAvailable()) == start
    later = fill(server, range(30, 40))
    upto = end.latestOffset(start, ReadAllAvailable())
    assert upto["seq"] == end.reportLatestOffset()["seq"]
    assert found_in(read(end.partitions(start, upto))) == later


def test_available_now_ends_where_it_began(kind: str, server: Server) -> None:
    first = fill(server, range(30))
    reader = stream(kind, server.url, max_rows="20")
    reader.prepareForTriggerAvailableNow()
    fill(server, range(30, 60))
    found = micro_batches(reader, reader.getDefaultReadLimit())
    assert found_in([row for batch in found for row in batch]) == first


def remove(server: Server, kind: str) -> None:
    """Stored entries are removed, as by retention. Numbers stay the same."""
    if isinstance(server, RedisServer):
        for topic in TOPICS:
            server.cli("XTRIM", f"{{tl}}:s:{topic}", "MAXLEN", "0")
        return

    async def purge() -> None:
        import nats

        connection = await nats.connect(server.url)
        await connection.jetstream().purge_stream("tl-messages")
        await connection.close()

    asyncio.run(purge())


def test_what_was_removed_unread_is_an_error_or_told(
    kind: str, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server, range(30))
    reader = stream(kind, server.url)
    start = reader.initialOffset()
    remove(server, kind)
    later = fill(server, range(30, 60))
    end = reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(tl.StoreUnusable, match=r"were removed before they were read.*fail_on_data_loss=false"):
        read(reader.partitions(start, end))
    assert "unread" not in caplog.text
    # The name that other sources of Spark have for it is known, too.
    lenient = stream(kind, server.url, failOnDataLoss="false")
    assert found_in(read(lenient.partitions(start, end))) == later
    assert "were removed by the engine, unread" in caplog.text
    caplog.clear()
    # A query that starts now has lost nothing.
    assert found_in(micro_batches(stream(kind, server.url), ReadAllAvailable())[0]) == later
    assert caplog.text == ""
    # Also if nothing came after what was removed.
    remove(server, kind)
    assert micro_batches(stream(kind, server.url), ReadAllAvailable()) in ([], [[]])
    with pytest.raises(tl.StoreUnusable, match="were removed before they were read"):
        read(reader.partitions(start, end))


def test_single_entries_that_are_gone_are_told(kind: str, server: Server, caplog: pytest.LogCaptureFixture) -> None:
    fill(server, range(30))
    reader = stream(kind, server.url, fail_on_data_loss="false")
    start, end = reader.initialOffset(), reader.reportLatestOffset()
    rows = read(reader.partitions(start, end))
    # The fourth message was published alone: it is an entry.
    gone = sorted(row["seq"] for row in rows)[3]
    remove_one(server, gone >> 16)
    assert caplog.text == ""
    assert sorted(row["seq"] for row in read(reader.partitions(start, end))) == sorted(
        row["seq"] for row in rows if row["seq"] != gone
    )
    assert "were removed by the engine, unread" in caplog.text
    caplog.clear()
    if kind == "nats":
        # JetStream lists them: to a query that begins now they are no loss. Redis has no list of them.
        assert len(micro_batches(stream(kind, server.url), ReadAllAvailable())[0]) == 29
        assert caplog.text == ""


def remove_one(server: Server, entry: int) -> None:
    if isinstance(server, RedisServer):
        delete_it = """
            local found = redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1])
            if found[1] then redis.call('XDEL', KEYS[1], found[1][1]) end
        """
        for topic in TOPICS:
            server.cli("EVAL", delete_it, "1", f"{{tl}}:s:{topic}", str(entry))
        return

    async def delete() -> None:
        import nats

        connection = await nats.connect(server.url)
        await connection.jetstream().delete_msg("tl-messages", entry)
        await connection.close()

    asyncio.run(delete())


def test_a_reader_leaves_nothing_behind(tmp_path: Path) -> None:
    async def consumers(url: str) -> int:
        import nats

        connection = await nats.connect(url)
        found = await connection.jetstream().stream_info("tl-messages")
        await connection.close()
        return found.state.consumer_count

    with NatsServer(tmp_path / "nats") as server:
        fill(server, range(30))
        before = asyncio.run(consumers(server.url))
        (part,) = stream("nats", server.url).partitions(*_whole("nats", server.url))
        batches = partitions.read(part)
        next(batches)
        assert asyncio.run(consumers(server.url)) == before + 1
        # Spark may stop in the middle, as for a limit.
        batches.close()  # type: ignore[attr-defined]  # it is a generator
        assert asyncio.run(consumers(server.url)) == before


def _whole(kind: str, url: str) -> tuple[dict[str, Any], dict[str, Any]]:
    reader = stream(kind, url)
    return reader.initialOffset(), reader.reportLatestOffset()


def test_another_store_is_refused(kind: str, server: Server) -> None:
    fill(server, range(9))
    fill(server, range(30), namespace="other")
    reader, other = stream(kind, server.url), stream(kind, f"{server.url}?namespace=other")
    start = reader.initialOffset()
    for ask in (
        lambda: other.latestOffset(start, ReadAllAvailable()),
        lambda: other.partitions(start, other.reportLatestOffset()),
        lambda: other.partitions(other.initialOffset(), reader.reportLatestOffset()),
    ):
        with pytest.raises(tl.StoreUnusable, match="the checkpoint belongs to"):
            ask()
    assert len(read(reader.partitions(start, reader.reportLatestOffset()))) == 9
    assert len(read(other.partitions(other.initialOffset(), other.reportLatestOffset()))) == 30
    with pytest.raises(tl.StoreUnusable, match="it was reset"):
        reader.latestOffset({**start, "seq": 1 << 40}, ReadAllAvailable())
    with pytest.raises(tl.InvalidSettings, match="one of a query on a journal"):
        reader.latestOffset({"seq": 3}, ReadAllAvailable())


def test_a_server_without_a_store_says_what_to_do(kind: str, server: Server) -> None:
    with pytest.raises(tl.StoreUnusable, match="publish on a durable topic first"):
        stream(kind, server.url).initialOffset()


def test_what_is_no_batch_is_damage(server: Server, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    published = fill(server, range(9))

    async def publish() -> None:
        import nats

        connection = await nats.connect(server.url)
        await connection.publish("tl.ticks", b"something else")
        await connection.close()

    if isinstance(server, RedisServer):
        number = int(server.cli("INCR", "{tl}:seq"))
        before = server.cli("HGET", "{tl}:last", "ticks")
        fields = ("p", before, "i", "name", "d", "something else", "b", "1")
        server.cli("XADD", "{tl}:s:ticks", f"{number}-1", *fields)
        server.cli("HSET", "{tl}:last", "ticks", str(number))
    else:
        asyncio.run(publish())
    with pytest.raises(tl.JournalDamaged, match="skip_damaged"):
        micro_batches(stream(kind, server.url), ReadAllAvailable())
    found = micro_batches(stream(kind, server.url, skip_damaged="true"), ReadAllAvailable())
    assert found_in(found[0]) == published
    assert "skipped: " in caplog.text


# Options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"nats": "nats://a", "redis": "redis://a"}, "which server"),
        ({"nats": "nats://a", "topics": "a", "topic": "b"}, "mean the same"),
        ({"nats": "nats://a", "kind": "fates"}, "an engine keeps only messages"),
        ({"nats": "nats://a", "topcis": "a"}, "topics"),
        ({"redis": "redis://a", "journal": "/a"}, "journal"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, str], text: str) -> None:
    with pytest.raises(tl.InvalidSettings, match=text):
        TrunklineSource(options).schema()


def test_nobody_there_is_said_with_the_address() -> None:
    for kind, url in (("nats", "nats://127.0.0.1:1"), ("redis", "redis://127.0.0.1:1")):
        with pytest.raises(tl.EngineUnavailable, match=f"no {kind} server at {url}"):
            stream(kind, url).initialOffset()
