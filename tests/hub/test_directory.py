"""Channels, producers, consumers and schemas: with a hub, without one, and after a reconnection."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import trunkline as tl
from tests.hub import directory_cases
from tests.hub.directory_cases import Reading, Wider
from tests.hub.hubs import Place, connection_of, directory_of, until
from trunkline.errors import HubRefused, HubUnavailable
from trunkline.hub.settings import HubSettings
from trunkline.schema import hash_of
from trunkline.testing import Simulation, world
from trunkline.transports.pair import PairTransport
from trunkline.transports.transport import Wire
from trunkline.wire import control, frames
from trunkline.wire.control import ChannelChanged, Config, Qos


@asynccontextmanager
async def meeting(simulation: Simulation, *names: str) -> AsyncIterator[tuple[Place, list[tl.Bus]]]:
    """A hub, and buses with their own connections."""
    place = Place(world(simulation), settings=HubSettings(heartbeat_s=1.0))
    await place.start()
    async with place.bus(names[0]) as first:
        buses = [first]
        try:
            for name in names[1:]:
                buses.append(await place.bus(name).__aenter__())
            yield place, buses
        finally:
            for bus in buses[1:]:
                await bus.__aexit__(None, None, None)
    await place.stop()


async def test_producers_are_found_with_all_they_said(simulation: Simulation) -> None:
    async with meeting(simulation, "sensor", "display") as (_, (sensor, display)):
        await directory_cases.producers_are_found_with_all_they_said(
            directory_of(sensor), directory_of(display), "local"
        )


async def test_consumers_are_found_and_everybody_hears_who_comes_and_goes(simulation: Simulation) -> None:
    async with meeting(simulation, "sensor", "display") as (place, (sensor, display)):
        heard: list[ChannelChanged] = []
        directory_of(sensor).on_change.append(heard.append)
        await directory_of(sensor).register_producer("data")
        assert await directory_of(display).register_consumer("data", "screen-1", metadata={"size": 2})
        found = await directory_of(sensor).discover_consumers("data")
        assert found is not None
        assert [(each.name, each.status, each.metadata) for each in found] == [("screen-1", "active", {"size": 2})]
        assert await directory_of(display).unregister_consumer("data", "screen-1")
        assert not await directory_of(display).unregister_consumer("data", "screen-1")
        await directory_of(display).register_consumer("data", "screen-2")
        place.cut("display")
        await place.back(display)
        await until(lambda: len(heard) == 5, "all is told")
        assert [(each.event, each.name) for each in heard] == [
            ("consumer_joined", "screen-1"),
            ("consumer_left", "screen-1"),
            ("consumer_joined", "screen-2"),
            ("consumer_left", "screen-2"),
            ("consumer_joined", "screen-2"),
        ]
        assert await directory_of(sensor).unregister_producer("data")


async def test_schemas_that_differ_are_refused_by_both_hashes(simulation: Simulation) -> None:
    async with meeting(simulation, "a", "bb") as (_, (one, other)):
        await directory_cases.schemas_that_differ_are_refused_by_both_hashes(directory_of(one), directory_of(other))


async def test_channels_are_created_listed_described_and_destroyed(simulation: Simulation) -> None:
    async with meeting(simulation, "a", "bb") as (_, (one, other)):
        await directory_cases.channels_are_created_listed_described_and_destroyed(
            directory_of(one), directory_of(other), "local"
        )


async def test_schemas_are_put_got_and_listed(simulation: Simulation) -> None:
    async with meeting(simulation, "a", "bb") as (_, (one, other)):
        await directory_cases.schemas_are_put_got_and_listed(directory_of(one), directory_of(other))


# Without a hub


async def test_without_a_hub_everything_says_so_in_time_and_once(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.clear()
    place = Place(world(simulation))
    async with place.bus("lonely") as bus:
        directory = directory_of(bus)
        begun = simulation.now()
        assert await directory.register_producer("data", schema=Reading) is False
        assert simulation.now() - begun <= 5.1
        waited = simulation.now()
        assert await directory.register_consumer("data", "c") is False
        assert await directory.unregister_consumer("data", "c") is False
        assert await directory.unregister_producer("nothing") is False
        assert await directory.discover_producer("data") is None
        assert await directory.discover_consumers("data") is None
        assert await directory.create_channel("made", schema=Reading) is False
        assert await directory.destroy_channel("other") is False
        assert await directory.channels() is None
        assert await directory.describe("data") is None
        assert await directory.put_schema("readings", Reading) is None
        assert await directory.get_schema("readings") is None
        assert await directory.schemas() is None
        assert simulation.now() == waited, "whoever has waited once need not again"
        assert _warnings(caplog) == 1
        # And when it starts, it gets all registrations.
        await place.start()
        await place.back(bus)
        found = await directory.discover_producer("data", schema=Reading)
        assert found is not None
        assert found.schema_version == "1.0.0"
        assert [each.channel for each in await directory.channels() or []] == ["data", "made"]
        assert [each.name for each in await directory.schemas() or []] == ["data", "made", "readings"]
        await place.stop()
        assert await directory.discover_producer("data") is None
        assert _warnings(caplog) == 2, "one for each time"
    assert await directory.register_producer("data") is False, "nor when it is closed"


def _warnings(caplog: pytest.LogCaptureFixture) -> int:
    texts = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    return sum("the directory of" in text for text in texts)


async def test_after_a_restart_everything_is_there_again(simulation: Simulation) -> None:
    async with meeting(simulation, "sensor", "display") as (place, (sensor, display)):
        await directory_of(sensor).create_channel("orders", pattern="orders.>", schema=Reading, qos=Qos(priority=80))
        await directory_of(sensor).register_producer("orders", schema=Reading, shm_name="/x")
        await directory_of(sensor).register_producer("gone")
        await directory_of(sensor).unregister_producer("gone")
        await directory_of(display).register_consumer("orders", "screen", schema=Reading)
        await directory_of(sensor).put_schema("orders", Wider)
        for times in (2, 3):
            if times == 2:
                place.cut()
            else:
                await place.stop()
                await place.start()
            for bus in (sensor, display):
                await until(lambda bus=bus, n=times: connection_of(bus).connects == n, "it is back")  # type: ignore[misc]
                await bus.flush()
            described = await directory_of(display).describe("orders")
            assert described is not None
            assert (described.pattern, described.qos.priority) == ("orders.>", 80)
            assert (described.schema_hash, described.schema_version) == (hash_of(Reading), "1.0.0")
            assert [each.name for each in described.producers] == ["sensor"]
            assert [each.name for each in described.consumers] == ["screen"]
            assert [each.channel for each in await directory_of(display).channels() or []] == ["orders"]
            assert [each.version for each in await directory_of(sensor).schemas("orders") or []] == ["1.0.0", "1.1.0"]


async def test_what_was_destroyed_is_not_made_again(simulation: Simulation) -> None:
    async with meeting(simulation, "sensor", "display") as (place, (sensor, display)):
        await directory_of(sensor).create_channel("orders")
        await directory_of(sensor).register_producer("orders")
        await directory_of(display).register_consumer("orders", "screen")
        await directory_of(display).destroy_channel("orders")
        await place.stop()
        await place.start()
        await place.back(sensor, display)
        assert await directory_of(sensor).channels() == []


async def test_a_consumer_that_waited_for_something_else_is_told(simulation: Simulation) -> None:
    async with meeting(simulation, "sensor", "display") as (_, (sensor, display)):
        await directory_cases.a_consumer_that_waited_for_something_else_is_told(
            directory_of(sensor), directory_of(display)
        )


async def test_buses_that_share_a_connection_share_its_directory(simulation: Simulation) -> None:
    place = Place(world(simulation))
    await place.start()
    async with place.bus("one") as one, place.bus("two") as two:
        assert directory_of(one) is directory_of(two)
        await directory_of(one).register_producer("data")
        assert not await directory_of(two).unregister_consumer("data", "x")
        assert await directory_of(two).unregister_producer("data")
    await place.stop()


# Who lives


class Silent:
    """A client that sends only what the test passes to it."""

    def __init__(self) -> None:
        self.wire: Wire

    async def connect(self, address: str) -> None:
        self.wire = await PairTransport().connect(address, lambda wire: self, max_frame_bytes=1 << 20)
        self.say(control.Hello(id=1, versions=[1], name="silent"))

    def say(self, said: control.Control) -> None:
        self.wire.send([(frames.control(control.write(said)),)])

    def received(self, frames: object) -> None: ...
    def broken(self, error: object) -> None: ...
    def writable(self) -> None: ...
    def lost(self, why: str) -> None: ...


async def test_who_is_silent_is_suspected_and_then_gone(simulation: Simulation) -> None:
    async with meeting(simulation, "display") as (place, (display,)):
        heard: list[tuple[float, str]] = []
        begun = simulation.now()
        directory_of(display).on_change.append(lambda said: heard.append((simulation.now() - begun, said.event)))
        await directory_of(display).register_consumer("data", "screen")
        silent = Silent()
        await silent.connect(place.address)
        silent.say(control.ProducerRegister(id=2, channel="data"))
        await until(lambda: len(heard) == 2, "it is suspected")
        found = await directory_of(display).discover_producer("data")
        assert found is not None
        assert found.status == "suspected"
        silent.say(control.Heartbeat())
        await until(lambda: len(heard) == 4, "it is suspected again")
        await until(lambda: len(heard) == 5, "it is gone")
        events = ["joined", "suspected", "recovered", "suspected", "left"]
        assert [event for _, event in heard] == [f"producer_{each}" for each in events]
        assert 2.0 <= heard[1][0] <= 3.0
        assert 3.0 <= heard[4][0] - heard[1][0] <= 4.5
        assert await directory_of(display).discover_producer("data") is None


async def test_a_channel_is_found_by_its_file_while_there_is_no_hub(simulation: Simulation) -> None:
    """And by the hub once there is one. A producer that has left is found by neither."""
    place = Place(world(simulation))
    async with place.bus("alone") as bus:
        directory = directory_of(bus)
        assert await directory.register_producer("camera", shm_name="/camera", metadata={"hz": 25}) is False
        assert await directory.discover_producer("camera") is None
        found = await directory.find("camera")
        assert found is not None
        assert (found.shm_name, found.status) == ("/camera", "active")
        assert await directory.find("microphone") is None
        await directory.unregister_producer("camera")
        assert await directory.find("camera") is None


async def test_a_file_tells_all_that_the_producer_said_until_its_bus_closes(simulation: Simulation) -> None:
    place = Place(world(simulation))
    async with place.bus("reader") as reader:
        found = directory_of(reader).find
        async with place.bus("one") as bus, place.bus("one"):
            config = Config(policy="Single", capacity=3, page_size=512)
            await directory_of(bus).register_producer(
                "camera", schema=Reading, version="2.0.0", config=config, shm_name="/camera", metadata={"hz": 25}
            )
            there = await found("camera", schema=Reading)
            assert there is not None
            assert (there.shm_name, there.schema_version) == ("/camera", "2.0.0")
            assert [(each.config, each.metadata) for each in there.producers] == [(config, {"hz": 25})]
            with pytest.raises(HubRefused, match="schemas differ on camera") as caught:
                await found("camera", schema=int)
            assert caught.value.code == "schema_mismatch"
            with pytest.raises(HubUnavailable):
                async with bus.produce("microphone", "one"):
                    pass
            assert await found("microphone") is None
            # Others share the connection, and with it what is registered.
            await bus.aclose()
            assert await found("camera") is not None
        assert await found("camera") is None
        assert await directory_of(bus).register_producer("camera") is False
        assert await found("camera") is None


async def test_what_the_hub_refuses_is_not_announced(simulation: Simulation) -> None:
    place = Place(world(simulation))
    await place.start()
    async with place.bus("maker") as maker, place.bus("other") as other:
        assert await directory_of(maker).create_channel("camera", schema=Reading)
        with pytest.raises(HubRefused):
            await directory_of(other).register_producer("camera", schema=int)
        assert await directory_of(other).find("camera") is None
        assert await directory_of(maker).register_producer("camera", schema=Reading)
        await place.stop()
        assert await directory_of(other).find("camera", schema=Reading) is not None
        await place.start()
        await place.back(maker, other)
        assert await directory_of(maker).destroy_channel("camera")
        await place.stop()
        assert await directory_of(other).find("camera") is None
