"""A cluster of three NATS servers: nothing acknowledged is lost when the leader of the stream is killed."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.ports import free_port

DEADLINE_S = 120.0


@pytest.mark.long
def test_a_change_of_leader_loses_nothing(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    servers = [
        NatsServer(
            tmp_path / str(number),
            extra=f'server_name: "n{number}"\n'
            f'cluster {{ name: "c", listen: "127.0.0.1:{port}", routes: [{routes}], no_advertise: true }}',
        )
        for number, port in enumerate(ports)
    ]

    async def test() -> None:
        url = "nats://" + ",".join(server.url.removeprefix("nats://") for server in servers)
        how = tl.EngineSettings(
            durable=("orders.>",), replicas=3, synced=True, connect_s=DEADLINE_S, lease_s=5.0, max_backoff_s=0.5
        )
        handled: set[int] = set()
        confirmed: set[int] = set()

        async def until(more: int) -> None:
            reached = len(confirmed)
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            while len(confirmed) < reached + more:
                assert asyncio.get_running_loop().time() < deadline, "publishing did not go on"
                await asyncio.sleep(0.05)

        async with asyncio.timeout(4 * DEADLINE_S), tl.connect(url, connection=how) as bus:

            @bus.on("orders.*", group="g", durable=True)
            async def take(number: int) -> None:
                handled.add(number)

            await bus.flush()
            stop = asyncio.Event()

            async def publish() -> None:
                number = 0
                while not stop.is_set():
                    number += 1
                    await bus.publish("orders.placed", number)
                    confirmed.add(number)

            publishing = asyncio.create_task(publish())
            await until(100)
            found = await bus.broker.adapter.driver.store_at.js.stream("tl-messages")  # type: ignore[attr-defined]
            leader = servers[int(found["cluster"]["leader"].removeprefix("n"))]
            leader.process.kill()
            await until(100)
            leader.process.start()
            await until(100)
            stop.set()
            # It raised nothing: an await took longer, that is all.
            await publishing
            deadline = asyncio.get_running_loop().time() + DEADLINE_S
            while not confirmed <= handled:
                assert asyncio.get_running_loop().time() < deadline, f"{len(confirmed - handled)} were not handled"
                await asyncio.sleep(0.1)

    with ExitStack() as running:
        for server in servers:
            server.process.begin()
            running.callback(server.process.kill)
        for server in servers:
            server.process.wait()
        asyncio.run(test())
