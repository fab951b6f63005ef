"""Channels and schemas of a hub with a journal survive its restart, and are on disk before they are confirmed."""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

import trunkline as tl
from tests.hub.hubs import Place, directory_of
from tests.hub.up import up
from trunkline.errors import HubRefused
from trunkline.hub.hub import Hub
from trunkline.hub.registry_file import FILE, LAYOUT
from trunkline.journal import Journal, JournalBroker, JournalSettings
from trunkline.journal.errors import JournalUnusable
from trunkline.registry.registry import Registry, Who
from trunkline.registry.schemas import SchemaRegistry
from trunkline.schema import hash_of, schema_of
from trunkline.testing import Simulation, world
from trunkline.wire.control import ChannelCreate, ChannelInfo, ProducerRegister, Qos


class Reading(msgspec.Struct):
    sensor: str
    value: float


class Wider(msgspec.Struct):
    sensor: str
    value: float
    unit: str = "m"


class Other(msgspec.Struct):
    name: str


@asynccontextmanager
async def kept_place(simulation: Simulation) -> AsyncIterator[tuple[Place, Path]]:
    """A hub with a journal, and the directory of the journal."""
    with tempfile.TemporaryDirectory() as folder:
        place = Place(world(simulation), Path(folder))
        await place.start()
        try:
            yield place, Path(folder)
        finally:
            await place.stop()


async def channels_of(bus: tl.Bus) -> list[ChannelInfo]:
    found = await directory_of(bus).channels()
    assert found is not None
    return found


async def test_channels_and_schemas_are_there_again_though_nobody_makes_them_again(simulation: Simulation) -> None:
    qos = Qos(priority=75, durable=True, overflow="reject", max_age_s=60.5, invalid="dead_letter", group="g")
    async with kept_place(simulation) as (place, _):
        async with place.bus("maker") as bus:
            directory = directory_of(bus)
            await directory.put_schema("readings", Reading)
            await directory.put_schema("readings", Wider, compatibility="full")
            await directory.put_schema("others", Other, "3.1.4", "none")
            await directory.create_channel("b", pattern="b.>", schema=Reading, qos=qos, description="of rooms")
            await directory.create_channel("a")
            await directory.register_producer("passing")
            before = [each for each in await channels_of(bus) if each.channel != "passing"]
        await place.stop()
        await place.start()
        async with place.bus("another") as bus:
            directory = directory_of(bus)
            after = await channels_of(bus)
            assert after == before, "with owner and time; what came by itself went with its producer"
            (_, channel) = after
            assert (channel.pattern, channel.qos, channel.description) == ("b.>", qos, "of rooms")
            assert (channel.owner, channel.schema_hash) == ("local", hash_of(Reading))
            versions = await directory.schemas("readings")
            assert versions is not None
            assert [(each.version, each.hash, each.compatibility) for each in versions] == [
                ("1.0.0", hash_of(Reading), "full"),
                ("1.1.0", hash_of(Wider), "full"),
            ]
            other = await directory.get_schema("others")
            assert other is not None
            assert (other.version, other.compatibility, other.schema) == ("3.1.4", "none", schema_of(Other))
            with pytest.raises(HubRefused) as refusal:
                await directory.put_schema("readings", Other)
            assert refusal.value.code == "incompatible"
            # The contract holds as before: it does not fit, and is kept as a dead letter.
            await bus.publish("b.x", {"sensor": 1})
            assert place.hub.counts["invalid"] == 1


async def test_those_who_made_them_make_them_again_without_a_word(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "trunkline.connection")
    async with kept_place(simulation) as (place, folder), place.bus("maker") as bus:
        directory = directory_of(bus)
        await directory.put_schema("readings", Reading, compatibility="forward")
        await directory.create_channel("data", schema=Reading, qos=Qos(priority=60))
        await directory.register_producer("data", schema=Reading)
        before = await channels_of(bus)
        written = (folder / FILE).stat()
        await place.stop()
        await place.start()
        await place.back(bus)
        await bus.flush()
        assert await channels_of(bus) == before
        assert not [record.message for record in caplog.records if "take" in record.message]
        now = (folder / FILE).stat()
        assert (now.st_ino, now.st_mtime_ns) == (written.st_ino, written.st_mtime_ns), "nothing is written for nothing"


async def test_what_was_destroyed_stays_so(simulation: Simulation) -> None:
    async with kept_place(simulation) as (place, _):
        async with place.bus("maker") as bus:
            for name in ("a", "b", "c"):
                await directory_of(bus).create_channel(name)
            await directory_of(bus).destroy_channel("b")
        await place.stop()
        await place.start()
        async with place.bus("another") as bus:
            assert [each.channel for each in await channels_of(bus)] == ["a", "c"]
            assert await directory_of(bus).create_channel("b", pattern="b.*"), "its name and its topics are free"


async def test_what_cannot_be_written_is_refused_and_nothing_has_changed(simulation: Simulation) -> None:
    """The temporary file leads to a device that is always full."""
    async with kept_place(simulation) as (place, folder), place.bus("maker") as bus:
        directory = directory_of(bus)
        await directory.create_channel("there")
        await directory.put_schema("readings", Reading)
        await directory.register_producer("by-itself")
        before = await channels_of(bus)
        schemas = await directory.schemas("readings")
        on_disk = (folder / FILE).read_bytes()
        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: directory.create_channel("new"),
            lambda: directory.create_channel("by-itself", description="one that stays"),
            lambda: directory.destroy_channel("there"),
            lambda: directory.put_schema("readings", Wider),
            lambda: directory.put_schema("readings", Reading, compatibility="none"),
            lambda: directory.put_schema("others", Other),
        ]
        for attempt in attempts:
            (folder / f".{FILE}.draft").symlink_to("/dev/full")
            with pytest.raises(HubRefused, match="No space left on device") as refusal:
                await attempt()
            assert refusal.value.code == "not_kept"
            assert await channels_of(bus) == before
            assert await directory.schemas("readings") == schemas
            assert await directory.schemas("others") == []
            assert (folder / FILE).read_bytes() == on_disk
            assert sorted(path.name for path in folder.glob(".*")) == [], "no half of it takes the room there is"
        for attempt in attempts:
            await attempt()
        names = [each.channel for each in await channels_of(bus)]
        assert names == ["by-itself", "new"]
        await directory.destroy_channel("by-itself")
        assert [each["channel"] for each in json.loads((folder / FILE).read_bytes())["kept"]["channels"]] == ["new"]


async def test_a_channel_that_the_journal_does_not_keep_any_more_is_named(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    async with kept_place(simulation) as (place, folder):
        async with place.bus("maker") as bus:
            await directory_of(bus).create_channel("data", qos=Qos(durable=True))
        await place.stop()
        other = JournalSettings(durable=("other.>",))
        journal = Journal(folder, other, world=world(simulation), threaded=False)
        async with Hub(JournalBroker(journal, owns_journal=True)) as hub:
            await hub.listen(place.address)
            assert "does not fulfil the settings of the channel data" in caplog.text
            async with place.bus("another") as bus:
                assert [each.channel for each in await channels_of(bus)] == ["data"], "its owner must decide"


def newer(data: bytes) -> bytes:
    return msgspec.json.encode({"layout": LAYOUT + 1, "anything": "else"})


def cut(data: bytes) -> bytes:
    return data[:-20]


def flipped(data: bytes) -> bytes:
    return data.replace(b"of rooms", b"of moors")


def twice(data: bytes) -> bytes:
    """Invalid content with a valid checksum."""
    kept = json.loads(data)["kept"]
    kept["channels"] *= 2
    text = msgspec.json.encode(kept)
    return msgspec.json.encode({"layout": LAYOUT, "checksum": zlib.crc32(text), "kept": msgspec.Raw(text)})


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (newer, f"has layout {LAYOUT + 1}, of a newer Trunkline: start the hub with that one"),
        (cut, "is damaged"),
        (flipped, "its checksum does not match"),
        (twice, "exist twice"),
        (lambda data: b"", "is damaged"),
        (lambda data: b"[]", "is damaged"),
    ],
)
async def test_a_hub_does_not_start_with_what_it_cannot_read(
    simulation: Simulation, damage: Callable[[bytes], bytes], why: str
) -> None:
    async with kept_place(simulation) as (place, folder):
        async with place.bus("maker") as bus:
            await directory_of(bus).create_channel("data", description="of rooms")
        await place.stop()
        good = (folder / FILE).read_bytes()
        (folder / FILE).write_bytes(damage(good))
        with pytest.raises(JournalUnusable) as refusal:
            await place.start()
        assert str(folder / FILE) in str(refusal.value)
        assert why in str(refusal.value)
        if damage is not newer:
            assert "restore it from a backup, or move it away" in str(refusal.value)
        await place.stop()
        (folder / FILE).write_bytes(good)
        await place.start()
        async with place.bus("another") as bus:
            assert [each.channel for each in await channels_of(bus)] == ["data"]


def test_what_was_acknowledged_is_there_after_a_kill(tmp_path: Path) -> None:
    """Also for its owner after a reconnection, because its identity is the same."""

    async def made(address: str, number: int) -> None:
        async with tl.connect(address, name="maker") as bus:
            assert await directory_of(bus).create_channel(f"c{number}", schema=Reading, qos=Qos(durable=True))

    async def found(address: str) -> list[str]:
        async with tl.connect(address, name="reader") as bus:
            assert await directory_of(bus).create_channel("c0", schema=Reading, qos=Qos(durable=True))
            return [each.channel for each in await channels_of(bus)]

    with up(tmp_path, durable=True) as hub:
        for number in range(3):
            asyncio.run(made(hub.address, number))
            hub.kill()
            hub.start()
            assert asyncio.run(found(hub.address)) == [f"c{each}" for each in range(number + 1)]
        assert hub.log() == ""


def test_up_says_what_is_wrong_and_ends(tmp_path: Path) -> None:
    with up(tmp_path, durable=True) as hub:
        hub.end()
        (hub.journal / FILE).write_bytes(b"garbage")
        with pytest.raises(AssertionError, match=rf"ended with 1: error: .*{FILE}.* is damaged .* move it away"):
            hub.start()
        assert hub.end() == 1
        (hub.journal / FILE).unlink()
        hub.start()


async def test_an_embedded_hub_says_it_to_who_needs_it(simulation: Simulation) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FILE).write_bytes(b"garbage")
        journal = Journal(folder, world=world(simulation), threaded=False)

        def connected() -> tl.Bus:
            return tl.connect("pair:inside", embed=True, journal=journal, world=world(simulation))

        with pytest.raises(JournalUnusable, match="move it away"):
            async with connected():
                pass
        (Path(folder) / FILE).unlink()
        async with connected() as bus:
            await bus.publish("t", 2)
        journal.close()


def test_what_is_kept_is_all_there_is_to_restore() -> None:
    registry, schemas = Registry(), SchemaRegistry()
    who = Who("s1", "alice's desk", "alice")
    registry.create(who, ChannelCreate(id=1, channel="a", pattern="a.*", schema_hash="h", schema_version="1.0.0"), 5)
    registry.register_producer(who, ProducerRegister(id=1, channel="b", schema_hash="x"), 6)
    registry.create(who, ChannelCreate(id=1, channel="b", qos=Qos(priority=1), description="d"), 7)
    registry.register_producer(who, ProducerRegister(id=1, channel="passing"), 8)
    schemas.put("s", schema_of(Reading))
    schemas.put("s", schema_of(Wider), "1.2.0", "full")
    schemas.put("t", schema_of(Reading), "", "none")
    again, others = Registry(), SchemaRegistry()
    again.restore(registry.kept())
    others.restore(schemas.kept())
    assert again.kept() == registry.kept()
    assert [each.channel for each in again.kept()] == ["a", "b"]
    assert again.find("a.x") is again.channel("a")
    b = again.channel("b")
    assert b is not None
    assert (b.created_ns, b.schema_hash, b.producers) == (6, "", {})
    assert others.kept() == schemas.kept()
    assert others.get(hash=hash_of(Reading)) == schemas.get(hash=hash_of(Reading))
    assert others.overview("s") == schemas.overview("s")
    assert len(others) == 3
