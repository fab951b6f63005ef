"""A durable name on NATS has one subscriber at a time, whichever process it is in; a group may have many."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.brokers.holders import holding, said
from tests.brokers.test_nats import buses, run, space


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


@pytest.mark.slow
def test_another_process_is_refused_until_the_first_one_dies(server: NatsServer) -> None:
    async def test() -> None:
        name = space()
        url = f"{server.url}?namespace={name}&synced=true"
        # What is taken over waits for the end of its lease.
        async with buses(server, 1, namespace=name, lease_s=1.0, durable=("t",)) as (bus,):
            with holding(url, name="d") as output:
                assert await said(output, 1) == ["ready"]
                await bus.publish_many("t", [1, 2])
                assert await said(output, 2) == ["1", "2"]
                with pytest.raises(tl.DuplicateName, match="'d' already exists"):
                    await bus.subscribe("t", name="d", durable=True).open()
            async with bus.subscribe("t", name="d", durable=True) as stream:
                got = [message.decode() for _ in range(2) if (message := await stream.recv()) is not None]
                assert got == [1, 2]
                with pytest.raises(tl.DuplicateName):
                    await bus.subscribe("t", name="d", durable=True).open()

    run(test)


def test_whoever_leaves_makes_room_for_the_next(server: NatsServer) -> None:
    async def test() -> None:
        async with buses(server, 2, durable=("t",)) as (one, other):
            async with one.subscribe("t", name="d", durable=True) as stream:
                await one.publish_many("t", [1, 2, 3])
                first = await stream.recv()
                assert first is not None
                assert stream.ack(first)
                with pytest.raises(tl.DuplicateName):
                    await other.subscribe("t", name="d", durable=True).open()
            async with other.subscribe("t", name="d", durable=True) as stream:
                got = [message.decode() for _ in range(2) if (message := await stream.recv()) is not None]
                assert got == [2, 3]

    run(test)


def test_of_many_at_once_one_gets_the_name(server: NatsServer) -> None:
    async def test() -> None:
        async with buses(server, 5, durable=("t",)) as many:
            attempts = [bus.subscribe("t", name="d", durable=True).open() for bus in many]
            found = await asyncio.gather(*attempts, return_exceptions=True)
            opened = [each for each in found if isinstance(each, tl.Stream)]
            refused = [each for each in found if isinstance(each, tl.DuplicateName)]
            assert (len(opened), len(refused)) == (1, 4)
            await many[0].publish("t", 1)
            message = await opened[0].recv()
            assert message is not None
            assert message.decode() == 1

    run(test)


def test_a_group_is_shared(server: NatsServer) -> None:
    async def test() -> None:
        async with (
            buses(server, 2, durable=("t",)) as (one, other),
            one.subscribe("t", group="g", durable=True),
            other.subscribe("t", group="g", durable=True),
        ):
            await one.publish("t", 1)

    run(test)
