"""A message fails while its server is down: the dead letter is stored when the server is back, on every engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.brokers.redis_servers import RedisServer

DEADLINE_S = 120.0
pytestmark = pytest.mark.slow


def server_of(kind: str, folder: Path) -> NatsServer | RedisServer:
    return NatsServer(folder) if kind == "nats" else RedisServer(kind, folder)


@pytest.mark.parametrize("kind", ["nats", "redis"])
def test_a_letter_waits_for_its_server(kind: str, tmp_path: Path) -> None:
    async def main(server: NatsServer | RedisServer) -> None:
        taken, gone, died = asyncio.Event(), asyncio.Event(), asyncio.Event()
        async with asyncio.timeout(DEADLINE_S), tl.connect(f"{server.url}?durable=orders", name="one") as bus:

            @bus.on("orders", group="bill", durable=True, retry=tl.Retry(attempts=1))
            async def bill(number: int) -> None:
                taken.set()
                await gone.wait()
                raise ValueError(f"bad {number}")

            bus.on_handled(lambda message, well: None if well else died.set())
            await bus.publish("orders", 7)
            await taken.wait()
            server.process.kill()
            gone.set()
            await died.wait()
            server.process.start()
            assert bus.broker.store is not None
            letters: list[tl.DeadLetter] = []
            while not letters:
                await asyncio.sleep(0.05)
                letters, _ = await bus.broker.store.recall_dead_letters()
            assert [letter.reason for letter in letters] == ["ValueError: bad 7"]

    with server_of(kind, tmp_path) as server:
        asyncio.run(main(server))
