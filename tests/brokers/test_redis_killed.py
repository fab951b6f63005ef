"""A Redis server is killed and started again: what was acknowledged is there, and what was lost is counted."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers.redis_buses import adapter_of, broker_of, bus_at, driver_of, opened, run
from tests.brokers.redis_servers import KINDS, RedisServer
from tests.hub.hubs import until
from trunkline.brokers.engine.settings import EngineSettings
from trunkline.brokers.redis.broker import RedisBroker
from trunkline.errors import EngineUnavailable, NotConfirmed


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(request.param, tmp_path) as running:
        yield running


def test_no_acknowledged_message_is_lost(server: RedisServer) -> None:
    async def test() -> None:
        stored: list[int] = []
        got: list[int] = []
        async with bus_at(server, durable=("orders.>",), lease_s=1.0) as bus:

            @bus.on("orders.*", group="billing", durable=True)
            async def bill(number: int) -> None:
                got.append(number)

            await opened(bus)
            stop = asyncio.Event()

            async def publish(worker: int) -> None:
                for number in itertools.count(worker, 4):
                    if stop.is_set():
                        return
                    await bus.publish("orders.eu", number)
                    stored.append(number)

            publishing = [asyncio.create_task(publish(worker)) for worker in range(4)]
            for reached in (200, 600, 1000):
                await until(lambda reached=reached: len(stored) > reached, "publishing")  # type: ignore[misc]
                server.restart()
            await until(lambda: len(stored) > 1200, "publishing after the last restart")
            stop.set()
            await asyncio.gather(*publishing)
            await until(lambda: set(got) >= set(stored), f"{len(set(stored) - set(got))} acknowledged are missing")
            assert adapter_of(bus).connects == 4
        doubles = len(got) - len(set(got))
        assert doubles < 600, f"{doubles} of {len(got)} came twice"

    run(test())


def test_each_batch_is_stored_once(server: RedisServer) -> None:
    """A batch whose confirmation was lost is sent again, and is not stored again."""

    async def test() -> None:
        async with bus_at(server, durable=("t",)) as bus:
            await bus.publish("t", 0)
            for number in range(1, 60):
                publishing = asyncio.create_task(bus.publish("t", number))
                if number % 20 == 0:
                    # Sometimes between the command and its reply: the server has it, but no client knows.
                    await asyncio.sleep(0)
                    driver_of(bus).session.lose("cut by the test")
                await publishing
            async with bus.subscribe("t", start="beginning") as messages:
                got = [message.decode() for _ in range(60) if (message := await messages.recv()) is not None]
                assert got == list(range(60))
                assert messages.depth == 0

    run(test())


def test_subscriptions_and_requests_resume(server: RedisServer) -> None:
    async def test() -> None:
        async with bus_at(server, "a") as bus, bus_at(server, "b") as other:

            @bus.on("pricing")
            async def price(amount: int) -> int:
                return amount * 2

            seen: list[int] = []

            @bus.on("news.*")
            async def read(number: int) -> None:
                seen.append(number)

            await opened(bus)
            assert await other.request("pricing", 2, reply=int, timeout_s=30) == 4
            server.restart()
            await until(lambda: adapter_of(bus).connects == adapter_of(other).connects == 2, "both have reconnected")
            assert await other.request("pricing", 3, reply=int, timeout_s=30) == 6
            await other.publish("news.a", 7)
            await until(lambda: seen == [7], "the subscription did not resume")

    run(test())


def test_what_plain_topics_lose_is_counted(server: RedisServer) -> None:
    """Published while the server was down, or in transit: the publisher gets an error, or the subscriber counts it."""

    async def test() -> None:
        lost: list[int] = []
        got: list[int] = []
        async with bus_at(server, "a") as publisher, bus_at(server, "b") as subscriber:
            assert adapter_of(publisher) is not adapter_of(subscriber)

            def report(messages: object, error: Exception) -> None:
                assert isinstance(error, NotConfirmed)
                lost.extend(message.decode() for message in messages)  # type: ignore[attr-defined]

            publisher.broker.on_lost(report)
            async with subscriber.subscribe("t") as messages:

                async def read() -> None:
                    async for message in messages:
                        got.append(message.decode())

                reading = asyncio.create_task(read())
                sent = 0
                for round_ in range(3):
                    for _ in range(500):
                        await publisher.publish("t", sent)
                        sent += 1
                        await asyncio.sleep(0)
                    if round_ < 2:
                        server.restart()
                        await until(lambda round_=round_: adapter_of(publisher).connects == round_ + 2, "p")  # type: ignore[misc]
                        await until(lambda round_=round_: adapter_of(subscriber).connects == round_ + 2, "s")  # type: ignore[misc]
                await publisher.flush()
                await publisher.publish("t", sent)
                await until(lambda: bool(got) and got[-1] == sent, f"the last of {sent} did not come")
                reading.cancel()
                missed = broker_of(subscriber).shared.missed
                assert len(got) == len(set(got))
                # Each is here, or its publisher got an error, or the subscriber counts it as missed.
                untold = set(range(sent + 1)) - {*got, *lost}
                assert len(untold) <= missed <= sent + 1 - len(got), f"{len(got)} came, {missed} missed of {sent + 1}"

    run(test())


def test_connect_waits_for_a_server_that_is_starting(tmp_path: Path) -> None:
    async def test() -> None:
        server = RedisServer("redis", tmp_path)
        try:
            async with bus_at(server) as bus:
                publishing = asyncio.create_task(bus.publish("t", 1))
                await asyncio.sleep(0.2)
                assert not publishing.done()
                server.process.start()
                await publishing
        finally:
            server.process.kill()

    run(test())


def test_an_error_names_the_address_and_what_to_do(tmp_path: Path) -> None:
    async def test() -> None:
        server = RedisServer("redis", tmp_path)
        how = EngineSettings(connect_s=0.2)
        async with RedisBroker(f"redis://me:secret@127.0.0.1:{server.port}", engine=how) as broker:
            with pytest.raises(EngineUnavailable) as caught:
                await broker.adapter.ready()
        text = str(caught.value)
        assert f"127.0.0.1:{server.port}" in text
        assert "start one there, or correct the address" in text
        assert "secret" not in text

    run(test())


def test_a_server_that_hangs_is_left(server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        how = EngineSettings(connect_s=1.0, lease_s=1.0, max_backoff_s=0.1)
        async with tl.Bus(RedisBroker(server.url, engine=how), name="hangs", owns_broker=True) as bus:
            await bus.publish("t", 1)
            await bus.flush()
            server.pause(True)
            try:
                await until(lambda: "no answer for 1 s" in caplog.text, "it was not noticed")
            finally:
                server.pause(False)
            await until(lambda: adapter_of(bus).connects == 2, "it did not come back")
            await bus.publish("t", 2)
            await bus.flush()

    with caplog.at_level(logging.WARNING, "trunkline.connection"):
        run(test())
