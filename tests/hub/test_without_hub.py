"""A bus at the address of a hub: before it starts, while it is down, and the state of its connection."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

import trunkline as tl
from tests.hub.hubs import Place, directory_of, received, until
from trunkline.errors import BusClosed, HubUnavailable, StreamClosed, StreamEmpty
from trunkline.testing import Simulation, world
from trunkline.transports.pair import PairTransport
from trunkline.transports.transport import Wire
from trunkline.wire import frames


def metrics_of(bus: tl.Bus) -> Any:
    assert isinstance(bus.broker, tl.HubBroker)
    return bus.broker.metrics()


@pytest.mark.parametrize("there", [False, True])
async def test_opening_and_closing_work_twice_with_a_hub_and_without(simulation: Simulation, there: bool) -> None:
    place = Place(world(simulation))
    if there:
        await place.start()
    for _ in range(2):
        bus = place.bus("twice")
        async with bus:
            if there:
                await bus.publish("t")
                await bus.flush()
                assert metrics_of(bus).live
            async with bus:
                pass
        assert await bus.aclose() == []
        assert await bus.aclose() == []
        assert not metrics_of(bus).live
        with pytest.raises(BusClosed):
            await bus.publish("t")
    # One that was never used has nothing to close.
    assert await place.bus("unused").aclose() == []
    if there:
        await until(lambda: not place.hub.sessions, "the hub has nobody")
        await place.stop()


async def test_without_a_hub_sending_and_receiving_fail_in_time_and_leave_nothing(simulation: Simulation) -> None:
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    place = Place(world(simulation))
    async with place.bus("alone") as bus:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: bus.publish("t", 1),
            lambda: bus.publish_many("t", [1, 2]),
            lambda: bus.send("agent", 1),
            lambda: bus.broadcast(1),
            lambda: bus.request("t", 1, timeout_s=100),
            lambda: bus.try_request("t", timeout_s=1),
            lambda: bus.subscribe("t").open(),
            lambda: bus.last("t"),
        ]
        for call in calls:
            begun = simulation.now()
            with pytest.raises(HubUnavailable, match='start one with "trunkline up --listen pair:'):
                await call()
            assert simulation.now() - begun <= 5.1
        await bus.flush()
        assert "no hub at" in str(await bus.explain("nothing"))
        stream = bus.broker.subscribe("t")
        with pytest.raises(StreamEmpty):
            stream.try_recv()
        with pytest.raises(StreamEmpty):
            await stream.recv(timeout_s=1)
        # When the hub comes, the subscription that waited for it is made, and nothing old is sent.
        await place.start()
        await stream.opened()
        await bus.publish("t", "first")
        assert await received(stream) == "first"
        await stream.aclose()
        with pytest.raises(StreamClosed):
            stream.try_recv()
        stats = bus.stats()
        assert (stats.total_messages, stats.open_requests, stats.subscribers, stats.pending) == (1, 0, 0, 0)
        assert await directory_of(bus).discover_producer("t") is None
    await place.stop()
    gc.collect()
    assert unheard == []


async def test_what_the_connection_tells_adds_up(simulation: Simulation) -> None:
    place = Place(world(simulation))
    async with place.bus("one") as bus:
        before = metrics_of(bus)
        assert (before.live, before.connects, before.bytes_in, before.bytes_out) == (False, 0, 0, 0)
        with pytest.raises(HubUnavailable):
            await bus.publish("t")
        assert metrics_of(bus).last_failure == f"nothing listens at {place.address}"
        await place.start()
        await place.back(bus)
        async with bus.subscribe("t") as messages:
            await bus.publish_many("t", range(10))
            await bus.flush()
            for number in range(10):
                assert await received(messages) == number
            there = metrics_of(bus)
            assert (there.url, there.live, there.connects, there.last_failure) == (place.address, True, 1, "")
            assert (there.published, there.delivered, there.lost, there.missed) == (10, 10, 0, 0)
            assert (there.waiting, there.backlog_bytes, there.malformed) == (0, 0, 0)
            assert there.bytes_in > 10
            assert there.bytes_out > 10
            # What is no JSON, and no message, is skipped and counted.
            for session in place.hub.sessions.values():
                session.wire.send([(frames.control(b"{no json"),), (frames.control(b'{"type": "SURPRISE"}'),)])
            await until(lambda: metrics_of(bus).malformed == 2, "both were skipped")
            place.cut()
            await until(lambda: not metrics_of(bus).live, "the connection is lost")
            assert metrics_of(bus).last_failure
            await place.back(bus)
            await bus.publish("t", "again")
            assert await received(messages) == "again"
            await bus.flush()
            after = metrics_of(bus)
            assert (after.live, after.connects, after.published, after.delivered) == (True, 2, 11, 11)
            assert after.bytes_in > there.bytes_in
            assert after.bytes_out > there.bytes_out
    assert not metrics_of(bus).live
    await place.stop()


async def test_pauses_between_attempts_grow_to_their_limit_and_begin_again(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []
    connect = PairTransport.connect

    async def counted(self: PairTransport, *given: Any, **options: Any) -> Wire:
        attempts.append(simulation.now())
        return await connect(self, *given, **options)

    monkeypatch.setattr(PairTransport, "connect", counted)
    place = Place(world(simulation))

    # The first pause comes before the first attempt.
    expected = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    async with place.bus("patient", backoff_s=0.05) as bus:
        await place.start()
        await bus.publish("t")
        for _ in range(2):
            attempts.clear()
            await place.stop()
            await until(lambda: len(attempts) > len(expected), "it has tried so often")
            for (earlier, later), limit_s in zip(pairwise(attempts), expected, strict=True):
                assert limit_s / 2 <= later - earlier <= limit_s + 1e-6, attempts
            await place.start()
            await place.back(bus)
    await place.stop()
