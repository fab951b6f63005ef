"""The directory of channels on NATS and Redis works between processes as it does on a hub."""

from __future__ import annotations

import asyncio
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.brokers.engine_servers import NatsServer
from tests.brokers.holders import ROOT
from tests.brokers.redis_servers import KINDS, RedisServer
from tests.hub import directory_cases
from tests.hub.directory_cases import Other, Reading
from tests.hub.hubs import until
from trunkline.brokers.engine import peers
from trunkline.brokers.engine.directory import EngineDirectory
from trunkline.errors import HubRefused, PartlyRefused, SchemaBroken
from trunkline.schema import hash_of
from trunkline.wire.control import ChannelChanged, Qos

DEADLINE_S = 180.0
EVERYONE = "everyone"
BAD = {"sensor": "a", "value": "much"}
Server = NatsServer | RedisServer


def server_of(kind: str, folder: Path) -> Server:
    return NatsServer(folder) if kind == "nats" else RedisServer(kind, folder)


@pytest.fixture(scope="module", params=["nats", *KINDS])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server_of(request.param, tmp_path_factory.mktemp("engine")) as running:
        yield running


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test()

    asyncio.run(bounded())


def space() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


@asynccontextmanager
async def buses(server: Server, *names: str, namespace: str = "", **settings: Any) -> AsyncIterator[list[tl.Bus]]:
    """Buses with a connection each, like separate processes."""
    namespace = namespace or space()
    made: list[tl.Bus] = []
    try:
        for number, name in enumerate(names):
            # Another limit in each: the same settings would share a connection.
            engine = tl.EngineSettings(
                namespace=namespace, synced=True, connect_s=30.0, max_inbox_bytes=1_000_000 + number, **settings
            )
            made.append(await tl.connect(server.url, name=name, connection=engine).__aenter__())
        yield made
    finally:
        for bus in reversed(made):
            await bus.aclose()


def directory_of(bus: tl.Bus) -> EngineDirectory:
    found = bus.broker.require_directory()
    assert isinstance(found, EngineDirectory)
    return found


PAIRS: list[tuple[Callable[..., Awaitable[None]], str, str, bool]] = [
    (directory_cases.producers_are_found_with_all_they_said, "sensor", "display", True),
    (directory_cases.schemas_that_differ_are_refused_by_both_hashes, "a", "bb", False),
    (directory_cases.channels_are_created_listed_described_and_destroyed, "a", "bb", True),
    (directory_cases.schemas_are_put_got_and_listed, "a", "bb", False),
    (directory_cases.a_consumer_that_waited_for_something_else_is_told, "sensor", "display", False),
]


@pytest.mark.parametrize(("case", "one", "other", "owned"), PAIRS, ids=[each[0].__name__ for each in PAIRS])
def test_as_on_a_hub(case: Callable[..., Awaitable[None]], one: str, other: str, owned: bool, server: Server) -> None:
    async def test() -> None:
        async with buses(server, one, other) as (first, second):
            await case(directory_of(first), directory_of(second), *([EVERYONE] if owned else []))

    run(test)


def test_everybody_hears_who_comes_and_goes(server: Server) -> None:
    async def test() -> None:
        name = space()
        async with buses(server, "sensor", namespace=name) as (sensor,):
            heard: list[ChannelChanged] = []
            directory_of(sensor).on_change.append(heard.append)
            await directory_of(sensor).register_producer("data")
            async with buses(server, "display", namespace=name, answer_s=3.0) as (display,):
                assert await directory_of(display).register_consumer("data", "screen-1", metadata={"size": 2})
                found = await directory_of(sensor).discover_consumers("data")
                assert found is not None
                assert [(each.name, each.status, each.metadata) for each in found] == [
                    ("screen-1", "active", {"size": 2})
                ]
                assert await directory_of(display).unregister_consumer("data", "screen-1")
                assert not await directory_of(display).unregister_consumer("data", "screen-1")
                await directory_of(display).register_consumer("data", "screen-2")
            # Who closes its bus leaves.
            await until(lambda: len(heard) == 4, "all is told")
            assert [(each.event, each.name) for each in heard] == [
                ("consumer_joined", "screen-1"),
                ("consumer_left", "screen-1"),
                ("consumer_joined", "screen-2"),
                ("consumer_left", "screen-2"),
            ]
            assert await directory_of(sensor).discover_consumers("data") == []
            assert await directory_of(sensor).unregister_producer("data")
            assert await directory_of(sensor).channels() == []

    run(test)


def test_a_process_that_was_killed_is_taken_off_its_channels(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "BEAT_S", 0.5)

    async def test() -> None:
        name = space()
        async with buses(server, "watcher", namespace=name) as (watcher,):
            directory = directory_of(watcher)
            heard: list[ChannelChanged] = []
            directory.on_change.append(heard.append)
            await directory.register_consumer("data", "watch")
            url = f"{server.url}?namespace={name}&synced=true&connect_s=30"
            command = [sys.executable, "-m", "tests.brokers.engine_producer", url, "data", "doomed"]
            doomed = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
            assert await doomed.wait() == -signal.SIGKILL
            await until(lambda: len(heard) == 4, "its death is noticed")
            assert sorted((each.event, each.name) for each in heard) == [
                ("consumer_joined", "doomed-reads"),
                ("consumer_left", "doomed-reads"),
                ("producer_joined", "doomed"),
                ("producer_left", "doomed"),
            ]
            assert await directory.discover_producer("data") is None
            assert [each.name for each in await directory.discover_consumers("data") or []] == ["watch"]

    run(test)


def test_many_change_it_at_once(server: Server) -> None:
    """No change is lost, and two changes that exclude each other do not both succeed."""

    async def test() -> None:
        names = ["a", "b", "c", "d"]
        async with buses(server, *names) as many:

            async def change(bus: tl.Bus) -> int:
                directory = directory_of(bus)
                refused = 0
                for number in range(5):
                    await directory.put_schema(f"{bus.name}.{number}", Reading)
                    await directory.register_consumer("shared", f"{bus.name}-{number}")
                    try:
                        await directory.create_channel(f"{bus.name}-{number}", pattern=f"taken.{number}")
                    except HubRefused as error:
                        refused += error.code == "exists"
                return refused

            refused = await asyncio.gather(*(change(bus) for bus in many))
            assert sum(refused) == 5 * (len(names) - 1)
            for bus in many:
                directory = directory_of(bus)
                assert len(await directory.schemas() or []) == 5 * len(names)
                assert len(await directory.discover_consumers("shared") or []) == 5 * len(names)
                channels = [each.pattern for each in await directory.channels() or [] if each.channel != "shared"]
                assert sorted(channels) == [f"taken.{number}" for number in range(5)]

    run(test)


async def pour(bus: tl.Bus, payloads: list[Any]) -> None:
    async with bus.pipeline() as pipe:
        for payload in payloads:
            await pipe.publish("readings.y", payload)


def test_what_does_not_fit_the_schema_of_a_channel_is_refused(server: Server) -> None:
    async def test() -> None:
        async with buses(server, "owner", "publisher") as (owner, publisher):
            await publisher.publish("readings.x", BAD)
            await publisher.flush()
            await directory_of(owner).create_channel("readings", pattern="readings.*", schema=Reading)
            lane = publisher.broker.lanes["readings.x"]
            await until(lambda: not lane.immediate, "the publisher is told")
            async with owner.subscribe("readings.*") as messages:
                with pytest.raises(SchemaBroken, match="readings"):
                    await publisher.publish("readings.x", BAD)
                with pytest.raises(PartlyRefused) as refusal:
                    await publisher.publish_many("readings.x", [Reading("a", 1), BAD, Reading("a", 2)])
                assert len(refusal.value.refused) == 1
                with pytest.raises(SchemaBroken):
                    await pour(publisher, [Reading("a", 3), BAD, Reading("a", 4)])
                got = [await messages.recv(timeout_s=60) for _ in range(3)]
                assert [each.decode()["value"] for each in got if each is not None] == [1, 2, 3]
            await directory_of(owner).destroy_channel("readings")
            await until(lambda: lane.immediate, "the publisher is told")
            await publisher.publish("readings.x", BAD)

    run(test)


def test_producing_and_consuming_as_the_contract_says(server: Server) -> None:
    async def test() -> None:
        async with buses(server, "one", "other") as (one, other):
            qos = Qos(durable=True, group="workers")
            await directory_of(one).create_channel("jobs", pattern="jobs.>", schema=Reading, qos=qos)
            async with (
                one.consume("jobs", "reader", schema=Reading) as jobs,
                other.produce("jobs", "writer", schema=Reading) as producer,
            ):
                await producer.publish(Reading("a", 1.5), topic="jobs.new")
                message = await jobs.recv(timeout_s=60)
                assert message is not None
                assert message.decode(Reading) == Reading("a", 1.5)
                jobs.ack(message)
                described = await directory_of(other).describe("jobs")
                assert described is not None
                assert [each.name for each in described.producers] == ["other"]
                with pytest.raises(HubRefused, match="schemas differ"):
                    await other.consume("jobs", "stranger", schema=Other).__aenter__()
            last = await one.last("jobs.new")
            assert last is not None

    run(test)


@pytest.mark.parametrize(
    ("qos", "code"), [(Qos(max_age_s=60.0), "not_durable"), (Qos(invalid="dead_letter"), "unsupported")]
)
def test_what_an_engine_cannot_promise_is_refused(qos: Qos, code: str, server: Server) -> None:
    async def test() -> None:
        async with buses(server, "one") as (one,):
            with pytest.raises(HubRefused) as refusal:
                await directory_of(one).create_channel("x", qos=qos)
            assert refusal.value.code == code
            assert await directory_of(one).channels() == []

    run(test)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nats", KINDS[0]])
def test_after_a_restart_of_the_server_everything_is_there_again(kind: str, tmp_path: Path) -> None:
    async def test() -> None:
        with server_of(kind, tmp_path) as server:
            async with buses(server, "sensor", "display") as (sensor, display):
                await directory_of(sensor).create_channel("orders", pattern="orders.>", schema=Reading)
                await directory_of(sensor).register_producer("orders", schema=Reading)
                await directory_of(display).register_consumer("orders", "screen", schema=Reading)
                adapters = [bus.broker.adapter for bus in (sensor, display)]  # type: ignore[attr-defined]
                server.process.kill()
                await until(lambda: not any(each.live for each in adapters), "the end is noticed")
                server.process.start()
                await until(lambda: all(each.live for each in adapters), "they are back")
                found = await directory_of(display).describe("orders")
                assert found is not None
                assert (found.pattern, found.schema_hash) == ("orders.>", hash_of(Reading))
                assert [each.name for each in found.producers] == ["sensor"]
                assert [each.name for each in found.consumers] == ["screen"]

    run(test)


def test_without_a_store_there_is_no_directory(tmp_path: Path) -> None:
    async def test() -> None:
        with NatsServer(tmp_path, jetstream=False) as server:
            async with buses(server, "one") as (one,):
                await one.publish("t", 1)
                await one.flush()
                with pytest.raises(tl.Unsupported, match="channels"):
                    one.broker.require_directory()

    run(test)
