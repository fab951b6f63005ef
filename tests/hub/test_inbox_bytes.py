"""The memory for a slow subscriber of a hub is bounded in bytes, and nothing is lost because of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.hubs import Place, until
from trunkline.testing import Simulation, simulate, world

SIZE = 1_000_000
LIMIT = 8 * SIZE
COUNT = 60


@pytest.mark.parametrize("kind", ["plain", "group", "durable"])
def test_a_slow_subscriber_holds_a_bounded_number_of_bytes(kind: str, tmp_path: Path) -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path if kind == "durable" else None)
        await place.start()
        small = tl.ConnectionSettings(max_inbox_bytes=LIMIT)
        options = {"plain": {}, "group": {"group": "g"}, "durable": {"durable": True, "name": "slow"}}[kind]
        async with (
            place.bus("publisher") as publisher,
            tl.connect(place.address, name="slow", world=place.world, connection=small) as subscriber,
            subscriber.subscribe("t", **options) as messages,  # type: ignore[arg-type]
        ):
            sent = asyncio.ensure_future(publish(publisher))
            largest = 0
            for number in range(COUNT):
                # Slower than anything arrives.
                await asyncio.sleep(0.1)
                largest = max(largest, messages.depth)
                message = await messages.recv()
                assert message is not None
                assert message.payload[:2] == number.to_bytes(2, "big")
                messages.ack(message)
            await sent
            assert 2 < largest <= LIMIT // SIZE + 2
            account = messages.account()
            assert (account.delivered, account.dropped, account.in_flight) == (COUNT, 0, 0)
        await place.stop()

    simulate(play)


async def publish(bus: tl.Bus) -> None:
    for number in range(COUNT):
        await bus.publish("t", number.to_bytes(2, "big") + bytes(SIZE - 2))


@pytest.mark.parametrize("overflow", [tl.Overflow.DROP_OLDEST, tl.Overflow.DROP_NEWEST])
def test_where_messages_are_dropped_no_more_is_held_either(overflow: tl.Overflow) -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        small = tl.ConnectionSettings(max_inbox_bytes=LIMIT)
        async with (
            place.bus("publisher") as publisher,
            tl.connect(place.address, name="slow", world=place.world, connection=small) as subscriber,
            subscriber.subscribe("t", overflow=overflow) as messages,
        ):
            await publish(publisher)
            await publisher.flush()
            assert messages.depth <= LIMIT // SIZE + 2
            taken = []

            async def take() -> None:
                async for message in messages:
                    taken.append(message.payload[:2])

            taking = asyncio.ensure_future(take())
            await until(lambda: len(taken) == COUNT, "what waited at the hub follows")
            assert taken == sorted(taken)
            taking.cancel()
        await place.stop()

    simulate(play)


@pytest.mark.parametrize("group", [None, "g"])
def test_try_recv_alone_is_as_fast_as_recv(group: str | None) -> None:
    """400 messages through an inbox of one: no message waits for a timer."""

    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with (
            place.bus("publisher") as publisher,
            place.bus("subscriber") as subscriber,
            subscriber.subscribe("t", capacity=1, group=group) as messages,
        ):
            publishing = asyncio.ensure_future(flood(publisher))
            loop = asyncio.get_running_loop()
            began, got = loop.time(), 0
            while got < 400:
                try:
                    messages.try_recv()
                    got += 1
                except tl.StreamEmpty:
                    await asyncio.sleep(0.0001)
            assert loop.time() - began < 2.0
            await publishing
        await place.stop()

    simulate(play)


async def flood(bus: tl.Bus) -> None:
    for number in range(400):
        await bus.publish("t", number)
