"""Durable open topics: each message is one message of a stream, confirmed by fast ingest where the stream offers it."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

import trunkline as tl
from tests.brokers.engine_servers import NatsServer

TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as running:
        yield running


def settings(topic: str, **more: Any) -> tl.EngineSettings:
    return tl.EngineSettings(
        namespace=f"n-{topic}", open=(f"{topic}.>",), durable=(f"{topic}.>",), synced=True, connect_s=TIMEOUT_S, **more
    )


class Stranger:
    """A program without Trunkline: it reads streams, and sees what is published."""

    def __init__(self, connection: Client) -> None:
        self.connection = connection
        self.seen: list[Msg] = []

    async def ask(self, what: str, **fields: Any) -> dict[str, Any]:
        answer = await self.connection.request(f"$JS.API.{what}", json.dumps(fields).encode(), timeout=TIMEOUT_S)
        found: dict[str, Any] = json.loads(answer.data)
        assert "error" not in found, found
        return found

    async def watch(self, subject: str) -> None:
        async def take(message: Msg) -> None:
            self.seen.append(message)

        await self.connection.subscribe(subject, cb=take)
        await self.connection.flush()

    async def fast(self) -> int:
        """How many of the messages it has seen were sent by fast ingest."""
        await self.connection.flush()
        return sum(message.reply.endswith(".$FI") for message in self.seen)

    async def stored(self, stream: str) -> list[tuple[Any, dict[str, str]]]:
        """Everything in a stream: payloads and headers."""
        js = self.connection.jetstream()
        state = (await js.stream_info(stream)).state
        found = [await js.get_msg(stream, seq, direct=True) for seq in range(state.first_seq, state.last_seq + 1)]
        return [(json.loads(each.data or b""), each.headers or {}) for each in found]


@asynccontextmanager
async def stranger(server: NatsServer) -> AsyncIterator[Stranger]:
    connection = await nats.connect(server.url)
    try:
        async with asyncio.timeout(2 * TIMEOUT_S):
            yield Stranger(connection)
    finally:
        await connection.close()


def test_a_burst_is_stored_one_message_each_by_fast_ingest(server: NatsServer) -> None:
    async def test() -> None:
        async with (
            stranger(server) as other,
            tl.connect(server.url, name="me", connection=settings("burst")) as bus,
            bus.subscribe("burst.*") as stream,
        ):
            await other.watch("burst.>")
            ids = await bus.publish_many("burst.a", range(250))
            stored = await other.stored("n-burst-open")
            assert [payload for payload, _ in stored] == list(range(250))
            assert [headers["ce-id"] for _, headers in stored] == ids
            assert {headers["ce-source"] for _, headers in stored} == {"me"}
            assert {headers["content-type"] for _, headers in stored} == {"application/json"}
            assert len({headers["Nats-Msg-Id"] for _, headers in stored}) == 250
            got = [await stream.recv() for _ in range(250)]
            assert [message.id for message in got if message is not None] == ids
            assert await other.fast() == 250

            # Several publishers and topics at once, and a message alone.
            await asyncio.gather(*(bus.publish(f"burst.{'ab'[number % 2]}", number) for number in range(100)))
            await bus.publish("burst.a", "alone")
            later = [payload for payload, _ in (await other.stored("n-burst-open"))[250:]]
            assert [payload for payload in later if payload != "alone" and payload % 2] == list(range(1, 100, 2))
            assert [payload for payload in later if payload != "alone" and not payload % 2] == list(range(0, 100, 2))
            assert later[-1] == "alone"
            assert len(later) == 101

    asyncio.run(test())


def test_a_subscriber_gets_a_message_once_that_is_sent_again(server: NatsServer) -> None:
    async def test() -> None:
        async with (
            stranger(server) as other,
            tl.connect(server.url, connection=settings("twice")) as bus,
            bus.subscribe("twice.a") as stream,
        ):
            await other.watch("twice.a")
            await bus.publish_many("twice.a", [1, 2])
            await other.connection.flush()
            for message in list(other.seen):
                again = await other.connection.request(
                    "twice.a", message.data, headers=message.headers, timeout=TIMEOUT_S
                )
                assert json.loads(again.data)["duplicate"]
            await bus.publish("twice.a", 3)
            assert [(await stream.recv()).decode() for _ in range(3)] == [1, 2, 3]  # type: ignore[union-attr]
            assert stream.depth == 0
            assert [payload for payload, _ in await other.stored("n-twice-open")] == [1, 2, 3]

    asyncio.run(test())


def test_a_killed_server_loses_and_repeats_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        with NatsServer(tmp_path) as server:
            async with asyncio.timeout(3 * TIMEOUT_S):
                async with tl.connect(server.url, connection=settings("killed")) as bus:
                    await bus.publish("killed.a", -1)
                    async with stranger(server) as other:
                        begun = asyncio.Event()

                        async def take(message: Msg) -> None:
                            if json.loads(message.data) == 300:
                                begun.set()

                        await other.connection.subscribe("killed.a", cb=take)
                        await other.connection.flush()
                        publishing = asyncio.ensure_future(bus.publish_many("killed.a", range(800)))
                        await begun.wait()
                        assert not publishing.done()
                        await asyncio.to_thread(server.process.kill)
                    await asyncio.to_thread(server.process.start)
                    assert len(await publishing) == 800
                    async with stranger(server) as other:
                        assert [payload for payload, _ in await other.stored("n-killed-open")] == list(range(-1, 800))

    asyncio.run(test())


def test_a_stream_without_it_gets_messages_confirmed_one_by_one(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with stranger(server) as other:
            await other.ask("STREAM.CREATE.theirs", name="theirs", subjects=["plain.>"], allow_direct=True)
            with caplog.at_level(logging.INFO, "trunkline.connection"):
                async with tl.connect(server.url, connection=settings("plain")) as bus:
                    await other.watch("plain.>")
                    await bus.publish_many("plain.a", range(100))
                    await bus.publish_many("plain.b", range(100, 200))
            assert [payload for payload, _ in await other.stored("theirs")] == list(range(200))
            assert await other.fast() == 0
            assert caplog.text.count("has no allow_batched: messages are confirmed one by one") == 1

    asyncio.run(test())


def test_a_stream_that_ceases_to_offer_it_gets_the_rest_one_by_one(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        async with stranger(server) as other, tl.connect(server.url, connection=settings("ceases")) as bus:
            await bus.publish_many("ceases.a", range(10))
            found = await other.ask("STREAM.INFO.n-ceases-open")
            assert found["config"]["allow_batched"]
            await other.ask("STREAM.UPDATE.n-ceases-open", **{**found["config"], "allow_batched": False})
            await bus.publish_many("ceases.a", range(10, 20))
            await bus.publish_many("ceases.a", range(20, 30))
            assert [payload for payload, _ in await other.stored("n-ceases-open")] == list(range(30))
        assert caplog.text.count("no longer has allow_batched") == 1

    asyncio.run(test())


@pytest.mark.parametrize("fast", [True, False])
def test_what_the_stream_refuses_is_an_error_for_that_message_alone(server: NatsServer, fast: bool) -> None:
    async def test() -> None:
        name = f"refuses{int(fast)}"
        async with stranger(server) as other:
            await other.ask(
                f"STREAM.CREATE.{name}",
                name=name,
                subjects=[f"{name}.>"],
                max_msg_size=2000,
                allow_direct=True,
                allow_batched=fast,
            )
            async with tl.connect(server.url, connection=settings(name)) as bus:
                payloads = ["x" * (3000 if number in (0, 7, 8, 19) else 10) for number in range(20)]
                with pytest.raises(tl.PartlyRefused) as refused:
                    await bus.publish_many(f"{name}.a", payloads)
                assert [len(message.decode()) for message, _ in refused.value.refused] == [3000] * 4
                stored = await other.stored(name)
                assert [payload for payload, _ in stored] == ["x" * 10] * 16
                places = [int(headers["trunkline-place"].rpartition("-")[2]) for _, headers in stored]
                assert places == [number for number in range(20) if number not in (0, 7, 8, 19)]
                with pytest.raises(tl.NotStored, match="maximum"):
                    await bus.publish(f"{name}.a", "x" * 3000)
                await bus.publish(f"{name}.a", "y")
                assert (await other.stored(name))[-1][0] == "y"

    asyncio.run(test())


def test_headers_count_in_what_the_server_takes(tmp_path: Path) -> None:
    """In JSON a payload may be larger, and a server closes the connection of a client that sends too much."""

    async def test() -> None:
        with NatsServer(tmp_path, extra="max_payload: 4KB") as small:
            async with tl.connect(small.url, connection=settings("large")) as bus:
                with pytest.raises(tl.NotStored, match="with its headers"):
                    await bus.publish("large.a", [False] * 1000)
                await bus.publish("large.a", "y")
                assert bus.broker.adapter.driver.why == ""  # type: ignore[attr-defined]

    asyncio.run(test())


def test_a_header_cannot_bring_others_along(server: NatsServer) -> None:
    async def test() -> None:
        async with stranger(server) as other, tl.connect(server.url, connection=settings("lines")) as bus:
            await bus.publish("lines.a", 1, correlation_id="a\r\nNats-Rollup: all\r\n\r\nb")
            ((payload, headers),) = await other.stored("n-lines-open")
            assert payload == 1
            assert headers["ce-correlationid"].startswith("a Nats-Rollup: all")
            assert "Nats-Rollup" not in headers

    asyncio.run(test())


def test_part_of_a_stream_and_places_on_open_topics_are_refused(server: NatsServer) -> None:
    async def test() -> None:
        async with stranger(server) as other:
            await other.ask("STREAM.CREATE.part", name="part", subjects=["part.a"])
            with pytest.raises(tl.InvalidSettings, match=r"the stream part at .* stores a part"):
                async with tl.connect(server.url, connection=settings("part")) as bus:
                    await bus.publish("part.a", 1)
        async with tl.connect(server.url, connection=settings("places")) as bus:
            await bus.publish("places.a", 1)
            with pytest.raises(tl.Unsupported, match="open topic"):
                async with bus.subscribe("places.a", durable=True, name="d"):
                    pass
            with pytest.raises(tl.Unsupported, match="open topic"):
                async with bus.subscribe("places.*", group="g"):
                    pass
            with pytest.raises(tl.TopicNotStored):
                await bus.last("places.a")

    asyncio.run(test())
