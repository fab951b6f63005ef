"""Actors run on engines as they do in one process, without changes to their code."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.actors.people import Till
from tests.brokers.engine_servers import NatsServer
from tests.brokers.redis_servers import KINDS, RedisServer
from trunkline.actors import Actor, ActorSystem
from trunkline.bus.bus import Bus

TIMEOUT_S = 60.0
Server = NatsServer | RedisServer
_inboxes = itertools.count(1_000_000)


class Counter(Actor):
    def __init__(self) -> None:
        self.count = 0

    async def receive(self, message: object) -> object:
        if message == "how many?":
            return self.count
        if message == "fail":
            raise ValueError("asked to")
        self.count += 1
        return None


@pytest.fixture(params=["nats", *KINDS])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with NatsServer(tmp_path) if request.param == "nats" else RedisServer(request.param, tmp_path) as running:
        yield running


def bus_at(server: Server, name: str, *durable: str) -> Bus:
    """With its own connection: no two have the same settings."""
    how = tl.EngineSettings(synced=True, connect_s=TIMEOUT_S, durable=durable, max_inbox_bytes=next(_inboxes))
    return tl.connect(server.url, name=name, connection=how)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * TIMEOUT_S))


def test_an_actor_is_told_and_asked_from_another_process(server: Server) -> None:
    async def test() -> None:
        async with (
            bus_at(server, "here") as here,
            bus_at(server, "there") as there,
            ActorSystem(here, "here") as system,
            ActorSystem(there, "there") as elsewhere,
        ):
            counter = await system.spawn(Counter, name="counter")
            far = elsewhere.ref(counter.address)
            assert await counter.ask("how many?", timeout_s=TIMEOUT_S) == 0
            await here.flush()
            for _ in range(100):
                await far.tell("one")
            assert await far.ask("how many?", timeout_s=TIMEOUT_S) == 100
            # It fails, is supervised, and continues.
            await far.tell("fail")
            await far.tell("one")
            assert await far.ask("how many?", timeout_s=TIMEOUT_S) == 1

    run(test())


def test_the_state_of_an_actor_outlives_its_process_and_the_server(server: Server) -> None:
    async def live(amount: int) -> object:
        async with bus_at(server, "shop", "_state.>") as bus, ActorSystem(bus, "shop") as system:
            till = await system.spawn(Till, name="till")
            return await till.ask(("a", amount), timeout_s=TIMEOUT_S)

    async def test() -> None:
        assert await live(1) == 1
        server.process.kill()
        server.process.start()
        assert await live(2) == 3

    run(test())


def test_the_blocking_face(server: Server) -> None:
    settings = tl.EngineSettings(synced=True, connect_s=TIMEOUT_S, durable=("orders.>",))
    with tl.connect_blocking(server.url, connection=settings) as bus:
        bus.publish("orders.eu", {"id": 1})
        message = bus.last("orders.eu")
        assert message is not None
        assert message.decode() == {"id": 1}
