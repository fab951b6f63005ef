"""What remote brokers share, on an adapter without a hub or a wire, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

import trunkline as tl
from tests.brokers.loopback import LoopbackBroker, LoopbackServer
from trunkline.testing import Simulation, simulate, world

Play = Callable[[LoopbackServer, LoopbackBroker, LoopbackBroker], Awaitable[None]]


def play(
    act: Play,
    *,
    window: int = 1000,
    window_bytes: int = 1 << 26,
    timeout_s: float = 5.0,
    max_inbox_bytes: int = 1 << 26,
) -> None:
    """With a server, a broker for a publisher, and one for a subscriber."""

    async def run(simulation: Simulation) -> None:
        server = LoopbackServer(window=window, window_bytes=window_bytes)
        settings = tl.Settings(backpressure=tl.Backpressure(timeout_s=timeout_s))
        publisher = LoopbackBroker(server, world(simulation), settings, origin=1)
        subscriber = LoopbackBroker(server, world(simulation), settings, origin=2, max_inbox_bytes=max_inbox_bytes)
        await publisher.adapter.ready()
        await subscriber.adapter.ready()
        await act(server, publisher, subscriber)
        await publisher.aclose()
        await subscriber.aclose()

    simulate(run)


def message(topic: str, payload: bytes) -> tl.Message:
    return tl.Message(topic=topic, payload=payload)


async def publish(broker: LoopbackBroker, topic: str, *payloads: bytes) -> None:
    for payload in payloads:
        await broker.publish([message(topic, payload)])
        # A batch each: without this, those of one turn would travel together.
        broker.shared.outbox.send_topic(topic)


def texts(stream: tl.Stream) -> list[bytes]:
    found = []
    while True:
        try:
            found.append(bytes(stream.try_recv().payload))
        except tl.StreamEmpty:
            return found


def numbers(first: int, last: int) -> list[bytes]:
    return [str(number).encode() for number in range(first, last)]


def test_what_is_published_arrives_in_order_and_its_fates_are_reported() -> None:
    async def act(server: LoopbackServer, publisher: LoopbackBroker, subscriber: LoopbackBroker) -> None:
        async with subscriber.subscribe("t") as stream:
            await publish(publisher, "t", *numbers(0, 100))
            assert texts(stream) == numbers(0, 100)
            assert stream.account().delivered == 100
            await asyncio.sleep(1)
            reported = subscriber.adapter.reports
            assert sum(row.last - row.first + 1 for row in reported) == 100
            assert {row.fate for row in reported} == {tl.Fate.DELIVERED}

    play(act)


def test_a_lone_publish_is_sent_at_once_and_a_burst_travels_together() -> None:
    async def act(server: LoopbackServer, publisher: LoopbackBroker, subscriber: LoopbackBroker) -> None:
        async def put(*payloads: bytes) -> list[list[bytes]]:
            """The frames that were sent when these are published, before the iteration ends."""
            server.batches.clear()
            for payload in payloads:
                await publisher.publish([message("t", payload)])
            return list(server.batches)

        async def turn_ends() -> list[list[bytes]]:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            return server.batches

        await put(b"asks what the topic is")
        await turn_ends()
        for _ in range(3):
            assert await put(b"1") == [[b"1"]], "it waits for nothing"
            await turn_ends()
        assert await put(b"1", b"2", b"3") == [[b"1"]]
        assert await turn_ends() == [[b"1"], [b"2", b"3"]]
        for _ in range(3):
            assert await put(b"1", b"2") == []
            assert await turn_ends() == [[b"1", b"2"]], "after a burst, the first of the next one waits for the others"
        assert await put(b"1") == []
        assert await turn_ends() == [[b"1"]]
        assert await put(b"1") == [[b"1"]]
        await turn_ends()
        server.batches.clear()
        for number in (b"1", b"2", b"3"):
            await publisher.publish([message("t", number)])
        await publisher.publish([tl.Message(topic="t", payload=b"!", priority=90)])
        await publisher.publish([message("t", b"4")])
        assert server.batches == [[b"1"], [b"2", b"3"], [b"!"]], "what is urgent waits for nothing either"
        assert (await turn_ends())[-1] == [b"4"]

    play(act)


def test_an_unconfirmed_durable_batch_is_sent_again_and_stored_once() -> None:
    async def act(server: LoopbackServer, publisher: LoopbackBroker, subscriber: LoopbackBroker) -> None:
        server.confirms = False
        publishing = [asyncio.ensure_future(publish(publisher, "d.t", b"stored")) for _ in range(3)]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in publishing)
        server.cut()
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in publishing), "they wait through the reconnection"
        server.confirms = True
        publisher.adapter.open()
        await asyncio.gather(*publishing)
        assert server.resent == 1, "they share a batch"
        assert len(server.stored["d.t"]) == 3, "what was sent again is stored once"
        assert not publisher.shared.outbox.lost_messages

    play(act)


def test_unconfirmed_plain_batches_are_reported_as_lost() -> None:
    async def act(server: LoopbackServer, publisher: LoopbackBroker, subscriber: LoopbackBroker) -> None:
        lost: list[tuple[bytes, Exception]] = []
        publisher.on_lost(lambda batch, error: lost.extend((bytes(each.payload), error) for each in batch))
        await publish(publisher, "t", b"confirmed")
        server.confirms = False
        await publish(publisher, "t", b"a", b"b")
        await publisher.flush()
        server.cut()
        assert [payload for payload, _ in lost] == [b"a", b"b"]
        assert all(isinstance(error, tl.NotConfirmed) for _, error in lost)
        assert publisher.shared.outbox.lost_messages == 2
        assert publisher.lane("t").in_flight == 0

    play(act)


def test_what_is_published_without_a_connection_waits_for_one() -> None:
    async def act(server: LoopbackServer, publisher: LoopbackBroker, subscriber: LoopbackBroker) -> None:
        async with subscriber.subscribe("t") as stream:
            await publish(publisher, "t", b"0")
            publisher.adapter.cut()
            await publish(publisher, "t", b"1", b"2")
            await asyncio.sleep(1)
            assert texts(stream) == [b"0"]
            publisher.adapter.open()
            await publisher.flush()
            assert texts(stream) == [b"1", b"2"]

    play(act)


def test_a_subscriber_counts_what_it_missed() -> None:
    async def act(server: LoopbackServer, publisher: LoopbackBroker, subscriber: LoopbackBroker) -> None:
        async with subscriber.subscribe("t") as stream:
            await publish(publisher, "t", *numbers(0, 3))
            subscriber.adapter.cut()
            await publish(publisher, "t", *numbers(3, 8))
            await publisher.flush()
            subscriber.adapter.open()
            await publish(publisher, "t", b"8")
            await publisher.flush()
            assert texts(stream) == [*numbers(0, 3), b"8"]
            assert subscriber.shared.missed == 5
            account = stream.account()
            assert (account.accepted, account.delivered, account.dropped) == (9, 4, 5)

    play(act)


def test_no_more_is_delivered_than_there_is_credit_for() -> None:
    async def act(server: LoopbackServer, publisher: LoopbackBroker, subscriber: LoopbackBroker) -> None:
        async with subscriber.subscribe("t", tl.Delivery(capacity=8)) as stream:
            await publish(publisher, "t", *numbers(0, 50))
            await publisher.flush()
            assert stream.depth == 8
            assert stream.account().accepted == 8
            got: list[bytes] = []
            while len(got) < 50:
                got += texts(stream)
                assert stream.depth <= 8
                await asyncio.sleep(0)
            assert got == numbers(0, 50)

    play(act)


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("capacity", [1, 5, 100])
def test_taking_without_waiting_gives_credit_at_once(capacity: int, group: str | None) -> None:
    """No virtual time passes: nothing waits for a timer."""

    async def act(server: LoopbackServer, publisher: LoopbackBroker, subscriber: LoopbackBroker) -> None:
        loop = asyncio.get_running_loop()
        async with subscriber.subscribe("t", tl.Delivery(capacity=capacity, group=group)) as stream:
            await publish(publisher, "t", *numbers(0, 400))
            await publisher.flush()
            began = loop.time()
            got: list[bytes] = []
            while len(got) < 400:
                got += texts(stream)
                await asyncio.sleep(0)
            assert got == numbers(0, 400)
            assert loop.time() - began < 0.01

    play(act)


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("take", ["recv", "try_recv", "iterate", "batches"])
def test_an_inbox_is_bounded_in_bytes(take: str, group: str | None) -> None:
    """A slow subscriber to large messages: a few are here, the others wait at the broker, and none is lost."""
    size, limit, count = 1_000_000, 8_000_000, 60

    async def act(server: LoopbackServer, publisher: LoopbackBroker, subscriber: LoopbackBroker) -> None:
        async with subscriber.subscribe("t", tl.Delivery(group=group)) as stream:
            await publish(publisher, "t", *[bytes(size)] * count)
            await publisher.flush()
            got = largest = 0
            async for taken in taking(stream, take):
                got += taken
                largest = max(largest, stream.depth)
                await asyncio.sleep(0.005)
                if got == count:
                    break
            assert largest <= limit // size + 1
            assert largest > 1, "it is filled ahead of its subscriber"
            assert stream.account().dropped == 0

    play(act, max_inbox_bytes=limit)


async def taking(stream: tl.Stream, how: str) -> AsyncIterator[int]:
    match how:
        case "recv":
            while await stream.recv() is not None:
                yield 1
        case "try_recv":
            while True:
                try:
                    stream.try_recv()
                    yield 1
                except tl.StreamEmpty:
                    await asyncio.sleep(0)
        case "iterate":
            async for _ in stream:
                yield 1
        case "batches":
            async for batch in stream.batches(3):
                yield len(batch)


def test_a_message_larger_than_the_limit_passes() -> None:
    async def act(server: LoopbackServer, publisher: LoopbackBroker, subscriber: LoopbackBroker) -> None:
        async with subscriber.subscribe("t") as stream:
            await publish(publisher, "t", bytes(500_000), b"small", bytes(600_000), b"last")
            await publisher.flush()
            sizes: list[int] = []
            while len(sizes) < 4:
                taken = await stream.recv()
                assert taken is not None
                sizes.append(len(taken.payload))
            assert sizes == [500_000, 5, 600_000, 4]

    play(act, max_inbox_bytes=100_000)


async def flood(broker: LoopbackBroker, payload: bytes) -> int:
    """Publish until there is no room. Returns the number of messages."""
    published = 0
    try:
        while True:
            await publish(broker, "t", payload)
            published += 1
    except tl.BackpressureTimeout:
        return published


def test_a_publisher_runs_ahead_by_a_window_of_messages() -> None:
    async def act(server: LoopbackServer, publisher: LoopbackBroker, subscriber: LoopbackBroker) -> None:
        server.confirms = False
        assert await flood(publisher, b"x") == 100
        server.confirm_all()
        await publish(publisher, "t", b"goes on")
        assert publisher.lane("t").in_flight == 1

    play(act, window=100, timeout_s=1.0)


def test_a_publisher_runs_ahead_by_a_window_of_bytes() -> None:
    async def act(server: LoopbackServer, publisher: LoopbackBroker, subscriber: LoopbackBroker) -> None:
        server.confirms = False
        assert await flood(publisher, bytes(100_000)) == 10
        server.confirm_all()
        await publish(publisher, "t", b"goes on")

    play(act, window_bytes=1_000_000, timeout_s=1.0)


def test_a_cancelled_publisher_leaves_nothing_behind() -> None:
    async def act(server: LoopbackServer, publisher: LoopbackBroker, subscriber: LoopbackBroker) -> None:
        server.confirms = False
        await publish(publisher, "t", *numbers(0, 10))
        waits = asyncio.ensure_future(publish(publisher, "t", b"for room"))
        stored = asyncio.ensure_future(publish(publisher, "d.t", b"for confirmation"))
        await asyncio.sleep(0.1)
        for task in (waits, stored):
            task.cancel()
        await asyncio.gather(waits, stored, return_exceptions=True)
        assert len(server.withdrawn) == 1, "the broker is told that nobody waits"
        lane = publisher.lane("t")
        assert not lane.waiting
        assert lane.in_flight == 10
        server.confirms = True
        server.confirm_all()
        assert lane.in_flight == 0
        await publish(publisher, "t", b"goes on")

    play(act, window=10)


def test_a_member_handles_each_message_once_over_reconnections() -> None:
    async def act(server: LoopbackServer, publisher: LoopbackBroker, subscriber: LoopbackBroker) -> None:
        handled: list[bytes] = []
        async with subscriber.subscribe("t", tl.Delivery(group="g", ack=True)) as stream:
            await publish(publisher, "t", *numbers(0, 20))
            await publisher.flush()
            for number in range(20):
                taken = await stream.recv()
                assert taken is not None
                handled.append(bytes(taken.payload))
                if number % 5 == 4:
                    # Acknowledged, but the broker does not get to know before the connection ends.
                    stream.ack(taken)
                    subscriber.adapter.cut()
                    subscriber.adapter.open()
                else:
                    stream.ack(taken)
                await asyncio.sleep(0)
            assert handled == numbers(0, 20)
            assert stream.account().delivered == 20
            await asyncio.sleep(0.1)
            assert stream.depth == 0
            assert not next(iter(subscriber.adapter.openings.values())).unacknowledged

    play(act)
