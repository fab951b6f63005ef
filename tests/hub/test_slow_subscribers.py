"""A publisher that waits for a subscriber of another client learns its name."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.hubs import Place, received, until
from trunkline.brokers.memory import MemoryBroker
from trunkline.hub.hub import Hub
from trunkline.testing import Simulation, simulate, world


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log of the publisher's side: the hub may log the same for itself."""
    logged = [record for record in caplog.records if record.name == "trunkline.connection"]
    return [record.getMessage() for record in logged if "has waited" in record.getMessage()]


@pytest.mark.parametrize("options", [{"capacity": 2}, {"capacity": 20_000}, {"capacity": 2, "group": "billing"}])
def test_who_is_full_is_said_once(options: tl.DeliveryOptions, caplog: pytest.LogCaptureFixture) -> None:
    """Where each publish waits for its confirmation, where a window is before the inbox, and in a group."""

    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with (
            place.bus("subscriber") as subscriber,
            place.bus("publisher") as publisher,
            subscriber.subscribe("orders.*", name="billing", **options) as messages,
        ):
            sent = 0

            async def flood() -> None:
                nonlocal sent
                while True:
                    await publisher.publish("orders.placed", sent)
                    sent += 1

            flooding = asyncio.create_task(flood())
            await until(lambda: bool(told(caplog)), "the publisher is told")
            (text,) = told(caplog)
            assert all(word in text for word in ("orders.placed", "billing", "capacity"))
            before = sent
            for number in range(10):
                await asyncio.sleep(2)
                assert await received(messages) == number
            assert len(told(caplog)) == 1, "it has not had room since"
            await until(lambda: sent >= before, "the publisher goes on")
            flooding.cancel()
            await asyncio.gather(flooding, return_exceptions=True)
        await place.stop()

    simulate(play)


def test_over_a_socket(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        hub = Hub(MemoryBroker())
        address = await hub.listen(f"unix://{tmp_path}/hub")
        try:
            async with (
                tl.connect(address, name="one", connection=tl.ConnectionSettings(connect_s=31)) as subscriber,
                tl.connect(address, name="two", connection=tl.ConnectionSettings(connect_s=32)) as publisher,
                subscriber.subscribe("t", name="slow", capacity=1) as messages,
            ):
                await publisher.publish("t", 0)
                waiting = asyncio.create_task(publisher.publish("t", 1))
                await until(lambda: bool(told(caplog)), "the publisher is told")
                assert "slow" in told(caplog)[0]
                assert not waiting.done()
                assert await received(messages) == 0
                await waiting
        finally:
            await hub.aclose()

    asyncio.run(main())
