"""Open topics: programs without Trunkline read and write them, each message on its own, as CloudEvents with JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg

import trunkline as tl
from tests.brokers.engine_servers import NatsServer

TIMEOUT_S = 60.0
OPEN = tl.EngineSettings(open=("actors", "orders.>"), synced=True, connect_s=TIMEOUT_S)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


def test_the_subject_actors_has_json_bytes(server: NatsServer) -> None:
    async def test() -> None:
        stranger = await nats.connect(server.url)
        seen: asyncio.Queue[Msg] = asyncio.Queue()

        async def take(message: Msg) -> None:
            seen.put_nowait(message)

        await stranger.subscribe("actors", cb=take)
        await stranger.flush()
        async with (
            asyncio.timeout(TIMEOUT_S),
            tl.connect(server.url, name="me", connection=OPEN) as bus,
            bus.subscribe("actors") as stream,
        ):
            sent = await bus.publish("actors", {"actor": "a1", "action": "start"})
            message = await seen.get()
            assert json.loads(message.data) == {"actor": "a1", "action": "start"}
            headers = message.headers or {}
            assert (headers["ce-id"], headers["ce-source"], headers["ce-specversion"]) == (sent, "me", "1.0")
            assert headers["content-type"] == "application/json"
            own = await stream.recv()
            assert own is not None
            assert (own.id, own.sender, own.decode()) == (sent, "me", {"actor": "a1", "action": "start"})
            fates = [(each.subscriber, each.fate) for each in (await bus.explain(sent)).outcomes]
            assert fates == [(stream.name, tl.Fate.DELIVERED)]

            # What a program without Trunkline sends, without a header, is a message like all others.
            await stranger.publish("actors", b'{"actor": "a2"}')
            theirs = await stream.recv()
            assert theirs is not None
            assert theirs.decode() == {"actor": "a2"}
            assert theirs.id
        await stranger.close()

    asyncio.run(test())


def test_a_wildcard_gets_open_topics_and_the_others(server: NatsServer) -> None:
    async def test() -> None:
        async with (
            asyncio.timeout(TIMEOUT_S),
            tl.connect(server.url, connection=OPEN) as bus,
            bus.subscribe(">") as stream,
        ):
            await bus.publish_many("orders.placed", [1, 2, 3])
            await bus.publish("plain", 4)
            got = sorted([(await stream.recv()).decode() for _ in range(4)])  # type: ignore[union-attr]
            assert got == [1, 2, 3, 4]
            await bus.flush()
            assert stream.depth == 0

    asyncio.run(test())


def test_what_cannot_be_read_is_counted(server: NatsServer, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    async def test() -> None:
        stranger = await nats.connect(server.url)
        async with (
            asyncio.timeout(TIMEOUT_S),
            tl.connect(server.url, connection=OPEN) as bus,
            bus.subscribe("t") as stream,
        ):
            await stranger.publish("tl.t", b"not a batch")
            await stranger.flush()
            await bus.publish("t", 1)
            message = await stream.recv()
            assert message is not None
            assert message.decode() == 1
            assert bus.broker.adapter.malformed == 1  # type: ignore[attr-defined]
        assert "could not be read" in caplog.text
        await stranger.close()

    asyncio.run(test())


def test_a_payload_that_is_too_large_as_json_is_refused_alone(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    """On the bus it is MessagePack, and fits. Its publisher gets an error, and the connection stays."""

    async def test() -> None:
        lost: list[tuple[int, Exception]] = []
        async with (
            asyncio.timeout(TIMEOUT_S),
            tl.connect(server.url, name="large", connection=OPEN) as bus,
            bus.subscribe("actors") as stream,
        ):
            bus.broker.on_lost(lambda messages, error: lost.append((len(messages), error)))
            await bus.flush()
            await bus.publish("actors", "\x01" * 2_000_000)
            await bus.publish_many("actors", [1, "\x01" * 2_000_000, 2])
            await bus.flush()
            got = [message.decode() for _ in range(2) if (message := await stream.recv()) is not None]
            assert got == [1, 2]
            assert [count for count, _ in lost] == [1, 1]
            for _, error in lost:
                assert "bytes, and the server accepts at most 8,388,608: send a reference" in str(error)
            assert bus.broker.adapter.connects == 1  # type: ignore[attr-defined]
        assert "raise max_payload of the server" in caplog.text

    asyncio.run(test())
