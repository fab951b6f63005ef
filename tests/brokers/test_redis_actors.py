"""Actors run on Redis as they do in one process: their code does not know where the other one is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import trunkline as tl
from tests.actors.people import Till
from tests.brokers.redis_buses import bus_at, run
from tests.brokers.redis_servers import KINDS, RedisServer
from trunkline.actors import Actor, ActorSystem

TIMEOUT_S = 60.0


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


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(request.param, tmp_path) as running:
        yield running


def test_an_actor_is_told_and_asked_from_another_process(server: RedisServer) -> None:
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
            # It fails, is supervised, and goes on.
            await far.tell("fail")
            await far.tell("one")
            assert await far.ask("how many?", timeout_s=TIMEOUT_S) == 1

    run(test())


def test_the_state_of_an_actor_outlives_its_process_and_the_server(server: RedisServer) -> None:
    async def live(amount: int) -> object:
        async with (
            bus_at(server, "shop", durable=("_state.>",)) as bus,
            ActorSystem(bus, "shop") as system,
        ):
            till = await system.spawn(Till, name="till")
            return await till.ask(("a", amount), timeout_s=TIMEOUT_S)

    async def test() -> None:
        assert await live(1) == 1
        server.restart()
        assert await live(2) == 3

    run(test())


def test_the_blocking_face(server: RedisServer) -> None:
    settings = tl.EngineSettings(connect_s=TIMEOUT_S, durable=("orders.>",))
    with tl.connect_blocking(server.url, connection=settings) as bus:
        bus.publish("orders.eu", {"id": 1})
        message = bus.last("orders.eu")
        assert message is not None
        assert message.decode() == {"id": 1}
