"""Publishing on channels: messages that break a schema are refused or dead letters; rights, priority and durability."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import trunkline as tl
from tests.hub.hubs import Place, directory_of, received, until
from trunkline import columns
from trunkline.delivery.batch import Batch
from trunkline.errors import HubRefused, NotAllowed, PartlyRefused, SchemaBroken
from trunkline.hub.access import Access
from trunkline.hub.hub import Hub
from trunkline.journal import Journal, JournalBroker, JournalSettings
from trunkline.message import Message
from trunkline.testing import Simulation, world
from trunkline.transports.pair import PairTransport
from trunkline.transports.schemes import TRANSPORTS
from trunkline.transports.transport import Accept, Listener, PeerIdentity, Receiver, Wire
from trunkline.wire import control, frames
from trunkline.wire.control import Qos

DEAD = Qos(invalid="dead_letter")


class Reading(msgspec.Struct):
    sensor: str
    value: float


GOOD = Reading("a", 1.5)
BAD = {"sensor": "a", "value": "high"}


@asynccontextmanager
async def channel(
    simulation: Simulation, qos: Qos | None = None, folder: Path | None = None
) -> AsyncIterator[tuple[Place, tl.Bus, tl.Stream]]:
    """A hub, a bus, and a second subscriber to its channel `readings`."""
    place = Place(world(simulation), folder)
    await place.start()
    async with place.bus("writer") as bus, place.bus("a reader") as reader:
        await directory_of(bus).create_channel("readings", pattern="readings.>", schema=Reading, qos=qos)
        async with reader.subscribe("readings.>") as messages:
            yield place, bus, messages
    await place.stop()


async def test_what_breaks_the_schema_is_refused_before_it_is_sent(simulation: Simulation) -> None:
    async with channel(simulation) as (place, bus, messages):
        for _ in range(2):
            with pytest.raises(SchemaBroken) as refusal:
                await bus.publish("readings.x", BAD)
            assert (refusal.value.channel, refusal.value.field) == ("readings", "$.value")
            assert refusal.value.why == "string instead of number"
        assert place.hub.published == 0
        assert bus.stats().total_refused == 2
        await bus.publish("readings.x", GOOD)
        assert await received(messages) == {"sensor": "a", "value": 1.5}
        await bus.publish("elsewhere", BAD)


async def test_of_a_batch_what_fits_is_published(simulation: Simulation) -> None:
    async with channel(simulation) as (_, bus, messages):
        payloads = [Reading("a", n) if n % 3 else {"value": n} for n in range(8)]
        with pytest.raises(PartlyRefused) as refusal:
            await bus.publish_many("readings.x", payloads)
        assert len(refusal.value.refused) == 3
        assert {str(error) for _, error in refusal.value.refused} == {
            "the payload does not match the schema of readings: a required field is missing at $.sensor"
        }
        assert [(await received(messages))["value"] for _ in range(5)] == [1, 2, 4, 5, 7]
        with pytest.raises(PartlyRefused):
            await bus.publish_many("readings.x", [BAD, BAD])


async def test_a_part_of_a_large_batch_that_is_refused_whole_does_not_stop_the_others(simulation: Simulation) -> None:
    async with channel(simulation) as (_, bus, messages):
        large = "x" * 900_000
        payloads = [Reading(large, 1), {"value": large}, {"value": large}, Reading(large, 2)]
        with pytest.raises(PartlyRefused) as refusal:
            await bus.publish_many("readings.x", payloads)
        assert len(refusal.value.refused) == 2
        assert [(await received(messages))["value"] for _ in range(2)] == [1, 2]


async def pour(bus: tl.Bus, payloads: list[Any]) -> None:
    async with bus.pipeline() as pipe:
        for payload in payloads:
            await pipe.publish("readings.x", payload)


async def test_the_hub_looks_as_well_and_everybody_counts_right(simulation: Simulation) -> None:
    """A pipeline does not check the schema itself: the hub reports which messages do not match."""
    async with channel(simulation) as (place, bus, messages):
        await bus.publish("readings.x", Reading("first", 0))
        with pytest.raises(PartlyRefused) as refusal:
            await pour(bus, [Reading("a", n) if n % 3 else BAD for n in range(9)])
        assert [type(error) for _, error in refusal.value.refused] == [SchemaBroken] * 3
        await bus.publish("readings.x", Reading("last", 9))
        got = [await messages.recv() for _ in range(8)]
        seqs = {message.id: message.seq for message in got if message is not None}
        assert list(seqs.values()) == sorted(seqs.values())
        mine = {message.id: message.seq for message in bus.history()}
        assert {id: mine[id] for id in seqs} == seqs, "publisher and subscriber have the same numbers"
        assert place.hub.counts["invalid"] == 3
        assert messages.inbox.account().dropped == 0, "nobody misses what was refused"


async def test_or_it_becomes_a_dead_letter(simulation: Simulation) -> None:
    async with channel(simulation, DEAD) as (place, bus, messages):
        await bus.publish("readings.x", Reading("a", 0))
        await bus.publish_many("readings.x", [Reading("a", 1), BAD, Reading("a", 2)])
        await bus.publish("readings.x", BAD)
        await bus.publish("readings.x", Reading("a", 3))
        await bus.flush()
        assert [(await received(messages))["value"] for _ in range(4)] == [0, 1, 2, 3]
        assert messages.inbox.account().dropped == 0
        letters = list(place.hub.broker.served.dead_letters)
        assert [(each.subscriber, each.cause, each.message.decode()) for each in letters] == [
            ("channel readings", tl.Cause.INVALID_PAYLOAD, BAD)
        ] * 2
        assert letters[0].reason.endswith("string instead of number at $.value")
        mine = {message.id: message.seq for message in bus.history()}
        assert [mine[each.message.id] for each in letters] == [each.message.seq for each in letters]
        assert bus.stats().total_refused == 0


async def test_dead_letters_of_a_channel_are_in_the_journal(simulation: Simulation) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with channel(simulation, DEAD, Path(folder)) as (_, bus, messages):
            await bus.publish_many("readings.x", [BAD, GOOD])
            assert (await received(messages))["value"] == 1.5
        place = Place(world(simulation), Path(folder))
        await place.start()
        (letter,) = place.hub.broker.served.dead_letters
        assert letter.subscriber == "channel readings"
        await place.stop()


async def test_on_a_stored_topic_only_what_fits_is_stored(simulation: Simulation) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with channel(simulation, Qos(durable=True), Path(folder)) as (place, bus, messages):
            await bus.publish("readings.x", Reading("first", 0))
            with pytest.raises(PartlyRefused):
                await pour(bus, [Reading("a", n) if n % 2 else BAD for n in range(6)])
            got = [await messages.recv() for _ in range(4)]
            mine = {message.id: message.seq for message in bus.history()}
            for message in got:
                assert message is not None
                assert mine[message.id] == message.seq
                assert place.hub.store is not None
                stored = place.hub.store.find(message.id)
                assert stored is not None
                assert stored.seq == message.seq


async def test_publishers_learn_of_a_channel_while_they_publish(simulation: Simulation) -> None:
    async with channel(simulation) as (place, bus, _):
        await bus.publish("other.x", BAD)
        await bus.flush()
        async with place.bus("owner") as owner:
            await directory_of(owner).create_channel("other", pattern="other.*", schema=Reading)
            lane = bus.broker.lanes["other.x"]
            await until(lambda: not lane.immediate, "it is told")
            with pytest.raises(SchemaBroken):
                await bus.publish("other.x", BAD)
            await directory_of(owner).destroy_channel("other")
            await until(lambda: lane.immediate, "it is told")
            await bus.publish("other.x", BAD)


async def test_the_schema_of_a_producer_binds_while_it_produces(simulation: Simulation) -> None:
    place = Place(world(simulation))
    await place.start()
    async with place.bus("sensor") as sensor, place.bus("stranger") as stranger:
        await directory_of(sensor).register_producer("data", schema=Reading)
        with pytest.raises(SchemaBroken):
            await stranger.publish("data", BAD)
        await directory_of(sensor).unregister_producer("data")
        await stranger.flush()
        await stranger.publish("data", BAD)
    await place.stop()


async def test_the_priority_of_a_channel_is_for_what_has_none(simulation: Simulation) -> None:
    async with channel(simulation, Qos(priority=80)) as (place, _, _):
        message = Message(topic="readings.x", payload=GOOD)
        body = columns.encode([message], [0])
        for topic, priority, wanted in (("readings.x", 50, 80), ("readings.x", 20, 20), ("other", 50, 50)):
            batch = place.hub.directory.check(Batch(None, frames.PublishHead(1, topic, 1, priority), body))
            assert batch is not None
            assert batch.rank == wanted
        hostile = Batch(None, frames.PublishHead(1, "readings.x", 1), b"\x00")
        assert place.hub.directory.check(hostile) is None
        assert [failure.code for failure in hostile.failures] == ["malformed"]


async def test_durable_needs_a_journal_that_keeps_it(simulation: Simulation) -> None:
    async with channel(simulation) as (_, bus, _):
        with pytest.raises(HubRefused, match="keeps no journal") as refusal:
            await directory_of(bus).create_channel("kept", qos=Qos(durable=True))
        assert refusal.value.code == "not_durable"
    with tempfile.TemporaryDirectory() as folder:
        settings = JournalSettings(durable=("kept.>",))
        journal = Journal(folder, settings, world=world(simulation), threaded=False)
        async with Hub(JournalBroker(journal, owns_journal=True)) as hub:
            address = await hub.listen("pair:durable")
            async with tl.connect(address, world=world(simulation)) as bus:
                assert await directory_of(bus).create_channel("kept", pattern="kept.a.*", qos=Qos(durable=True))
                with pytest.raises(HubRefused, match=r"does not keep other: its durable topics are kept\.>"):
                    await directory_of(bus).create_channel("other", qos=Qos(durable=True))


@pytest.mark.parametrize(
    "qos", [Qos(priority=101), Qos(overflow="burst"), Qos(invalid="ignore"), Qos(max_bytes=0), Qos(max_age_s=-1.0)]
)
async def test_a_quality_of_service_must_make_sense(simulation: Simulation, qos: Qos) -> None:
    async with channel(simulation) as (_, bus, _):
        with pytest.raises(HubRefused) as refusal:
            await directory_of(bus).create_channel("x", qos=qos)
        assert refusal.value.code == "malformed"


async def test_a_channel_needs_a_schema_that_is_there(simulation: Simulation) -> None:
    async with channel(simulation) as (_, bus, _):
        connection = bus.broker.connection  # type: ignore[attr-defined]
        with pytest.raises(HubRefused) as refusal:
            await connection.ask(lambda number: control.ChannelCreate(id=number, channel="x", schema_hash="abc"))
        assert refusal.value.code == "unknown_schema"


# Rights


class Named(PairTransport):
    """The identity of a client comes from the scheme of its transport."""

    async def listen(self, url: str, accept: Accept, *, max_frame_bytes: int) -> Listener:
        def named(wire: Wire) -> Receiver:
            wire.peer = PeerIdentity(url.partition(":")[0], url)
            return accept(wire)

        return await super().listen(url, named, max_frame_bytes=max_frame_bytes)


RULES: list[dict[str, Any]] = [
    {"who": "owner", "may": ["publish", "subscribe", "create"], "on": ["data.>"]},
    {"who": "writer", "may": ["publish"], "on": ["data.>"]},
    {"who": "reader", "may": ["subscribe"], "on": ["data.>"]},
    {"who": "admin", "may": ["administer"]},
    {"who": "guest", "may": ["publish", "subscribe", "create"], "on": ["guests.>"]},
]
NAMES = [rule["who"] for rule in RULES]


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setitem(TRANSPORTS, name, lambda keys, exposed: Named())


async def refused(attempt: Any) -> str:
    with pytest.raises(HubRefused) as refusal:
        await attempt
    return refusal.value.code


@pytest.mark.usefixtures("named")
async def test_rights(simulation: Simulation) -> None:
    async with Hub(access=Access.load(RULES), world=world(simulation)) as hub:
        buses = {name: tl.connect(await hub.listen(f"{name}:hub"), world=world(simulation)) for name in NAMES}
        for bus in buses.values():
            await bus.__aenter__()
        owner, writer, reader, admin, guest = (directory_of(bus) for bus in buses.values())
        # The right to publish allows producing, but not creating a channel; the right to subscribe allows consuming.
        assert await refused(writer.register_producer("data.x")) == "forbidden"
        assert await refused(writer.put_schema("data.x", Reading)) == "forbidden"
        assert await reader.register_consumer("data.x", "r")
        assert await refused(writer.register_producer("data.x")) == "forbidden"
        assert await owner.create_channel("data.x", schema=Reading)
        assert await refused(owner.create_channel("data.y", pattern="guests.x")) == "forbidden"
        assert await writer.register_producer("data.x", schema=Reading), "the schema is there already"
        assert await refused(reader.register_producer("data.x")) == "forbidden"
        assert await refused(writer.register_consumer("data.x", "w")) == "forbidden"
        # Only clients that may use it see it.
        assert await refused(guest.discover_producer("data.x")) == "forbidden"
        assert await refused(guest.describe("data.x")) == "forbidden"
        assert await guest.channels() == []
        assert [each.channel for each in await reader.channels() or []] == ["data.x"]
        found = await admin.describe("data.x")
        assert found is not None
        assert (found.owner, [each.identity for each in found.producers]) == ("owner", ["writer"])
        # Only its owner, or an administrator, ends it.
        assert await refused(writer.destroy_channel("data.x")) == "not_owner"
        assert await admin.destroy_channel("data.x")
        with pytest.raises(NotAllowed):
            await buses["guest"].publish("data.x", BAD)
        for bus in buses.values():
            await bus.__aexit__(None, None, None)
