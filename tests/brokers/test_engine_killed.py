"""A process is killed with -9 in the middle of a batch: the next one gets only the unacknowledged messages."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.brokers.holders import holding, said
from tests.brokers.redis_servers import KINDS, RedisServer
from tests.hub.hubs import until
from trunkline.brokers.engine.broker import EngineBroker
from trunkline.brokers.engine.notes import table_of
from trunkline.bus.bus import Bus

pytestmark = pytest.mark.slow
DEADLINE_S = 60.0
LEASE_S = 0.5
_namespaces = itertools.count()
two_engines = pytest.mark.parametrize("server", ["nats", "redis"], indirect=True, scope="module")
"""Where Valkey does nothing of its own."""


@pytest.fixture(scope="module", params=["nats", *KINDS])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp(request.param)
    with NatsServer(folder) if request.param == "nats" else RedisServer(request.param, folder) as running:
        yield running.url


@pytest.fixture
def url(server: str) -> str:
    return f"{server}?synced=true&namespace=n{next(_namespaces)}&durable=t"


def connected(url: str) -> Bus:
    return tl.connect(f"{url}&connect_s=60&lease_s={LEASE_S}", name="survivor")


async def notes(bus: Bus, role: str) -> list[tuple[str, bytes]]:
    assert isinstance(bus.broker, EngineBroker)
    page, _ = await bus.broker.adapter.driver.page(table_of(role), "")
    return page


async def becomes(is_so: Callable[[list[tuple[str, bytes]]], bool], bus: Bus, role: str) -> None:
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while not is_so(found := await notes(bus, role)):
        assert asyncio.get_running_loop().time() < deadline, found
        await asyncio.sleep(0.01)


def test_another_member_gets_what_was_not_acknowledged(url: str) -> None:
    async def test() -> None:
        async with asyncio.timeout(DEADLINE_S), connected(url) as bus:
            with holding(url, group="g", lease_s=LEASE_S, acknowledges=7) as output:
                assert await said(output, 1) == ["ready"]
                await bus.publish_many("t", range(20))
                assert (await said(output, 21)).index("flushed") == 7
            got: list[int] = []

            @bus.on("t", group="g", durable=True)
            async def take(number: int) -> None:
                got.append(number)

            await until(lambda: 19 in got, "what the dead one held was taken over")
            assert got == list(range(7, 20))
            await becomes(lambda found: not found, bus, "g")

    asyncio.run(test())


@two_engines
def test_without_a_flush_a_note_is_written_soon(url: str) -> None:
    """Out of order, by a member that then fails. The next one continues where both have ended."""

    async def test() -> None:
        async with asyncio.timeout(DEADLINE_S), connected(url) as bus:
            with holding(url, group="g", lease_s=LEASE_S, acknowledges=3) as output:
                await said(output, 1)
                await bus.publish_many("t", range(10))
                await said(output, 11)
            async with bus.subscribe("t", group="g", durable=True, lease_s=600) as stream:
                messages = [await taken(stream) for _ in range(7)]
                assert [message.decode() for message in messages] == [3, 4, 5, 6, 7, 8, 9]
                before = await notes(bus, "g")
                for index in (1, 5):
                    stream.ack(messages[index])
                await becomes(lambda found: bool(found) and found != before, bus, "g")
            async with bus.subscribe("t", group="g", durable=True) as stream:
                rest = [await taken(stream) for _ in range(5)]
                assert sorted(message.decode() for message in rest) == [3, 5, 6, 7, 9]
                stream.ack_many(rest)
                await bus.flush()
                await becomes(lambda found: not found, bus, "g")
                assert stream.depth == 0

    asyncio.run(test())


@two_engines
def test_a_durable_subscription_goes_on_where_it_was(url: str) -> None:
    async def test() -> None:
        async with asyncio.timeout(DEADLINE_S), connected(url) as bus:
            with holding(url, name="d", lease_s=LEASE_S, acknowledges=4) as output:
                await said(output, 1)
                await bus.publish_many("t", range(8))
                await said(output, 9)
            async with await opened_durable(bus) as stream:
                await bus.publish("t", 8)
                got = [await taken(stream) for _ in range(5)]
                assert sorted(message.decode() for message in got) == [4, 5, 6, 7, 8]
                stream.ack_many(got)
                await becomes(lambda found: not found, bus, "d")

    asyncio.run(test())


def test_a_place_that_was_forgotten_leaves_no_notes(url: str) -> None:
    """The next subscription of that name has its own start."""

    async def test() -> None:
        async with asyncio.timeout(DEADLINE_S), connected(url) as bus:
            with holding(url, name="d", lease_s=LEASE_S, acknowledges=2) as output:
                await said(output, 1)
                await bus.publish_many("t", range(4))
                await said(output, 5)
            assert len(await notes(bus, "d")) == 1
            assert await bus.forget_durable("d")
            async with bus.subscribe("t", name="d", durable=True, start="beginning") as stream:
                assert [(await taken(stream)).decode() for _ in range(4)] == [0, 1, 2, 3]

    asyncio.run(test())


@two_engines
def test_a_batch_that_is_handled_at_once_needs_no_note(url: str) -> None:
    async def test() -> None:
        async with asyncio.timeout(DEADLINE_S), connected(url) as bus:
            kept: list[str] = []
            assert isinstance(bus.broker, EngineBroker)
            driver = bus.broker.adapter.driver
            keep = driver.keep

            async def counted(table: str, key: str, value: bytes) -> None:
                kept.append(table)
                await keep(table, key, value)

            driver.keep = counted  # type: ignore[method-assign]
            done = asyncio.Event()

            @bus.on("t", group="g", durable=True)
            async def take(number: int) -> None:
                if number == 4999:
                    done.set()

            await bus.flush()
            await bus.publish_many("t", range(5000))
            await done.wait()
            await bus.flush()
            # Batches that were being handled when the time for notes came: at most one each tenth of a second.
            assert kept.count(table_of("g")) < 20

    asyncio.run(test())


async def opened_durable(bus: Bus) -> tl.Stream:
    """As soon as the engine has noticed that the previous one was killed."""
    while True:
        try:
            return await bus.subscribe("t", name="d", durable=True).open()
        except tl.DuplicateName:
            await asyncio.sleep(0.01)


async def taken(stream: tl.Stream) -> tl.Message:
    message = await stream.recv(timeout_s=DEADLINE_S)
    assert message is not None
    return message
