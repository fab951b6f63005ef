"""`explain` after a replay of a dead letter, a killed process, and a removed entry, on every engine."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers import engine_member
from tests.brokers.engine_servers import NatsServer
from tests.brokers.redis_servers import RedisServer
from trunkline.brokers.engine.notes import table_of
from trunkline.bus.bus import Bus
from trunkline.clock import World

DEADLINE_S = 60.0
Outcomes = list[tuple[str, tl.Fate]]


@pytest.fixture(scope="module", params=["nats", "redis"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(request.param)
    with NatsServer(folder) if request.param == "nats" else RedisServer("redis", folder) as running:
        yield running.url


@asynccontextmanager
async def bus_at(url: str, settings: str) -> AsyncIterator[Bus]:
    async with (
        asyncio.timeout(DEADLINE_S),
        tl.connect(f"{url}?synced=true&connect_s=60&{settings}", name="one") as bus,
    ):
        yield bus


async def fates(bus: Bus, message_id: str) -> Outcomes:
    return [(each.subscriber, each.fate) for each in (await bus.explain(message_id)).outcomes]


async def becomes(wanted: Outcomes, found: Callable[[], Awaitable[Outcomes]]) -> None:
    while (now := await found()) != wanted:
        assert asyncio.get_running_loop().is_running(), now
        await asyncio.sleep(0.01)


def test_a_dead_letter_that_was_replayed(server: str) -> None:
    """To a later subscriber of the same name: the fate is no longer that of the earlier one."""

    async def test() -> None:
        async with bus_at(server, "namespace=replayed&durable=t") as bus:
            async with bus.subscribe("t", name="d", durable=True) as stream:
                first, second = await bus.publish_many("t", [1, 2])
                for _ in range(2):
                    stream.reject(await take(stream), "never")
            async with bus.subscribe("t", name="d", durable=True) as stream:
                await bus.replay_dead()
                again = {message.id: message for message in [await take(stream), await take(stream)]}
                stream.ack(again[first])
                await becomes([("d", tl.Fate.DELIVERED)], lambda: fates(bus, first))
                assert await fates(bus, second) == [("d", tl.Fate.IN_FLIGHT)]

    asyncio.run(test())


def test_nobody_waits_twice_for_a_process_that_was_killed(server: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        settings = "namespace=killed&durable=t&lease_s=600"
        async with bus_at(server, f"{settings}&answer_s=0.5") as bus:
            member = await asyncio.create_subprocess_exec(
                *(sys.executable, Path(engine_member.__file__), f"{server}?synced=true&{settings}", "t", "d", ""),
                stdout=asyncio.subprocess.PIPE,
                cwd=Path(__file__).parents[2],
            )
            assert member.stdout is not None
            assert await member.stdout.readline() == b"ready\n"
            message_id = await bus.publish("t", 1)
            assert await member.stdout.readline() == b"1\n"
            member.kill()
            await member.wait()
            await becomes([("d", tl.Fate.IN_FLIGHT)], lambda: fates(bus, message_id))
            while bus.broker.peers.others:  # type: ignore[attr-defined]
                await fates(bus, message_id)
            caplog.clear()
            assert await fates(bus, message_id) == [("d", tl.Fate.IN_FLIGHT)]
            assert "no answer" not in caplog.text

    asyncio.run(test())


def test_what_was_removed_while_its_subscriber_is_away(server: str) -> None:
    async def test() -> None:
        async with bus_at(server, "namespace=away&durable=t&max_bytes=20000&lease_s=0.5") as bus:
            async with bus.subscribe("t", name="d", durable=True):
                pass
            gone = await bus.publish("t", b"x" * 1000)
            for _ in range(60):
                kept = await bus.publish("t", b"x" * 1000)
            await becomes([("d", tl.Fate.DROPPED)], lambda: fates(bus, gone))
            assert await fates(bus, kept) == [("d", tl.Fate.IN_FLIGHT)]

    asyncio.run(test())


@asynccontextmanager
async def reader_at(url: str, settings: str, ahead_s: int = 0) -> AsyncIterator[Bus]:
    """A bus with a connection of its own. When it is closed, nobody has its record of fates."""
    world = World(time_ns=lambda: time.time_ns() + ahead_s * 1_000_000_000)
    async with tl.connect(f"{url}?synced=true&connect_s=61&{settings}", name="reader", world=world) as bus:
        yield bus


async def outcomes(bus: Bus, message_id: str) -> list[tl.Outcome]:
    return list((await bus.explain(message_id)).outcomes)


def test_what_was_removed_and_whose_reader_has_gone(server: str) -> None:
    """Nobody has a record whether it was read. That is the answer, and not that it was delivered."""

    async def test() -> None:
        settings = "namespace=gone&durable=t&max_bytes=20000&lease_s=0.5"
        async with bus_at(server, settings) as bus:
            async with reader_at(server, settings) as reader, reader.subscribe("t", name="d", durable=True) as stream:
                read = await bus.publish("t", 0)
                stream.ack(await take(stream))
                await reader.flush()
            await becomes([("d", tl.Fate.DELIVERED)], lambda: fates(bus, read))
            unread = await bus.publish("t", b"x" * 1000)
            for _ in range(60):
                last = await bus.publish("t", b"x" * 1000)
            await becomes([("d", tl.Fate.DROPPED)], lambda: fates(bus, unread))
            (outcome,) = await outcomes(bus, read)
            assert (outcome.subscriber, outcome.fate) == ("d", tl.Fate.UNKNOWN)
            assert "does not record whether it was acknowledged" in outcome.reason
            assert await fates(bus, last) == [("d", tl.Fate.IN_FLIGHT)]
            # The next reader passes the gap, and goes.
            async with reader_at(server, settings) as reader, reader.subscribe("t", name="d", durable=True) as stream:
                while True:
                    message = await take(stream)
                    stream.ack(message)
                    if message.id == last:
                        break
                await becomes([("d", tl.Fate.DROPPED)], lambda: fates(bus, unread))
                await reader.flush()
            await becomes([("d", tl.Fate.DELIVERED)], lambda: fates(bus, last))
            for message_id in (read, unread):
                assert await fates(bus, message_id) == [("d", tl.Fate.UNKNOWN)]

    asyncio.run(test())


def test_what_was_acknowledged_before_an_older_one(server: str) -> None:
    async def test() -> None:
        settings = "namespace=order&durable=t"
        async with bus_at(server, settings) as bus:
            before = await bus.publish("t", 0)
            async with reader_at(server, settings) as reader, reader.subscribe("t", name="d", durable=True) as stream:
                ids = [await bus.publish("t", number) for number in range(1, 4)]
                messages = [await take(stream) for _ in range(3)]
                stream.ack(messages[1])
                await reader.flush()
            await becomes([("d", tl.Fate.IN_FLIGHT)], lambda: fates(bus, ids[0]))
            # NATS does not tell which of the later ones were acknowledged.
            known = not server.startswith("nats")
            later = [tl.Fate.DELIVERED, tl.Fate.IN_FLIGHT] if known else [tl.Fate.UNKNOWN, tl.Fate.UNKNOWN]
            wanted = [tl.Fate.IN_FLIGHT, *later]
            assert [await fates(bus, each) for each in ids] == [[("d", fate)] for fate in wanted]
            # What was published before the subscription was never for it.
            assert await fates(bus, before) == []

    asyncio.run(test())


def test_a_part_of_a_batch_whose_reader_has_gone(server: str) -> None:
    async def test() -> None:
        settings = "namespace=part&durable=t"
        async with bus_at(server, settings) as bus:
            async with reader_at(server, settings) as reader, reader.subscribe("t", name="d", durable=True) as stream:
                ids = await bus.publish_many("t", [1, 2, 3, 4])
                messages = [await take(stream) for _ in range(4)]
                stream.ack(messages[1])
                stream.reject(messages[2], "never")
                await reader.flush()
            await becomes([("d", tl.Fate.DELIVERED)], lambda: fates(bus, ids[1]))
            wanted = [tl.Fate.IN_FLIGHT, tl.Fate.DELIVERED, tl.Fate.DEAD, tl.Fate.IN_FLIGHT]
            assert [await fates(bus, each) for each in ids] == [[("d", fate)] for fate in wanted]

    asyncio.run(test())


def test_a_dead_letter_whose_reader_has_gone(server: str) -> None:
    async def test() -> None:
        settings = "namespace=dead&durable=t"
        async with bus_at(server, settings) as bus:
            async with reader_at(server, settings) as reader, reader.subscribe("t", group="g", durable=True) as stream:
                ids = await bus.publish_many("t", [1, 2])
                messages = [await take(stream), await take(stream)]
                stream.reject(messages[0], "never")
                await reader.flush()
            # The other one was given back: a part of the entry is stored anew.
            await becomes([("g", tl.Fate.IN_FLIGHT)], lambda: fates(bus, ids[1]))
            (outcome,) = await outcomes(bus, ids[0])
            assert (outcome.fate, outcome.subscriber) == (tl.Fate.DEAD, "g")
            assert "never" in outcome.reason
            async with reader_at(server, settings) as reader, reader.subscribe("t", group="g", durable=True) as stream:
                stream.ack(await take(stream))
                await reader.flush()
            await becomes([("g", tl.Fate.DELIVERED)], lambda: fates(bus, ids[1]))

    asyncio.run(test())


def test_what_was_filtered_and_whose_reader_has_gone(server: str) -> None:
    async def test() -> None:
        settings = "namespace=filtered&durable=t"
        where = "headers.kind == 'b'"
        async with bus_at(server, settings) as bus:
            async with (
                reader_at(server, settings) as reader,
                reader.subscribe("t", name="d", durable=True, where=where) as stream,
            ):
                ids = [await bus.publish("t", kind, headers={"kind": kind}) for kind in "baab"]
                for _ in range(2):
                    stream.ack(await take(stream))
                await becomes([("d", tl.Fate.FILTERED)], lambda: fates(bus, ids[1]))
                await becomes([("d", tl.Fate.DELIVERED)], lambda: fates(bus, ids[3]))
            # What was acknowledged before the first one that was filtered was delivered.
            await becomes([("d", tl.Fate.DELIVERED)], lambda: fates(bus, ids[0]))
            for message_id in ids[1:]:
                (outcome,) = await outcomes(bus, message_id)
                assert (outcome.subscriber, outcome.fate) == ("d", tl.Fate.UNKNOWN)
                assert "does not record whether it was delivered, filtered or dropped" in outcome.reason
            # A later reader does not deliver them again, and writes no second note.
            async with (
                reader_at(server, settings) as reader,
                reader.subscribe("t", name="d", durable=True, where=where) as stream,
            ):
                ids += [await bus.publish("t", kind, headers={"kind": kind}) for kind in "ab"]
                assert (await take(stream)).id == ids[-1]
                await becomes([("d", tl.Fate.FILTERED)], lambda: fates(bus, ids[4]))
            driver = bus.broker.adapter.driver  # type: ignore[attr-defined]
            notes, _ = await driver.page(table_of("d"), "")
            assert len(notes) == 1
            # A new place of the same name has no note.
            await bus.forget_durable("d")
            async with reader_at(server, settings) as reader, reader.subscribe("t", name="d", durable=True) as stream:
                plain = await bus.publish("t", 1)
                stream.ack(await take(stream))
            await becomes([("d", tl.Fate.DELIVERED)], lambda: fates(bus, plain))

    asyncio.run(test())


def test_what_expired_and_whose_reader_has_gone(server: str) -> None:
    async def test() -> None:
        settings = "namespace=expired&durable=t"
        async with bus_at(server, settings) as bus:
            async with bus.subscribe("t", name="d", durable=True):
                pass
            expired = await bus.publish("t", 1, ttl_s=60)
            plain = await bus.publish("t", 2)
            async with (
                reader_at(server, settings, ahead_s=120) as reader,
                reader.subscribe("t", name="d", durable=True) as stream,
            ):
                message = await take(stream)
                assert message.id == plain
                stream.ack(message)
                await becomes([("d", tl.Fate.EXPIRED)], lambda: fates(bus, expired))
            await becomes([("d", tl.Fate.DELIVERED)], lambda: fates(bus, plain))
            (outcome,) = await outcomes(bus, expired)
            assert (outcome.subscriber, outcome.fate) == ("d", tl.Fate.UNKNOWN)
            assert "does not record whether it was delivered or had expired" in outcome.reason

    asyncio.run(test())


async def take(stream: tl.Stream) -> tl.Message:
    message = await stream.recv(timeout_s=DEADLINE_S)
    assert message is not None
    return message
