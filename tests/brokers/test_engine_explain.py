"""What `explain` says after a dead letter was replayed, a process was killed, an entry was removed: on every engine."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import trunkline as tl
from tests.brokers import engine_member
from tests.brokers.engine_servers import NatsServer
from tests.brokers.redis_servers import RedisServer
from trunkline.bus.bus import Bus

DEADLINE_S = 60.0
Outcomes = list[tuple[str, tl.Fate]]


@pytest.fixture(scope="module", params=["nats", "redis"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(request.param)
    with NatsServer(folder) if request.param == "nats" else RedisServer("redis", folder) as running:
        yield running.url


@asynccontextmanager
async def bus_at(url: str, settings: str) -> AsyncIterator[Bus]:
    async with (
        asyncio.timeout(DEADLINE_S),
        tl.connect(f"{url}?synced=true&connect_s=60&{settings}", name="one") as bus,
    ):
        yield bus


async def fates(bus: Bus, message_id: str) -> Outcomes:
    return [(each.subscriber, each.fate) for each in (await bus.explain(message_id)).outcomes]


async def becomes(wanted: Outcomes, found: Callable[[], Awaitable[Outcomes]]) -> None:
    while (now := await found()) != wanted:
        assert asyncio.get_running_loop().is_running(), now
        await asyncio.sleep(0.01)


def test_a_dead_letter_that_was_replayed(server: str) -> None:
    """To a later subscriber of the same name: the fate is no longer that of the earlier one."""

    async def test() -> None:
        async with bus_at(server, "namespace=replayed&durable=t") as bus:
            async with bus.subscribe("t", name="d", durable=True) as stream:
                first, second = await bus.publish_many("t", [1, 2])
                for _ in range(2):
                    stream.reject(await take(stream), "never")
            async with bus.subscribe("t", name="d", durable=True) as stream:
                await bus.replay_dead()
                again = {message.id: message for message in [await take(stream), await take(stream)]}
                stream.ack(again[first])
                await becomes([("d", tl.Fate.DELIVERED)], lambda: fates(bus, first))
                assert await fates(bus, second) == [("d", tl.Fate.IN_FLIGHT)]

    asyncio.run(test())


def test_nobody_waits_twice_for_a_process_that_was_killed(server: str, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        settings = "namespace=killed&durable=t&lease_s=600"
        async with bus_at(server, f"{settings}&answer_s=0.5") as bus:
            member = await asyncio.create_subprocess_exec(
                *(sys.executable, Path(engine_member.__file__), f"{server}?synced=true&{settings}", "t", "d", ""),
                stdout=asyncio.subprocess.PIPE,
                cwd=Path(__file__).parents[2],
            )
            assert member.stdout is not None
            assert await member.stdout.readline() == b"ready\n"
            message_id = await bus.publish("t", 1)
            assert await member.stdout.readline() == b"1\n"
            member.kill()
            await member.wait()
            await becomes([("d", tl.Fate.IN_FLIGHT)], lambda: fates(bus, message_id))
            while bus.broker.peers.others:  # type: ignore[attr-defined]
                await fates(bus, message_id)
            caplog.clear()
            assert await fates(bus, message_id) == [("d", tl.Fate.IN_FLIGHT)]
            assert "no answer" not in caplog.text

    asyncio.run(test())


def test_what_was_removed_while_its_subscriber_is_away(server: str) -> None:
    async def test() -> None:
        async with bus_at(server, "namespace=away&durable=t&max_bytes=20000&lease_s=0.5") as bus:
            async with bus.subscribe("t", name="d", durable=True):
                pass
            gone = await bus.publish("t", b"x" * 1000)
            for _ in range(60):
                kept = await bus.publish("t", b"x" * 1000)
            await becomes([("d", tl.Fate.DROPPED)], lambda: fates(bus, gone))
            assert await fates(bus, kept) == [("d", tl.Fate.IN_FLIGHT)]

    asyncio.run(test())


async def take(stream: tl.Stream) -> tl.Message:
    message = await stream.recv(timeout_s=DEADLINE_S)
    assert message is not None
    return message
