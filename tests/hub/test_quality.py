"""The quality of service of a channel: its effect on consumers, and how long its messages are kept."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.hubs import Place, directory_of, received, until
from trunkline.errors import HubRefused, HubUnavailable, SchemaBroken, Unsupported, UsageError
from trunkline.journal import JournalBroker
from trunkline.testing import Simulation, world
from trunkline.wire.control import Qos


@asynccontextmanager
async def shop(
    simulation: Simulation, qos: Qos, folder: Path | None = None
) -> AsyncIterator[tuple[Place, tl.Bus, tl.Bus, tl.Bus]]:
    """A hub with the channel `orders`, which the first bus owns."""
    place = Place(world(simulation), folder)
    await place.start()
    async with place.bus("shop") as maker, place.bus("first one") as one, place.bus("the second") as two:
        assert await directory_of(maker).create_channel("orders", pattern="orders.>", qos=qos)
        yield place, maker, one, two
    await place.stop()


async def test_consumers_of_a_channel_with_a_group_share_its_messages(simulation: Simulation) -> None:
    async with (
        shop(simulation, Qos(group="billing")) as (_, maker, one, two),
        one.consume("orders", "one") as first,
        two.consume("orders", "two") as second,
    ):
        found = await directory_of(maker).discover_consumers("orders")
        assert found is not None
        assert sorted(each.name for each in found) == ["one", "two"]
        for number in range(10):
            await maker.publish("orders.new", number)
        seen = []
        for stream in (first, second):
            for _ in range(5):
                message = await stream.recv()
                assert message is not None
                seen.append(message.decode())
                stream.ack(message)
        assert sorted(seen) == list(range(10))


async def test_who_asks_for_something_else_gets_it(simulation: Simulation) -> None:
    async with (
        shop(simulation, Qos(group="billing")) as (_, maker, one, two),
        one.consume("orders", "one") as first,
        two.consume("orders", "watcher", group=None) as watcher,
    ):
        for number in range(3):
            await maker.publish("orders.new", number)
        assert [await received(watcher) for _ in range(3)] == [0, 1, 2]
        assert [await received(first) for _ in range(3)] == [0, 1, 2]


async def test_the_policy_of_a_channel_is_that_of_its_consumers(simulation: Simulation) -> None:
    async with (
        shop(simulation, Qos(overflow="drop_oldest")) as (_, maker, one, _),
        one.consume("orders", "one", capacity=3) as messages,
    ):
        for number in range(10):
            await maker.publish("orders.new", number)
        await maker.flush()
        await until(lambda: one.accounts()["one"].dropped == 7, "seven are dropped")
        assert [await received(messages) for _ in range(3)] == [7, 8, 9]


async def test_a_consumer_of_a_durable_channel_goes_on_where_it_was(simulation: Simulation) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with shop(simulation, Qos(durable=True), Path(folder)) as (_, maker, one, two):
            async with one.consume("orders", "billing") as messages:
                await maker.publish("orders.new", 1)
                message = await messages.recv()
                assert message is not None
                messages.ack(message)
            await maker.publish("orders.new", 2)
            async with two.consume("orders", "billing") as messages:
                assert await received(messages) == 2


async def test_consuming_needs_a_hub_a_fitting_schema_and_a_broker_with_channels(simulation: Simulation) -> None:
    async with shop(simulation, Qos()) as (place, maker, one, two):
        await directory_of(maker).register_producer("typed", schema=int)
        with pytest.raises(HubRefused, match="schemas differ"):
            async with two.consume("typed", "strange", schema=str):
                pass
        async with one.consume("typed", "fitting", schema=int):
            pass
        assert await directory_of(maker).discover_consumers("typed") == []
        await place.stop()
        with pytest.raises(HubUnavailable):
            async with one.consume("orders", "late"):
                pass
        await place.start()
    async with tl.connect("memory:", world=world(simulation)) as bus:
        with pytest.raises(Unsupported, match="channels"):
            async with bus.consume("orders", "one"):
                pass


async def test_who_produces_is_in_the_directory_and_publishes_on_the_topics_of_the_channel(
    simulation: Simulation,
) -> None:
    async with shop(simulation, Qos()) as (_, maker, one, _), one.subscribe(">") as messages:
        async with (
            maker.produce("orders", "shop-1", metadata={"floor": 2}) as orders,
            maker.produce("typed", "shop-2", schema=int) as typed,
        ):
            found = await directory_of(one).describe("orders")
            assert found is not None
            assert [peer.metadata for peer in found.producers] == [{"floor": 2, "producer_id": "shop-1"}]
            await orders.publish(1, topic="orders.new", priority=75)
            with pytest.raises(UsageError, match="name one"):
                await orders.publish(2)
            with pytest.raises(UsageError, match="does not match the channel's topics"):
                await orders.publish(2, topic="other")
            await typed.publish(3)
            with pytest.raises(SchemaBroken):
                await typed.publish("three")
        got = [await messages.recv() for _ in range(2)]
        assert [(each.topic, each.decode(), each.priority) for each in got if each is not None] == [
            ("orders.new", 1, 75),
            ("typed", 3, 50),
        ]
        found = await directory_of(one).describe("orders")
        assert found is not None
        assert found.producers == []


async def test_producing_needs_a_hub_and_a_broker_with_channels(simulation: Simulation) -> None:
    async with shop(simulation, Qos()) as (place, maker, _, _):
        await place.stop()
        with pytest.raises(HubUnavailable):
            async with maker.produce("orders", "late"):
                pass
        await place.start()
    async with tl.connect("memory:", world=world(simulation)) as bus:
        with pytest.raises(Unsupported, match="channels"):
            async with bus.produce("orders", "one"):
                pass


async def test_a_channel_says_how_much_of_its_topics_is_kept(simulation: Simulation) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with shop(simulation, Qos(durable=True, max_messages=3), Path(folder)) as (place, maker, one, _):
            await directory_of(one).create_channel("ledger", pattern="orders.ledger", qos=Qos(durable=True))
            for number in range(10):
                await maker.publish("orders.new", number)
                await maker.publish("orders.ledger", number)
            broker = place.hub.broker
            assert isinstance(broker, JournalBroker)

            def kept(topic: str) -> list[int]:
                return [message.decode() for message in broker.journal.reader.messages(topic)]

            broker.journal.tender.retain()
            assert kept("orders.new") == [7, 8, 9]
            assert kept("orders.ledger") == list(range(10))
            # Without the channel the limit no longer applies.
            await directory_of(maker).destroy_channel("orders")
            for number in range(10, 15):
                await maker.publish("orders.new", number)
            broker.journal.tender.retain()
            assert kept("orders.new") == [7, 8, 9, *range(10, 15)]


async def test_what_a_consumer_has_not_read_is_kept_beyond_that(simulation: Simulation) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with shop(simulation, Qos(durable=True, max_age_s=60), Path(folder)) as (place, maker, one, _):
            async with one.consume("orders", "billing"):
                pass
            await maker.publish("orders.new", 1)
            await maker.flush()
            await asyncio.sleep(3600)
            broker = place.hub.broker
            assert isinstance(broker, JournalBroker)
            assert broker.journal.tender.retain() == []
            async with one.consume("orders", "billing") as messages:
                message = await messages.recv()
                assert message is not None
                assert message.decode() == 1
                messages.ack(message)
            await asyncio.sleep(1)
            assert [(each.topic, each.count) for each in broker.journal.tender.retain()] == [("orders.new", 1)]


async def test_retention_needs_a_journal(simulation: Simulation) -> None:
    place = Place(world(simulation))
    await place.start()
    async with place.bus() as bus:
        with pytest.raises(HubRefused, match="keeps no journal"):
            await directory_of(bus).create_channel("orders", qos=Qos(max_age_s=60.0))
        with pytest.raises(HubRefused, match="the name of a group must not be empty"):
            await directory_of(bus).create_channel("orders", qos=Qos(group=""))
    await place.stop()


async def test_a_link_to_an_endpoint_reaches_the_members_of_its_group(simulation: Simulation) -> None:
    place = Place(world(simulation))
    await place.start()
    async with place.bus("shop") as shop, place.bus("depot") as depot:
        inbox = tl.endpoint("depot")
        async with depot.subscribe(inbox, group="packers") as messages:
            assert shop.link("orders.*", "depot")
            await shop.flush()
            await shop.publish("orders.new", 1)
            async with asyncio.timeout(5):
                assert await received(messages) == 1
            assert shop.unlink("orders.*", "depot")
            await shop.flush()
            await shop.publish("orders.new", 2)
            await shop.send("depot", 3)
            assert await received(messages) == 3
    await place.stop()
