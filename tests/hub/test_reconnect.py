"""Connections and hubs that go away and return: which subscriptions resume, and what is counted as lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.hubs import Place, connection_of, received, until
from trunkline.testing import Simulation, simulate, world


def test_subscriptions_are_taken_up_again() -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with (
            place.bus("publisher") as publisher,
            place.bus("subscriber") as subscriber,
            subscriber.subscribe("t.*") as messages,
        ):
            await publisher.publish("t.a", "before")
            assert await received(messages) == "before"
            await place.stop()
            await place.start()
            await place.back(subscriber, publisher)
            await publisher.publish("t.a", "after")
            assert await received(messages) == "after"
        await place.stop()

    simulate(play)


def test_requests_work_again() -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with place.bus("asker") as asker, place.bus("responder") as responder:

            @responder.on("double")
            async def double(number: int) -> int:
                return 2 * number

            await responder.flush()
            assert await asker.request("double", 2) == 4
            await place.stop()
            await place.start()
            await place.back(responder, asker)
            assert await asker.request("double", 3) == 6
        await place.stop()

    simulate(play)


def test_what_was_published_meanwhile_waits_and_is_sent() -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with (
            place.bus("publisher", backoff_s=1.0) as publisher,
            place.bus("subscriber") as subscriber,
            subscriber.subscribe("t") as messages,
        ):
            await publisher.publish("t", 0)
            await publisher.flush()
            place.cut("publisher")
            await until(lambda: not connection_of(publisher).live, "it knows that it is alone")
            for number in range(1, 100):
                await publisher.publish("t", number)
            assert messages.account().accepted == 1
            await until(lambda: messages.account().accepted == 100, "all have arrived")
            assert [await received(messages) for _ in range(100)] == list(range(100))
            assert messages.account().dropped == 0
        await place.stop()

    simulate(play)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_lost_is_counted_on_both_ends(seed: int) -> None:
    """Connections end at any moment, without a goodbye: received and missed messages add up to all published ones."""

    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with (
            place.bus("publisher") as publisher,
            place.bus("subscriber") as subscriber,
            subscriber.subscribe("t") as messages,
        ):
            got: list[int] = []

            async def take() -> None:
                async for message in messages:
                    got.append(message.decode())

            taking = asyncio.ensure_future(take())
            # Only a subscriber that knows a publisher can count what it misses.
            await publisher.publish("t", 0)
            await until(lambda: got == [0], "the first has arrived")
            number = 1
            for _ in range(10):
                for _ in range(simulation.random.randrange(200)):
                    await publisher.publish("t", number)
                    number += 1
                    if simulation.random.random() < 0.2:
                        await asyncio.sleep(0)
                if simulation.random.random() < 0.5:
                    place.cut()
                else:
                    await place.stop()
                    await place.start()
                await asyncio.sleep(simulation.random.random() * 0.1)
            await asyncio.sleep(1)
            await place.back(subscriber, publisher)
            await publisher.publish("t", number)
            await until(lambda: bool(got) and got[-1] == number, "the last has arrived")
            account = messages.account()
            assert account.balanced
            assert len(got) + account.dropped == number + 1, "every message arrived, or is counted as missed"
            assert got == sorted(set(got)), "none twice, none out of order"
            missing = sorted(set(range(number + 1)) - set(got))
            unconfirmed = publisher.stats().total_refused
            assert bool(missing) <= bool(unconfirmed or account.dropped)
            taking.cancel()
        await place.stop()

    simulate(play, seed=seed)


@pytest.mark.parametrize("seed", range(10))
def test_a_durable_subscription_goes_on_where_it_was(seed: int, tmp_path: Path) -> None:
    """After any disconnections and restarts: acknowledged messages arrive, once, in order."""

    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path)
        await place.start()
        acknowledged: list[int] = []
        handled: list[int] = []
        async with place.bus("publisher") as publisher, place.bus("subscriber") as subscriber:

            @subscriber.on("t", name="billing", durable=True)
            async def billing(number: int) -> None:
                await asyncio.sleep(simulation.random.random() * 0.002)
                handled.append(number)

            await subscriber.flush()

            async def publish() -> None:
                for number in range(200):
                    try:
                        await publisher.publish("t", number)
                    except tl.NotConfirmed:
                        continue
                    acknowledged.append(number)

            publishing = asyncio.ensure_future(publish())
            for _ in range(6):
                await asyncio.sleep(simulation.random.random() * 0.2)
                if simulation.random.random() < 0.5:
                    place.cut()
                else:
                    await place.stop()
                    await place.start()
            await publishing
            await until(lambda: set(handled) >= set(acknowledged), "everything acknowledged was handled")
            assert len(acknowledged) == 200, "a durable batch is sent again, and its publisher waits"
            assert sorted(handled) == sorted(set(handled)), "and nothing was handled twice"
        await place.stop()

    simulate(play, seed=seed)
