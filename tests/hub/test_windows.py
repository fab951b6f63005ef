"""How far publishers may run ahead of the hub, and what happens at the limit."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.hubs import Place, received, until
from trunkline.hub.settings import HubSettings
from trunkline.testing import Simulation, simulate, world


def test_a_bus_that_feeds_itself_large_messages_does_not_stop() -> None:
    """More is published than the hub accepts, by the client whose report it waits for."""

    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        payload = bytes(1_000_000)
        async with place.bus() as bus, bus.subscribe("t") as messages:
            got = 0

            async def take() -> None:
                nonlocal got
                async for message in messages:
                    got += len(message.payload)

            taking = asyncio.ensure_future(take())
            for _ in range(200):
                await bus.publish("t", payload)
            await until(lambda: got == 200 * len(payload), "all of it has arrived")
            taking.cancel()
        await place.stop()

    simulate(play)


def test_a_publisher_runs_ahead_by_a_window_and_no_further() -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        settings = tl.Settings(backpressure=tl.Backpressure(max_pending=100, timeout_s=1.0))
        async with (
            place.bus("subscriber") as subscriber,
            tl.connect(place.address, settings=settings, world=place.world) as publisher,
            subscriber.subscribe("t", capacity=10_000) as messages,
        ):
            with pytest.raises(tl.BackpressureTimeout):
                await flood(publisher)
            # The inbox, and a window of the publisher's before it.
            assert 10_000 <= publisher.stats().total_messages <= 10_200
            for number in range(10_000):
                assert await received(messages) == number
            await publisher.publish("t", "goes on")
        await place.stop()

    simulate(play)


async def flood(bus: tl.Bus) -> None:
    number = 0
    while True:
        await bus.publish("t", number)
        number += 1


@pytest.mark.parametrize("durable", [False, True])
def test_what_is_larger_than_a_frame_is_cut(durable: bool, tmp_path: Path) -> None:
    """However it is published: at once, by many tasks, in a pipeline. One message must fit into a frame."""

    async def play(simulation: Simulation) -> None:
        settings = HubSettings(max_frame_bytes=4 * 1024 * 1024)
        place = Place(world(simulation), tmp_path if durable else None, settings)
        await place.start()
        payload = bytes(900_000)
        async with place.bus() as bus, bus.subscribe("t") as messages:
            got = 0

            async def take() -> None:
                nonlocal got
                async for _ in messages:
                    got += 1

            taking = asyncio.ensure_future(take())
            await bus.publish_many("t", [payload] * 10)
            await asyncio.gather(*(bus.publish("t", payload) for _ in range(10)))
            async with bus.pipeline(100) as pipe:
                for _ in range(10):
                    await pipe.publish("t", payload)
            await until(lambda: got == 30, "all of it has arrived")
            with pytest.raises(tl.MessageTooLarge):
                await bus.publish("t", bytes(5 * 1024 * 1024))
            taking.cancel()
        await place.stop()

    simulate(play)


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 50])
def test_batches_of_any_size_pass_through_an_inbox_of_any_size(capacity: int) -> None:
    """For any remaining credit: no batch waits for credit that its subscriber has no reason to give."""

    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with (
            place.bus("subscriber") as subscriber,
            place.bus("publisher") as publisher,
            subscriber.subscribe("t", capacity=capacity) as messages,
        ):

            async def publish() -> None:
                for size in range(1, 2 * capacity + 3):
                    await publisher.publish_many("t", [b"x"] * size)

            publishing = asyncio.create_task(publish())
            for _ in range(sum(range(1, 2 * capacity + 3))):
                assert await messages.recv(timeout_s=5) is not None
            await publishing
        await place.stop()

    simulate(play)
