"""`flush` on an engine: afterwards the server has the subscriptions of this bus, also if it has published nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from operator import eq

import pytest

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.brokers.redis_servers import KINDS, RedisServer
from tests.hub.hubs import until

DEADLINE_S = 60.0


@pytest.fixture(scope="module", params=["nats", *KINDS])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(request.param)
    with NatsServer(folder) if request.param == "nats" else RedisServer(request.param, folder) as running:
        yield running.url


def test_what_another_client_publishes_after_it_arrives(server: str) -> None:
    async def test() -> None:
        async with tl.connect(f"{server}?connect_s=60", name="publisher") as publisher:
            await publisher.publish("t", 0)
            for number in range(20):
                # Another setting: a connection of its own.
                async with tl.connect(f"{server}?connect_s={61 + number}", name="subscriber") as bus:
                    got: list[int] = []
                    for pattern in ("t", "*"):
                        bus.on(pattern)(got.append)
                    await bus.flush()
                    await publisher.publish("t", number)
                    await until(partial(eq, got, [number] * 2), "both handlers got it")

    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))


def test_a_bus_that_is_closed_meanwhile(server: str) -> None:
    async def test() -> None:
        async with tl.connect(f"{server}?connect_s=60", name="subscriber") as bus:
            await bus.publish("t", 0)
            bus.on("t")(print)
            flushing = asyncio.ensure_future(bus.flush())
            await asyncio.sleep(0)
        await asyncio.wait([flushing])
        flushing.exception()

    asyncio.run(asyncio.wait_for(test(), DEADLINE_S))
