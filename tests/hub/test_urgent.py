"""Urgent messages overtake messages that wait for a slow client: few bytes are in transit before them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.hubs import Place, connection_of, until
from trunkline import scheduling
from trunkline.brokers.remote.lane import SOON
from trunkline.brokers.remote.outbox import YIELDS
from trunkline.hub.hub import Hub
from trunkline.hub.session import URGENT_S
from trunkline.testing import Simulation, simulate, world
from trunkline.wire.frames import DeliverHead

BULK = 4000
SIZE = 1000
WINDOW = 10_000
"""An inbox of this size lets publishers run ahead of it."""
URGENT = 100
ON_THE_WAY = {"unix": 512 * 1024, "tcp": 512 * 1024, "zmq+ipc": 1024 * 1024}
"""Bytes. A kernel takes megabytes of a TCP connection, if it is let."""


@pytest.mark.parametrize("scheme", ON_THE_WAY)
def test_an_urgent_message_passes_what_waits_for_its_client(tmp_path: Path, scheme: str) -> None:
    url = "tcp://127.0.0.1:0" if scheme == "tcp" else f"{scheme}://{tmp_path / 'hub'}"

    async def run() -> list[tuple[str, int, int, int]]:
        arrived: list[tuple[str, int, int, int]] = []
        async with Hub() as hub:
            address = await hub.listen(url)
            async with (
                asyncio.timeout(60),
                tl.connect(address, name="giver", connection=tl.ConnectionSettings(connect_s=30.0)) as giver,
                tl.connect(address, name="taker", connection=tl.ConnectionSettings(connect_s=30.1)) as taker,
                taker.subscribe("bulk", capacity=WINDOW),
                taker.subscribe("alarm"),
            ):
                connection = connection_of(taker)
                deliver = connection.protocol.deliver

                def see(head: DeliverHead, body: memoryview) -> None:
                    arrived.append((head.topic, head.priority, head.first, len(body)))
                    deliver(head, body)

                connection.protocol.deliver = see
                assert connection._wire is not None
                connection._wire.pause()
                for number in range(BULK):
                    await giver.publish("bulk", bytes(SIZE))
                    if number % 20 == 0:
                        await giver.flush()
                await giver.publish("bulk", b"!", priority=URGENT)
                await giver.publish("alarm", b"!", priority=URGENT)
                await giver.flush()
                connection._wire.resume()
                await until(lambda: hub.stats()["waiting"] == 0 and len(arrived) > 2, "all of it is on its way")
                await taker.flush()
        return arrived

    arrived = asyncio.run(run())
    places = [place for place, (_, priority, _, _) in enumerate(arrived) if priority == URGENT]
    assert [arrived[place][0] for place in places] == ["bulk", "alarm"]
    for place in places:
        before = sum(size for _, priority, _, size in arrived[:place] if priority != URGENT)
        assert before <= ON_THE_WAY[scheme] < BULK * SIZE // 2
    bulk = [first for topic, priority, first, _ in arrived if priority != URGENT and topic == "bulk"]
    assert bulk == sorted(bulk), "those of one priority stay in order"


def test_who_publishes_much_lets_others_run_while_urgent_messages_come(monkeypatch: pytest.MonkeyPatch) -> None:
    yields: list[int] = []
    monkeypatch.setattr(scheduling, "_yield", lambda: yields.append(1))

    async def main(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with place.bus("flood") as flood, place.bus("alarms") as alarms:

            async def publish() -> int:
                """Many messages, twice, each time until they are confirmed: counts how often other tasks ran."""
                yields.clear()
                for _ in range(2):
                    for _ in range(20):
                        await flood.publish_many("bulk", [b"x"] * SOON)
                    await flood.flush()
                return len(yields)

            await publish()
            assert not await publish(), "nothing is urgent"
            await alarms.publish("alarm", b"", priority=tl.Priority.HIGH)
            await alarms.flush()
            assert await publish() >= 20
            for _ in range(100):
                await flood.publish("bulk", b"x")
                await flood.flush()
            assert len(yields) <= 2 * 20, "not after a lone message"
            await asyncio.sleep(2 * URGENT_S)
            for _ in range(YIELDS // 40 + 1):
                await publish()
            assert not await publish(), "no more"
        await place.stop()

    simulate(main)
