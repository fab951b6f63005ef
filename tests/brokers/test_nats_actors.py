"""Actors run on NATS as they do in one process: their code does not know where the other one is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
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


def test_an_actor_is_told_and_asked_from_another_process(tmp_path: Path) -> None:
    async def test(server: NatsServer) -> None:
        def how(number: int) -> tl.EngineSettings:
            return tl.EngineSettings(synced=True, connect_s=TIMEOUT_S, max_inbox_bytes=1_000_000 + number)

        async with (
            tl.connect(server.url, name="here", connection=how(0)) as here,
            tl.connect(server.url, name="there", connection=how(1)) as there,
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

    with NatsServer(tmp_path) as server:
        asyncio.run(test(server))
