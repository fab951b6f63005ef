"""Cases for every directory of channels: they run on a hub and on engines."""

from __future__ import annotations

import msgspec
import pytest

from tests.hub.hubs import until
from trunkline.brokers.asked_directory import AskedDirectory
from trunkline.errors import HubRefused, UsageError
from trunkline.schema import hash_of, schema_of
from trunkline.topic import logical_name
from trunkline.wire.control import ChannelChanged, Config, Qos


class Reading(msgspec.Struct):
    sensor: str
    value: float


class Wider(msgspec.Struct):
    sensor: str
    value: float
    unit: str = "m"


class Other(msgspec.Struct):
    name: str


async def producers_are_found_with_all_they_said(
    sensor: AskedDirectory, display: AskedDirectory, identity: str
) -> None:
    config = Config(policy="RingBuffer", capacity=10, page_size=4096)
    assert await sensor.register_producer(
        "sensor_data",
        schema=Reading,
        config=config,
        shm_name=logical_name("sensor_data", "pylabhub"),
        metadata={"room": 3},
    )
    found = await display.discover_producer("sensor_data", schema=Reading)
    assert found is not None
    assert (found.channel, found.shm_name, found.status) == ("sensor_data", "/pylabhub_sensor_data", "active")
    assert (found.schema_hash, found.schema_version) == (hash_of(Reading), "1.0.0")
    (producer,) = found.producers
    assert (producer.name, producer.identity, producer.config) == ("sensor", identity, config)
    assert producer.metadata == {"room": 3}
    assert await display.discover_producer("nobody") is None
    assert await display.discover_consumers("nobody") == []


async def schemas_that_differ_are_refused_by_both_hashes(one: AskedDirectory, other: AskedDirectory) -> None:
    await one.register_producer("data", schema=Reading)
    for attempt in (
        other.register_producer("data", schema=Other),
        other.register_consumer("data", "c", schema=Other),
        other.discover_producer("data", schema=Other),
    ):
        with pytest.raises(HubRefused) as refusal:
            await attempt
        # As a schema under the same name, it would not be compatible either.
        assert refusal.value.code in ("schema_mismatch", "incompatible")
        if refusal.value.code == "schema_mismatch":
            assert hash_of(Reading) in refusal.value.text
            assert hash_of(Other) in refusal.value.text
    assert await other.register_consumer("data", "c", schema=schema_of(Reading))


async def channels_are_created_listed_described_and_destroyed(
    one: AskedDirectory, other: AskedDirectory, identity: str
) -> None:
    assert await one.create_channel("orders", pattern="orders.>", schema=Reading, qos=Qos(priority=75))
    assert await one.create_channel("plain", description="nothing special")
    assert await one.create_channel("plain", description="nothing special"), "it is as asked for"
    await other.register_producer("orders", schema=Reading)
    found = await other.channels()
    assert found is not None
    assert [(each.channel, each.pattern, each.owner) for each in found] == [
        ("orders", "orders.>", identity),
        ("plain", "plain", identity),
    ]
    assert await other.channels("plain.>") == []
    described = await one.describe("orders")
    assert described is not None
    assert (described.schema_hash, described.schema_version) == (hash_of(Reading), "1.0.0")
    assert (described.qos.priority, [each.name for each in described.producers]) == (75, ["bb"])
    assert await other.destroy_channel("plain")
    for attempt in (one.describe("plain"), one.destroy_channel("plain")):
        with pytest.raises(HubRefused) as refusal:
            await attempt
        assert refusal.value.code == "unknown_channel"
    with pytest.raises(HubRefused) as refusal:
        await one.create_channel("orders")
    assert refusal.value.code == "exists"


async def schemas_are_put_got_and_listed(one: AskedDirectory, other: AskedDirectory) -> None:
    first = await one.put_schema("readings", Reading)
    second = await one.put_schema("readings", Wider)
    assert first is not None
    assert second is not None
    assert (first.version, second.version, second.compatibility) == ("1.0.0", "1.1.0", "backward")
    last = await other.get_schema("readings")
    assert last is not None
    assert (last.hash, last.schema) == (hash_of(Wider), schema_of(Wider))
    by_hash = await other.get_schema(hash=first.hash)
    assert by_hash is not None
    assert by_hash.version == "1.0.0"
    versions = await one.schemas("readings")
    assert versions is not None
    assert [each.version for each in versions] == ["1.0.0", "1.1.0"]
    assert len(await one.schemas() or []) == 1
    with pytest.raises(HubRefused) as refusal:
        await one.put_schema("readings", Other)
    assert refusal.value.code == "incompatible"
    assert "$.name: the new version requires it, 1.1.0 does not" in refusal.value.text
    with pytest.raises(HubRefused, match="no schema named"):
        await one.get_schema("nobody")
    with pytest.raises(HubRefused, match=r"\$\.a: the keyword 'not'"):
        await one.put_schema("bad", {"properties": {"a": {"not": {}}}})
    with pytest.raises(UsageError, match="cannot make a schema"):
        await one.put_schema("bad", object)


async def a_consumer_that_waited_for_something_else_is_told(sensor: AskedDirectory, display: AskedDirectory) -> None:
    heard: list[ChannelChanged] = []
    display.on_change.append(heard.append)
    assert await display.register_consumer("data", "screen", schema=Other)
    await sensor.register_producer("data", schema=Reading)
    await until(lambda: len(heard) == 2, "it is told")
    assert [(each.event, each.name) for each in heard] == [
        ("producer_joined", "sensor"),
        ("schema_mismatch", "screen"),
    ]
    assert await sensor.discover_consumers("data") == []
