"""The recording broker, for tests of code that publishes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.hubs import Place
from trunkline.brokers.forwarding import ForwardingBroker
from trunkline.journal import Journal, JournalBroker
from trunkline.testing import RecordingBroker, Simulation, simulate, world
from trunkline.testing.trial import Trial, text, tried


@asynccontextmanager
async def recording(simulation: Simulation) -> AsyncIterator[tuple[RecordingBroker, Trial]]:
    broker = RecordingBroker(tl.MemoryBroker(world(simulation)))
    async with tried(broker) as trial:
        yield broker, trial


async def test_keeps_what_was_published_in_order_though_nobody_listens(simulation: Simulation) -> None:
    async with recording(simulation) as (broker, trial):
        await trial.publish("a", "1")
        await trial.publish("b", "2", "3")
        assert [(message.topic, text(message)) for message in broker.published] == [("a", "1"), ("b", "2"), ("b", "3")]


async def test_finds_by_pattern(simulation: Simulation) -> None:
    async with recording(simulation) as (broker, trial):
        for topic in ("orders.eu", "orders.us", "invoices.eu", "orders.eu.late"):
            await trial.publish(topic, topic)
        assert [message.topic for message in broker.published_to("orders.*")] == ["orders.eu", "orders.us"]
        assert [message.topic for message in broker.published_to("*.eu")] == ["orders.eu", "invoices.eu"]
        assert len(broker.published_to(">")) == 4
        assert broker.published_to("nothing") == []


async def test_is_as_able_as_what_is_under_it(simulation: Simulation) -> None:
    async with recording(simulation) as (broker, trial):
        inner = broker.inner
        assert broker.features == inner.features
        assert (broker.world, broker.settings, broker.served) == (inner.world, inner.settings, inner.served)
        stream = await trial.open("t")
        await trial.publish("t", "1")
        await trial.takes(stream, "1")
        assert broker.has_subscribers("t")
        assert broker.subscribers("t") == inner.subscribers("t") == [stream.name]
        assert broker.published_by_topic() == {"t": 1}
        await broker.aclose()
        await trial.is_over(stream)


async def test_a_bus_on_it_records_everything_it_publishes(simulation: Simulation) -> None:
    async with recording(simulation) as (broker, _):
        async with tl.connect(broker, name="shop") as bus:
            for number in range(3):
                await bus.publish("orders.placed", {"number": number})
            await bus.publish_many("orders.placed", [{"number": 3}, {"number": 4}])
            await bus.send("agent", "start")
        assert [message.decode()["number"] for message in broker.published_to("orders.>")] == [0, 1, 2, 3, 4]
        (direct,) = broker.published_to(tl.endpoint("agent"))
        assert (direct.sender, direct.recipient, direct.decode()) == ("shop", "agent", "start")


async def test_what_was_refused_was_tried(simulation: Simulation) -> None:
    """It is recorded as published, because the test of a publisher needs it."""
    async with recording(simulation) as (broker, trial):
        await trial.open("t", tl.Delivery(capacity=1, overflow=tl.Overflow.REJECT))
        await trial.publish("t", "1")
        with pytest.raises(tl.InboxFull):
            await trial.publish("t", "2")
        assert [text(message) for message in broker.published] == ["1", "2"]


@pytest.mark.parametrize("below", ["memory", "journal", "hub"])
def test_it_sees_everything_whatever_is_below(tmp_path: Path, below: str) -> None:
    """On a journal or a hub, single plain publishes take a shortcut. They were not recorded once."""

    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        if below == "hub":
            await place.start()
            inner: tl.Broker = tl.HubBroker(place.address, world(simulation))
        elif below == "journal":
            journal = Journal(tmp_path / "journal", world=world(simulation), threaded=False)
            inner = JournalBroker(journal, owns_journal=True)
        else:
            inner = tl.MemoryBroker(world(simulation))
        broker = RecordingBroker(inner)
        async with tl.connect(broker, name="shop") as bus, bus.subscribe("t.>") as messages:
            await bus.publish("t.plain", 1)
            await bus.publish("t.plain", 2)
            await bus.publish("t.urgent", 3, priority=75)
            await bus.publish_many("t.many", [4, 5])
            async with bus.pipeline() as pipeline:
                for number in range(6, 9):
                    await pipeline.publish("t.pipeline", number)
            assert sorted(message.decode() for message in broker.published_to("t.>")) == list(range(1, 9))
            got = [await messages.recv() for _ in range(8)]
            assert sorted(message.decode() for message in got if message is not None) == list(range(1, 9))
        await broker.aclose()
        if below == "hub":
            await place.stop()

    simulate(play)


def test_it_forwards_whatever_a_broker_does() -> None:
    """Each method that it inherits from Broker concerns itself, or uses the broker below."""
    does = {name for name, value in vars(tl.Broker).items() if callable(value) and not name.startswith("_")}
    own = {name for name in vars(ForwardingBroker) if not name.startswith("_")}
    rest = {"check_open", "check_written", "require", "require_store", "require_directory", "explain", "recent"}
    assert does - own == rest
