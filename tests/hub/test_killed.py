"""A hub in a process of its own, killed and restarted under load: nothing acknowledged is lost, losses are counted."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.hubs import until
from tests.hub.up import Up, up
from trunkline.journal import Reader

CONNECTION = tl.ConnectionSettings(connect_s=20.0, backoff_s=0.01, max_backoff_s=0.1)


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.long)])
def test_nothing_durable_is_lost(tmp_path: Path, kills: int) -> None:
    """Every publish that returned is in the journal once, and was handled by the durable subscriber."""
    acknowledged: list[int] = []
    handled: list[int] = []

    async def play(hub: Up) -> None:
        chance = random.Random(kills)
        async with (
            tl.connect(hub.address, name="publisher", connection=CONNECTION) as publisher,
            tl.connect(hub.address, name="subscriber") as subscriber,
        ):

            @subscriber.on("orders", name="billing", durable=True)
            async def billing(number: int) -> None:
                handled.append(number)

            await subscriber.flush()
            over = asyncio.Event()

            async def publish(first: int) -> None:
                number = first
                while not over.is_set():
                    await publisher.publish("orders", number)
                    acknowledged.append(number)
                    number += 1

            publishing = [asyncio.ensure_future(publish(worker * 1_000_000)) for worker in range(8)]
            for _ in range(kills):
                before = len(acknowledged)
                await until(lambda before=before: len(acknowledged) > before + 50, "it goes on")  # type: ignore[misc]
                await asyncio.sleep(chance.random() * 0.1)
                hub.kill()
                await asyncio.to_thread(hub.start)
            over.set()
            await asyncio.gather(*publishing)
            await until(lambda: set(handled) >= set(acknowledged), "everything acknowledged was handled")

    with up(tmp_path, durable=True) as hub:
        asyncio.run(play(hub))
        assert hub.end() == 0
        assert "Traceback" not in hub.log()
    with Reader(tmp_path / "journal") as reader:
        stored = [message.decode() for message in reader.messages("orders")]
    assert len(stored) == len(set(stored)), "nothing is in the journal twice"
    assert set(stored) >= set(acknowledged)
    assert sorted(handled) == sorted(set(handled)), "nothing was handled twice by one who lived on"


def test_what_is_lost_on_plain_topics_is_counted(tmp_path: Path) -> None:
    """With the hub killed in between, the subscriber knows exactly how many messages it missed."""
    got: list[int] = []

    async def play(hub: Up) -> None:
        async with (
            tl.connect(hub.address, name="publisher", connection=CONNECTION) as publisher,
            tl.connect(hub.address, name="subscriber", connection=tl.ConnectionSettings(backoff_s=0.02)) as subscriber,
            subscriber.subscribe("t") as messages,
        ):

            async def take() -> None:
                async for message in messages:
                    got.append(message.decode())

            taking = asyncio.ensure_future(take())
            await publisher.publish("t", 0)
            await until(lambda: got == [0], "the first has arrived")
            number = 0
            for _ in range(4):
                for _ in range(20_000):
                    number += 1
                    await publisher.publish("t", number)
                hub.kill()
                await asyncio.to_thread(hub.start)
            await until(lambda: subscriber.broker.has_subscribers("t"), "somebody listens")
            while got[-1] != number:
                number += 1
                await publisher.publish("t", number)
                await asyncio.sleep(0.01)
            taking.cancel()
            account = messages.account()
            assert account.balanced
            assert len(got) + account.dropped == number + 1
            assert got == sorted(set(got))
            if account.dropped:
                # The publisher knows of what the hub had not taken; the rest was in the hub's hands.
                assert publisher.stats().total_refused <= number

    with up(tmp_path) as hub:
        asyncio.run(play(hub))


def test_a_frozen_hub_is_left_and_found_again(tmp_path: Path) -> None:
    """Nothing closes the connection: only missing heartbeats show the failure."""

    async def play(hub: Up) -> None:
        async with tl.connect(hub.address, connection=CONNECTION) as bus, bus.subscribe("t") as messages:
            await bus.publish("t", "before")
            assert (await messages.recv()) is not None
            assert isinstance(bus.broker, tl.HubBroker)
            connection = bus.broker.connection
            hub.freeze()
            await until(lambda: not connection.live, "the silence is noticed")
            hub.thaw()
            await until(lambda: connection.live, "it is back")
            await until(lambda: bus.broker.subscribers("t") == [messages.name], "it listens")
            await bus.flush()
            await bus.publish("t", "after")
            message = await messages.recv()
            assert message is not None
            assert message.decode() == "after"

    with up(tmp_path, heartbeat_s=0.3) as hub:
        asyncio.run(play(hub))
