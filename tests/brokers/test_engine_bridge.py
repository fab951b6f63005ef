"""Two hubs that are bridged to one NATS or Redis server behave as one bus."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers.bridged import behave_as_one_bus
from tests.brokers.engine_servers import NatsServer
from tests.brokers.redis_servers import RedisServer
from trunkline import MemoryBroker
from trunkline.bridge import Bridge
from trunkline.hub.hub import Hub

TIMEOUT_S = 60.0


@pytest.mark.parametrize("kind", ["nats", "redis"])
def test_two_hubs_through_one_server_are_one_bus(kind: str, tmp_path: Path) -> None:
    async def test(server: NatsServer | RedisServer) -> None:
        async with asyncio.timeout(2 * TIMEOUT_S), AsyncExitStack() as stack:
            clients: list[tl.Bus] = []
            bridges: list[Bridge] = []
            for number in range(2):
                hub = await stack.enter_async_context(Hub(MemoryBroker()))
                address = await hub.listen(f"unix://{tmp_path}/hub{number}.sock")
                clients.append(await stack.enter_async_context(tl.connect(address, name=f"client{number}")))
                inside = await stack.enter_async_context(tl.connect(address, name=f"bridge{number}"))
                how = tl.EngineSettings(synced=True, connect_s=TIMEOUT_S, max_inbox_bytes=1_000_000 + number)
                engine = await stack.enter_async_context(tl.connect(server.url, connection=how))
                bridge = Bridge(inside, engine, ["orders.>", "double", "fails"])
                bridges.append(await stack.enter_async_context(bridge))
            one, other = clients
            await behave_as_one_bus(one, other)
            assert sum(bridge.failed for bridge in bridges) == 0

    made = NatsServer(tmp_path / "nats") if kind == "nats" else RedisServer("redis", tmp_path / "redis")
    with made as server:
        asyncio.run(test(server))
