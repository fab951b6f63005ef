"""Redis URLs: passwords, databases, TLS, several addresses, a cluster, a Sentinel; and the error texts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.brokers.redis_groups import running_cluster, running_sentinel, tls_in_front
from tests.brokers.redis_servers import RedisServer
from tests.hub.hubs import until
from trunkline.brokers.engine.settings import EngineSettings, without_login
from trunkline.brokers.redis.address import Node, RedisAddress, owner_of
from trunkline.brokers.redis.broker import RedisBroker
from trunkline.brokers.redis.driver import RedisDriver
from trunkline.delivery.options import Delivery
from trunkline.errors import EngineUnavailable, NotAllowed, UsageError
from trunkline.message import Message

HOW = EngineSettings(connect_s=30.0, max_backoff_s=0.1, durable=("t",))
DEADLINE_S = 120.0


def run(test: Coroutine[Any, Any, None]) -> None:
    async def in_time() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test

    asyncio.run(in_time())


def broker_at(url: str, how: EngineSettings = HOW) -> RedisBroker:
    return RedisBroker(url, engine=how)


async def works(broker: RedisBroker, text: str = "works") -> None:
    """Publish, subscribe, store, and read what is stored."""
    async with broker.subscribe("t", Delivery(name=f"d {text}", durable=True)) as stream:
        await broker.publish([Message(id=broker.world.uuid7(), topic="t", payload=text.encode())])
        message = await stream.recv()
        assert message is not None
        assert message.payload == text.encode()
        stream.ack(message)


def node_of(broker: RedisBroker) -> int:
    driver = broker.adapter.driver
    assert isinstance(driver, RedisDriver)
    assert driver.session.node is not None
    return driver.session.node.port


@pytest.mark.parametrize(
    ("url", "nodes", "db", "user", "password", "safe"),
    [
        ("redis://h", [("h", 6379)], 0, None, None, "redis://h"),
        ("redis://:pw@h:1/3", [("h", 1)], 3, None, "pw", "redis://@h:1/3"),
        ("rediss://me:p%40w@a:1,b:2", [("a", 1), ("b", 2)], 0, "me", "p@w", "rediss://me@a:1,b:2"),
        ("redis://[::1]:7", [("::1", 7)], 0, None, None, "redis://[::1]:7"),
        ("redis+sentinel://a,b:1/main/2", [("a", 26379), ("b", 1)], 2, None, None, "redis+sentinel://a,b:1/main/2"),
    ],
)
def test_what_a_url_says(
    url: str, nodes: list[tuple[str, int]], db: int, user: str | None, password: str | None, safe: str
) -> None:
    address = RedisAddress(url, {})
    assert address.nodes == nodes
    assert (address.db, address.user, address.password, address.safe) == (db, user, password, safe)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("redis://h/x", "the database is a number"),
        ("redis://h:port", "is not an address: write host:port"),
        ("redis+sentinel://h", "name the service that the Sentinels watch"),
        ("redis+cluster://h/1", "a cluster has one database only"),
    ],
)
def test_a_url_that_makes_no_sense_is_refused(url: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        RedisAddress(url, {})


def test_the_owner_of_a_key() -> None:
    slots = [[0, 8000, [b"a", 1]], [8001, 16383, [b"", 2]]]
    asked = Node("me", 2)
    assert {owner_of(f"{{{name}}}", slots, asked) for name in "abcdefgh"} == {Node("a", 1), Node("me", 2)}


def test_passwords_users_and_databases(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    acl = "app on >secret ~* &* +@all -config"
    with RedisServer("redis", tmp_path, requirepass="top", user=acl) as server:
        place = f"127.0.0.1:{server.port}"

        async def test() -> None:
            async with broker_at(f"redis://:top@{place}") as broker:
                await works(broker)
            async with broker_at(f"redis://app:secret@{place}/5") as broker:
                with caplog.at_level(logging.WARNING, "trunkline.connection"):
                    await works(broker)
                assert await broker.store.last("t") is not None
            async with broker_at(f"redis://app:secret@{place}/6") as other:
                assert await other.store.last("t") is None
            for url in (f"redis://{place}", f"redis://app:wrong@{place}"):
                async with broker_at(url) as broker:
                    with pytest.raises(NotAllowed, match="write user and password in the URL") as caught:
                        await broker.adapter.ready()
                    assert "wrong" not in str(caught.value)

        run(test())
    # This user may not ask for the configuration.
    assert "its durability could not be checked" in caplog.text


def test_tls(tmp_path: Path) -> None:
    with RedisServer("valkey", tmp_path) as server:

        async def test() -> None:
            async with tls_in_front(server, tmp_path / "tls") as (port, authority):
                async with broker_at(f"rediss://localhost:{port}?tls_ca={authority}") as broker:
                    await works(broker)
                quick = EngineSettings(connect_s=2.0)
                async with broker_at(f"rediss://localhost:{port}", quick) as broker:
                    with pytest.raises(EngineUnavailable, match="certificate verify failed"):
                        await broker.adapter.ready()

        run(test())


def test_the_address_that_takes_writes_is_found(tmp_path: Path) -> None:
    """Of several addresses one is down and one is a replica."""
    with (
        RedisServer("valkey", tmp_path / "primary") as primary,
        RedisServer("valkey", tmp_path / "replica", replicaof=f"127.0.0.1 {primary.port}") as replica,
    ):
        gone = RedisServer("valkey", tmp_path / "gone")

        async def test() -> None:
            places = ",".join(f"127.0.0.1:{each.port}" for each in (gone, replica, primary))
            async with broker_at(f"redis://{places}") as broker:
                await works(broker)
                assert node_of(broker) == primary.port
            quick = EngineSettings(connect_s=1.0)
            async with broker_at(f"redis://127.0.0.1:{replica.port}", quick) as broker:
                with pytest.raises(EngineUnavailable, match="is a replica: add the address of the primary"):
                    await broker.adapter.ready()

        run(test())


@pytest.mark.parametrize("kind", ["redis", "valkey"])
def test_a_cluster(kind: str, tmp_path: Path) -> None:
    """A namespace is on one node, which is found from any other; several namespaces use several nodes."""
    with running_cluster(kind, tmp_path) as servers:

        async def test() -> None:
            used: set[int] = set()
            for number in range(6):
                how = EngineSettings(connect_s=30.0, namespace=f"n{number}", durable=("t",))
                scheme = "redis" if number % 2 else "redis+cluster"
                async with broker_at(f"{scheme}://127.0.0.1:{servers[number % 3].port}", how) as broker:
                    await works(broker)
                    used.add(node_of(broker))
            assert len(used) > 1

        run(test())


def test_what_is_no_cluster(tmp_path: Path) -> None:
    with RedisServer("redis", tmp_path) as server:

        async def test() -> None:
            quick = EngineSettings(connect_s=1.0)
            async with broker_at(f"redis+cluster://127.0.0.1:{server.port}", quick) as broker:
                with pytest.raises(EngineUnavailable, match="is not part of a cluster: write redis://"):
                    await broker.adapter.ready()

        run(test())


def test_sentinel_and_a_change_of_the_primary(tmp_path: Path) -> None:
    with running_sentinel(tmp_path) as (sentinel, primary, replica):

        async def test() -> None:
            url = f"redis+sentinel://127.0.0.1:{sentinel.port}/main"
            async with broker_at(url) as broker:
                await works(broker, "before")
                assert node_of(broker) == primary.port
                primary.process.kill()
                await works(broker, "after")
                assert node_of(broker) == replica.port
            quick = EngineSettings(connect_s=1.0)
            async with broker_at(f"redis+sentinel://127.0.0.1:{sentinel.port}/other", quick) as broker:
                with pytest.raises(EngineUnavailable, match="knows no service 'other'"):
                    await broker.adapter.ready()

        run(test())


def test_a_publish_waits_for_a_replica(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        RedisServer("valkey", tmp_path / "primary") as primary,
        RedisServer("valkey", tmp_path / "replica", replicaof=f"127.0.0.1 {primary.port}") as replica,
    ):

        async def test() -> None:
            how = EngineSettings(connect_s=30.0, durable=("t",), replicas=2)
            async with broker_at(primary.url, how) as broker:
                await works(broker, "with a replica")
                replica.pause(True)
                publishing = asyncio.ensure_future(
                    broker.publish([Message(id=broker.world.uuid7(), topic="t", payload=b"x")])
                )
                try:
                    await until(lambda: "0 of 1 replicas have it" in caplog.text, "it was noticed")
                    assert not publishing.done()
                finally:
                    replica.pause(False)
                await publishing
                await until(lambda: replica.cli("XLEN", "{tl}:s:t") == "2", "stored once, and copied")

        run(test())


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://ann:secret@a:4222,b:4222", "nats://a:4222,b:4222"),
        ("nats://token@a:4222?token=t&namespace=x", "nats://a:4222"),
        ("redis://:secret@h:6379/3", "redis://h:6379/3"),
        ("redis://h", "redis://h"),
    ],
)
def test_a_login_is_not_shown(url: str, shown: str) -> None:
    assert without_login(url) == shown
