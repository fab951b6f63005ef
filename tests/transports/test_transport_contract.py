"""A bus on a hub keeps the contract of every broker over every transport: in real time, over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.transports.wires import DEADLINE_S, FILES
from trunkline import Broker, MemoryBroker, World
from trunkline.brokers.hub.broker import HubBroker
from trunkline.brokers.hub.settings import ConnectionSettings
from trunkline.hub.hub import Hub
from trunkline.testing import CONTRACT, Promise


@pytest.mark.parametrize("kind", ["unix", "tcp", "zmq+ipc", "zmq+tcp"])
@pytest.mark.parametrize("promise", CONTRACT, ids=str)
def test_keeps(promise: Promise, kind: str, tmp_path: Path) -> None:
    url = f"{kind}://{tmp_path / 'hub.sock'}" if kind in FILES else f"{kind}://127.0.0.1:0"

    @asynccontextmanager
    async def make() -> AsyncIterator[Broker]:
        world = World()
        async with Hub(MemoryBroker(world)) as hub:
            broker = HubBroker(await hub.listen(url), world, connection=ConnectionSettings(connect_s=DEADLINE_S))
            await broker.connection.ready()
            yield broker
            await broker.aclose()

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await promise(make)

    asyncio.run(main())
