"""A batch that the hub cannot read: its publisher gets an error, and does not wait for ever."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import trunkline as tl
from tests.hub.attacks import Attacker
from tests.hub.hub_process import RunningHub, running_hub
from tests.hub.hubs import Place, connection_of, received, until
from tests.hub.lines import Line, listen
from trunkline.delivery.batch import Batch, BatchBody
from trunkline.errors import Refused
from trunkline.testing import Simulation, world
from trunkline.wire import frames
from trunkline.wire.frames import PREFIX, Kind, PublishHead

Encode = Callable[[PublishHead, bytes], bytes]


def with_head(head: Any, body: bytes) -> bytes:
    data = msgspec.msgpack.encode(head)
    return PREFIX.pack(Kind.PUBLISH, len(data)) + data + body


def long_lived(head: PublishHead, body: bytes) -> bytes:
    return with_head(msgspec.structs.replace(head, ttl_s=-1.0), body)


def of_another_type(head: PublishHead, body: bytes) -> bytes:
    return with_head([head.number, {"no": "topic"}, head.count], body)


def cut_short(head: PublishHead, body: bytes) -> bytes:
    return with_head(head, b"")


DAMAGES: dict[Encode, str] = {
    long_lived: "ttl of -1",
    of_another_type: "not the head of a publish frame",
    cut_short: "are not 1 message",
}


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Encode:
    """Messages on `bad` are sent damaged."""
    encode: Encode = request.param
    well = frames.publish
    monkeypatch.setattr(frames, "publish", lambda head, body: (encode if head.topic == "bad" else well)(head, body))
    return encode


damaged = pytest.mark.parametrize("damage", DAMAGES, indirect=True)


@asynccontextmanager
async def meeting(simulation: Simulation, folder: str | None = None) -> AsyncIterator[tuple[Place, tl.Bus, tl.Bus]]:
    place = Place(world(simulation), None if folder is None else Path(folder))
    await place.start()
    async with place.bus("publisher") as publisher, place.bus("subscriber") as subscriber:
        yield place, publisher, subscriber
    await place.stop()


def on_their_way(bus: tl.Bus) -> int:
    assert isinstance(bus.broker, tl.HubBroker)
    return bus.broker.metrics().waiting


@damaged
async def test_who_does_not_wait_is_told_afterwards(simulation: Simulation, damage: Encode) -> None:
    async with meeting(simulation) as (_, publisher, subscriber), subscriber.subscribe("*") as messages:
        lost = await publisher.publish("bad", 1)
        await publisher.publish("good", 2)
        await publisher.flush()
        assert await received(messages) == 2
        assert on_their_way(publisher) == 0
        assert publisher.stats().total_refused == 1
        told = str(await publisher.explain(lost))
        assert "the hub refused it" in told
        assert DAMAGES[damage] in told


@damaged
async def test_who_waits_gets_the_error_at_once(simulation: Simulation, damage: Encode) -> None:
    async with (
        meeting(simulation) as (place, publisher, subscriber),
        subscriber.subscribe("*", overflow="reject", capacity=10) as messages,
    ):
        await publisher.publish("good", 1)
        began = simulation.now()
        with pytest.raises(Refused, match=f"the hub refused it: .*{DAMAGES[damage]}"):
            await publisher.publish("bad", 2)
        assert simulation.now() - began < 1.0
        await publisher.publish("good", 3)
        assert [await received(messages) for _ in range(2)] == [1, 3]
        assert on_their_way(publisher) == 0
        assert place.hub.counts["malformed"] == 1


@damaged
async def test_a_durable_one_is_not_sent_again_and_again(simulation: Simulation, damage: Encode) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with meeting(simulation, folder) as (place, publisher, _):
            with pytest.raises(Refused, match=DAMAGES[damage]):
                await publisher.publish("bad", 1)
            place.cut("publisher")
            await until(lambda: not connection_of(publisher).live, "it knows that it is alone")
            await place.back(publisher)
            await publisher.publish("good", 2)
            assert place.hub.counts["malformed"] == 1


async def test_where_the_hub_itself_fails_the_publisher_is_told(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        meeting(simulation) as (place, publisher, subscriber),
        subscriber.subscribe("*", overflow="reject", capacity=10) as messages,
    ):
        well = place.hub.directory.check

        def fail(batch: Batch) -> Batch | None:
            if batch.topic == "bad":
                raise ZeroDivisionError
            return well(batch)

        place.hub.directory.check = fail  # type: ignore[method-assign]
        with pytest.raises(Refused, match="the hub failed to handle this"):
            await publisher.publish("bad", 1)
        await publisher.publish("good", 2)
        assert await received(messages) == 2
        assert place.hub.counts["internal_errors"] == 1
        assert "ZeroDivisionError" in caplog.text


async def test_where_the_hub_fails_at_a_batch_that_nothing_holds_up_the_publisher_is_told(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    async with meeting(simulation) as (place, publisher, subscriber), subscriber.subscribe("*") as messages:
        await publisher.publish("bad", 1)
        await publisher.publish("good", 2)
        assert [await received(messages) for _ in range(2)] == [1, 2]
        well = place.hub.broker.take_straight

        def fail(head: PublishHead, body: BatchBody, origin: int) -> int:
            if head.topic == "bad":
                raise ZeroDivisionError
            return well(head, body, origin)

        place.hub.broker.take_straight = fail  # type: ignore[method-assign]
        await publisher.publish("bad", 3)
        await publisher.publish("good", 4)
        assert await received(messages) == 4
        await publisher.flush()
        assert publisher.stats().total_refused == 1, "its publisher did not wait, and is told afterwards"
        assert place.hub.counts["internal_errors"] == 1
        assert "ZeroDivisionError" in caplog.text


async def heard(line: Line) -> dict[str, Any]:
    while (told := await line.hear())["type"] == "HEARTBEAT":
        pass
    return told


def test_what_the_hub_says_of_a_batch_it_cannot_read(tmp_path: Path) -> None:
    """With its number, if that can be read. The connection stays."""

    async def main(hub: RunningHub) -> None:
        line = await Line.open(hub)
        line.send(Attacker(1).hello())
        await line.hear_answer(1)
        unreadable = PREFIX.pack(Kind.PUBLISH, 1000) + b"\x99"
        for frame, batch in (
            (long_lived(PublishHead(7, "t", 1), bytes(8)), 7),
            (with_head([8], b""), 8),
            (with_head(["eight"], b""), None),
            (with_head([-3, "t", 1], b""), None),
            (with_head([True, "t", 1], b""), None),
            (with_head({"number": 9}, b""), None),
            (unreadable, None),
            (bytes([Kind.PUBLISH]), None),
        ):
            line.send(frame)
            answer = await heard(line)
            assert (answer["type"], answer["code"], answer.get("batch")) == ("ERROR", "malformed", batch)
        line.send(frames.publish(PublishHead(1, "t", 1), bytes(8)))
        assert (await heard(line))["type"] == "TAKEN"
        line.send(frames.publish(PublishHead(1, "t", 1), bytes(8)))
        answer = await heard(line)
        assert (answer["code"], answer["batch"]) == ("out_of_order", 1)
        await line.close()

    with running_hub(tmp_path, listen=listen(tmp_path)) as hub:
        asyncio.run(main(hub))
        hub.end()
