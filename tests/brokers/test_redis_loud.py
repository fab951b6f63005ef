"""Silent losses of Redis are logged and counted: drops, gaps, trimmed and evicted streams, weak durability."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.brokers.redis_buses import adapter_of, broker_of, bus_at, driver_of, run
from tests.brokers.redis_servers import KINDS, RedisServer
from tests.hub.hubs import until

pytestmark = pytest.mark.usefixtures("_warnings")


@pytest.fixture(name="_warnings")
def warnings_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "trunkline.connection")


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(request.param, tmp_path) as running:
        yield running


async def texts(stream: tl.Stream, count: int) -> list[Any]:
    found = []
    for _ in range(count):
        message = await stream.recv()
        assert message is not None
        found.append(message.decode())
        stream.ack(message)
    return found


def test_a_server_that_does_not_sync_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def connect_twice(server: RedisServer, synced: bool = False) -> None:
        async with bus_at(server, synced=synced) as bus:
            await bus.publish("plain", 1)
            await bus.flush()
            assert "durable" not in caplog.text
            async with bus.subscribe("t", group="g"):
                await bus.publish("t", 1)
            driver_of(bus).session.lose("cut by the test")
            await until(lambda: adapter_of(bus).connects == 2, "it has reconnected")

    with RedisServer("redis", tmp_path / "weak", appendfsync="everysec", maxmemory_policy="allkeys-lru") as server:
        run(connect_twice(server))
        assert caplog.text.count("is not durable") == 1
        assert "appendfsync is 'everysec'" in caplog.text
        assert "Set appendfsync always, maxmemory-policy noeviction in its configuration" in caplog.text
        caplog.clear()
        run(connect_twice(server, synced=True))
        assert "durable" not in caplog.text
    with RedisServer("redis", tmp_path / "strong") as server:
        run(connect_twice(server))
        assert "durable" not in caplog.text


def test_a_topic_that_nobody_listens_to_any_more(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with bus_at(server, "a") as publisher, bus_at(server, "b") as subscriber:
            await publisher.publish("t", 0)
            await publisher.flush()
            assert adapter_of(publisher).unheard_messages == 1
            assert "discards what is published" not in caplog.text
            async with subscriber.subscribe("t") as stream:
                await publisher.publish("t", 1)
                await publisher.flush()
                assert await texts(stream, 1) == [1]
            await subscriber.flush()
            await until(lambda: not server.cli("PUBSUB", "CHANNELS", "*:t:t"), "it has unsubscribed")
            await publisher.publish("t", 2)
            await publisher.flush()
            assert adapter_of(publisher).unheard_messages == 2
            assert "t has lost its last subscriber" in caplog.text

    run(test())


def test_a_subscriber_that_was_cut_off_counts_what_it_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The server closes the connection of a slow reader, without a reason."""
    limits = "pubsub 1mb 1mb 1"

    async def test(server: RedisServer) -> None:
        payload = b"x" * 100_000
        async with (
            bus_at(server) as subscriber,
            subscriber.subscribe("t", capacity=100_000, overflow="drop_oldest") as stream,
        ):
            # In another thread: while it publishes, this event loop reads nothing.
            with tl.connect_blocking(server.url, connection=tl.EngineSettings(connect_s=30.0)) as publisher:
                publisher.publish("t", payload)
                publisher.flush()
                await until(lambda: stream.depth == 1, "the first has come")
                for _ in range(400):
                    publisher.publish("t", payload)
                    publisher.flush()
                await until(lambda: adapter_of(subscriber).connects == 2, "it has reconnected")
                await until(lambda: bool(server.cli("PUBSUB", "CHANNELS", "*:t:t")), "it has subscribed again")
                came = stream.depth
                publisher.publish("t", payload)
                await until(lambda: stream.depth == came + 1, "the last has come")
                missed = broker_of(subscriber).shared.missed
                assert missed > 0
                assert came + missed + 1 == 402

    with RedisServer("redis", tmp_path, client_output_buffer_limit=limits) as server:
        run(test(server))
    assert "the server closed the pub/sub connection alone" in caplog.text
    assert "client-output-buffer-limit pubsub" in caplog.text


def test_a_trimmed_stream_is_noticed(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """By another client, with XTRIM, before it was read."""

    async def test() -> None:
        async with bus_at(server, durable=("t",)) as bus:
            async with bus.subscribe("t", name="d", durable=True) as stream:
                await bus.publish("t", 0)
                assert await texts(stream, 1) == [0]
            ids = list(await bus.publish_many("t", [1, 1, 1]))
            ids += [await bus.publish("t", number) for number in range(2, 10)]
            server.cli("XTRIM", "{tl}:s:t", "MAXLEN", "3")
            async with bus.subscribe("t", name="d", durable=True) as stream:
                assert await texts(stream, 3) == [7, 8, 9]
                account = stream.account()
                # The first of the six entries has three messages.
                assert (account.dropped, account.delivered, account.balanced) == (8, 3, True)
                assert adapter_of(bus).trimmed_entries == 6
                for removed in (ids[2], ids[3], ids[7]):
                    (outcome,) = (await bus.explain(removed)).outcomes
                    assert (outcome.subscriber, outcome.fate) == ("d", tl.Fate.DROPPED)
                    assert outcome.reason == "the engine removed it before it was read"
                (outcome,) = (await bus.explain(ids[8])).outcomes
                assert outcome.fate is tl.Fate.DELIVERED

    run(test())
    assert "entries 2 to 7 of t were removed before they were read" in caplog.text


def test_what_was_removed_among_other_topics_is_counted(server: RedisServer) -> None:
    """The numbers of one topic have gaps, and messages on other topics are not counted as lost."""

    async def test() -> None:
        async with bus_at(server, durable=(">",)) as bus:
            async with bus.subscribe("*", name="d", durable=True):
                pass
            ids = {(topic, number): await bus.publish(topic, number) for number in range(6) for topic in "tu"}
            server.cli("XTRIM", "{tl}:s:t", "MAXLEN", "2")
            async with bus.subscribe("*", name="d", durable=True) as stream:
                got = await texts(stream, 8)
                assert sorted(got) == [0, 1, 2, 3, 4, 4, 5, 5]
                account = stream.account()
                # Redis 6 does not count the entries of a stream: it is known that there was one.
                assert account.dropped == (4 if server.kind == "valkey" else 1)
                assert (account.delivered, account.balanced) == (8, True)
                for number in range(6):
                    (outcome,) = (await bus.explain(ids["u", number])).outcomes
                    assert outcome.fate is tl.Fate.DELIVERED

    run(test())


def test_what_was_removed_before_it_came_is_not_missing(server: RedisServer) -> None:
    async def test() -> None:
        async with bus_at(server, durable=("t",)) as bus:
            for number in range(10):
                await bus.publish("t", number)
            server.cli("XTRIM", "{tl}:s:t", "MAXLEN", "3")
            async with bus.subscribe("t", name="d", durable=True, start="beginning") as stream:
                assert await texts(stream, 3) == [7, 8, 9]
                assert stream.account().dropped == 0

    run(test())


def test_an_evicted_stream_is_noticed_and_goes_on(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with bus_at(server, durable=("t",)) as bus, bus.subscribe("t", name="d", durable=True) as stream:
            await bus.publish("t", 0)
            assert await texts(stream, 1) == [0]
            server.cli("DEL", "{tl}:s:t")
            await bus.publish("t", 1)
            assert await texts(stream, 1) == [1]

    run(test())
    assert "d: the stream of t is gone: it was evicted or deleted" in caplog.text


def test_what_is_old_is_removed(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """`max_bytes` and `max_age_s` are applied. A reader that had not read the removed entries is informed."""

    async def test() -> None:
        async with bus_at(server, durable=("t",), lease_s=0.5, max_bytes=50_000) as bus:
            async with bus.subscribe("t", name="d", durable=True):
                pass
            for _ in range(100):
                await bus.publish("t", b"x" * 1000)
            await until(lambda: int(server.cli("XLEN", "{tl}:s:t")) < 60, "the oldest were removed")
            assert int(server.cli("XLEN", "{tl}:s:t")) > 40
            async with bus.subscribe("t", name="d", durable=True) as stream:
                assert await stream.recv() is not None
        async with bus_at(server, durable=("t",), lease_s=0.5, max_age_s=0.2) as bus:
            await adapter_of(bus).ready()
            await until(lambda: int(server.cli("XLEN", "{tl}:s:t")) == 0, "all of it is too old")

    run(test())
    assert "were removed before they were read" in caplog.text


def test_what_was_stored_for_a_group_alone_goes_when_it_was_handled(server: RedisServer) -> None:
    async def test() -> None:
        async with bus_at(server, lease_s=0.5) as bus, bus.subscribe("t", group="g") as stream:
            for number in range(20):
                await bus.publish("t", number)
            await texts(stream, 10)
            await until(lambda: 10 <= int(server.cli("XLEN", "{tl}:s:t")) < 20, "what was handled is removed")
            await texts(stream, 10)
            await until(lambda: int(server.cli("XLEN", "{tl}:s:t")) == 0, "all was handled")

    run(test())


def test_forgotten_scripts_are_told_again(server: RedisServer) -> None:
    async def test() -> None:
        async with bus_at(server, durable=("t",)) as bus:
            await bus.publish("t", 0)
            server.cli("SCRIPT", "FLUSH")
            await bus.publish("t", 1)
            await bus.publish("u", 1)
            await bus.flush()
            async with bus.subscribe("t", start="beginning") as stream:
                assert await texts(stream, 2) == [0, 1]

    run(test())


def test_a_full_server_refuses(tmp_path: Path) -> None:
    async def test(server: RedisServer) -> None:
        async with bus_at(server, durable=("t",)) as bus:
            with pytest.raises(tl.NotStored, match="Redis has no memory left: raise maxmemory"):
                await asyncio.gather(*(bus.publish("t", b"x" * 500_000) for _ in range(100)))
            server.cli("CONFIG", "SET", "maxmemory", "0")
            await bus.publish("t", b"x")

    with RedisServer("redis", tmp_path, maxmemory="8mb") as server:
        run(test(server))


def test_a_publisher_learns_late_what_is_stored(server: RedisServer) -> None:
    """Without an announcement: stored messages are stored once, the others are published once, in order."""

    async def test() -> None:
        async with bus_at(server) as bus, bus.subscribe("*") as stream:
            await bus.publish("t", -1)
            await bus.flush()
            for round_, pattern in enumerate(("t", "v")):
                server.cli("SADD", "{tl}:stored", pattern)
                for number in range(20):
                    await bus.publish("t", 100 * round_ + number)
                    await bus.publish("u", 100 * round_ + number)
                await bus.flush()
            got = [message for _ in range(81) if (message := await stream.recv()) is not None]
            wanted = [100 * round_ + number for round_ in range(2) for number in range(20)]
            assert [each.decode() for each in got if each.topic == "t"] == [-1, *wanted]
            assert [each.decode() for each in got if each.topic == "u"] == wanted
            assert stream.depth == 0
            async with bus.subscribe("t", start="beginning") as stored:
                assert await texts(stored, 40) == wanted
                assert stored.depth == 0

    run(test())


def test_nothing_is_lost_when_a_topic_becomes_durable(server: RedisServer) -> None:
    """A publisher that does not know it yet stores them anyway, and keeps the order."""

    async def test() -> None:
        async with bus_at(server, "a") as publisher, bus_at(server, "b") as subscriber:
            stop = asyncio.Event()
            sent = 0

            async def publish() -> None:
                nonlocal sent
                while not stop.is_set():
                    await publisher.publish("t", sent)
                    sent += 1
                    await asyncio.sleep(0)

            publishing = asyncio.create_task(publish())
            await until(lambda: sent > 50, "it publishes")
            async with subscriber.subscribe("t", group="g") as stream:
                reached = sent
                await until(lambda: sent > reached + 200, "it goes on")
                stop.set()
                await publishing
                await publisher.flush()
                first = (await texts(stream, 1))[0]
                assert isinstance(first, int)
                assert first <= reached + 1
                assert await texts(stream, sent - 1 - first) == list(range(first + 1, sent))

    run(test())


def test_a_request_that_nobody_serves_fails_at_once(server: RedisServer) -> None:
    async def act() -> None:
        async with bus_at(server) as one, bus_at(server) as other:

            @other.on("price.eu")
            async def price(order: str) -> int:
                return len(order)

            await until(lambda: not adapter_of(other)._opening, "the handler is open")
            assert await one.request("price.eu", "abc", timeout_s=60) == 3
            with pytest.raises(tl.NoResponders) as caught:
                await one.request("prize.eu", "abc", timeout_s=600)
            assert (caught.value.topic, one.stats().open_requests) == ("prize.eu", 0)

    run(act())
