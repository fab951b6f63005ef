"""Open topics on Redis: programs without Trunkline read and write them, each message on its own, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis

import trunkline as tl
from tests.brokers.redis_buses import adapter_of, broker_of, bus_at, run
from tests.brokers.redis_servers import KINDS, RedisServer
from trunkline.brokers.redis import open_events

CHANNEL = "actor-messages"


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(request.param, tmp_path) as running:
        yield running


def test_the_channel_actor_messages_has_json_bytes(server: RedisServer) -> None:
    async def test() -> None:
        async with (
            Redis(port=server.port) as stranger,
            stranger.pubsub() as heard,
            bus_at(server, "me", open=(CHANNEL,)) as bus,
            bus.subscribe(CHANNEL) as stream,
        ):
            await heard.subscribe(CHANNEL)
            assert (await heard.get_message(timeout=30))["type"] == "subscribe"
            sent = await bus.publish(CHANNEL, {"actor": "a1", "action": "start"})
            message = await heard.get_message(timeout=30)
            event = json.loads(message["data"])
            assert event["data"] == {"actor": "a1", "action": "start"}
            assert (event["id"], event["source"], event["specversion"]) == (sent, "me", "1.0")
            assert event["datacontenttype"] == "application/json"
            own = await stream.recv()
            assert own is not None
            assert (own.id, own.sender, own.decode()) == (sent, "me", {"actor": "a1", "action": "start"})
            fates = [(each.subscriber, each.fate) for each in (await bus.explain(sent)).outcomes]
            assert fates == [(stream.name, tl.Fate.DELIVERED)]

            # What a program without Trunkline sends is a message like all others: an event, or any JSON.
            await stranger.publish(CHANNEL, b'{"actor": "a2"}')
            await stranger.publish(CHANNEL, b'{"specversion": "1.0", "id": "x", "source": "s", "data": [1, 2]}')
            theirs, event_of_theirs = await stream.recv(), await stream.recv()
            assert theirs is not None
            assert theirs.decode() == {"actor": "a2"}
            assert theirs.id
            assert event_of_theirs is not None
            assert (event_of_theirs.id, event_of_theirs.sender, event_of_theirs.decode()) == ("x", "s", [1, 2])

    run(test())


def test_a_wildcard_gets_open_topics_and_the_others(server: RedisServer) -> None:
    async def test() -> None:
        async with bus_at(server, open=("orders.>",), durable=(">",)) as bus, bus.subscribe(">") as stream:
            await bus.publish_many("orders.placed", [1, 2, 3])
            await bus.publish("plain", 4)
            got = [message.decode() for _ in range(4) if (message := await stream.recv()) is not None]
            assert sorted(got) == [1, 2, 3, 4]
            await bus.flush()
            assert stream.depth == 0
            assert adapter_of(bus).malformed == 0
            assert server.cli("EXISTS", "{tl}:s:orders.placed") == "0"

    run(test())


def test_a_payload_that_is_not_json_travels_as_text(server: RedisServer) -> None:
    async def test() -> None:
        async with bus_at(server, open=("raw",), open_format="raw") as bus, bus.subscribe("raw") as stream:
            await bus.publish("raw", bytes(range(256)))
            message = await stream.recv()
            assert message is not None
            assert message.payload == bytes(range(256))
            assert message.content_type == "application/octet-stream"

    run(test())


def test_a_burst_keeps_its_order_and_is_confirmed(server: RedisServer) -> None:
    async def test() -> None:
        async with bus_at(server, open=("t",)) as bus, bus.subscribe("t") as stream:
            for number in range(2000):
                await bus.publish("t", number)
            await bus.flush()
            got = [message.decode() for _ in range(2000) if (message := await stream.recv()) is not None]
            assert got == list(range(2000))
            outbox = broker_of(bus).shared.outbox
            assert all(lane.in_flight == 0 for lane in outbox.lanes.values())

    run(test())


@given(st.binary(max_size=80) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_read(data: bytes) -> None:
    payload, headers = open_events.read(data)
    assert isinstance(payload, bytes)
    assert all(isinstance(value, str) for value in headers.values())


@given(st.binary(max_size=80), st.sampled_from(["application/octet-stream", "application/msgpack"]))
def test_what_was_written_is_read(payload: bytes, content_type: str) -> None:
    headers = {"ce-specversion": "1.0", "ce-id": "a", "ce-source": "b", "content-type": content_type}
    assert open_events.read(open_events.write(payload, headers)) == (payload, headers)
