"""A pipeline through a hub that starts late, restarts, or is slow; in virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.hub.hubs import Place, connection_of, received, until
from trunkline.testing import simulate, world


class Stopped(Exception):
    """The block fails."""


def test_what_was_published_first_without_a_hub_is_sent_again_later(tmp_path: Path) -> None:
    async def act(simulation: Any) -> None:
        place = Place(world(simulation), tmp_path)
        bus = tl.connect(
            place.address, world=place.world, connection=tl.ConnectionSettings(connect_s=0.5, backoff_s=0.05)
        )
        async with bus, bus.pipeline() as pipe:
            with pytest.raises(tl.HubUnavailable):
                await pipe.publish("orders.placed", 0)
            await place.start()
            await place.back(bus)
            await pipe.publish("orders.placed", 1)
            for number in range(2, 5):
                await pipe.publish("orders.placed", number)
            # The hub gets none of them on this connection.
            place.cut()
            await pipe.flush()
            last = await bus.last("orders.placed")
            assert last is not None
            assert last.decode() == 4
            async with bus.subscribe("orders.*", start=1) as stream:
                assert [await received(stream) for _ in range(4)] == [1, 2, 3, 4]
        await place.stop()

    simulate(act)


@pytest.mark.parametrize("stays_away", [False, True])
def test_a_block_that_fails_is_left_at_once(tmp_path: Path, stays_away: bool) -> None:
    """Without a hub, unsent messages are not confirmed. At a hub, waiting messages are withdrawn."""

    async def act(simulation: Any) -> None:
        place = Place(world(simulation), tmp_path if stays_away else None)
        await place.start()
        loop = asyncio.get_running_loop()
        async with place.bus("one") as one, place.bus("another") as another, another.subscribe("t", capacity=1):
            pipe = one.pipeline(100)

            async def block() -> None:
                async with pipe:
                    await pipe.publish("t", 0)
                    if stays_away:
                        await place.stop()
                        await until(lambda: not connection_of(one).live, "the hub is gone")
                    for number in range(50):
                        await pipe.publish("t", number)
                    raise Stopped(loop.time())

            with pytest.raises(Stopped) as stopped:
                await block()
            assert pipe.in_flight == 0
            assert loop.time() - stopped.value.args[0] < 0.5
        if not stays_away:
            await place.stop()

    simulate(act)
