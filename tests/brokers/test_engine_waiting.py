"""A publish that has waited a second for its engine is logged once, with the reason."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.brokers.redis_servers import RedisServer
from tests.brokers.test_engine_letters import server_of
from tests.hub.hubs import until
from tests.stopped import stop_group

DEADLINE_S = 120.0
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("known", [True, False], ids=["known topics", "new topics"])
@pytest.mark.parametrize("kind", ["nats", "redis"])
def test_a_publisher_that_waits_for_the_engine_is_told_once(
    kind: str, known: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if "has waited" in record.getMessage()]

    async def main(server: NatsServer | RedisServer) -> None:
        async with asyncio.timeout(DEADLINE_S), tl.connect(f"{server.url}?durable=orders.>", name="one") as bus:
            for number in range(3 if known else 0):
                await bus.publish(f"orders.{number}", "the topic is known from now on")
            stop_group(server.process.group)
            try:
                waiting = [asyncio.create_task(bus.publish(f"orders.{number}", number)) for number in range(3)]
                await until(lambda: bool(told()), "a warning")
            finally:
                os.killpg(server.process.group, signal.SIGCONT)
            await asyncio.gather(*waiting)

    with server_of(kind, tmp_path) as server:
        asyncio.run(main(server))
        (text,) = told()
        assert text.startswith("a publish on orders.")
        assert f"has waited 1 s because {server.url}" in text
        assert text.endswith(
            ("has not confirmed earlier messages", "has not answered the query about the topic", "is not connected")
        )
