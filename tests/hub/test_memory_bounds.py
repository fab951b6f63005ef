"""What a hub keeps of clients that came and went, and of topics that nobody uses any more, is bounded."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

import trunkline as tl
from tests.hub.hubs import Place
from trunkline.brokers.memory import MemoryBroker
from trunkline.clock import World
from trunkline.delivery import books, subscribers
from trunkline.delivery.books import MAX_ROWS_LEFT, Books, Leaver
from trunkline.delivery.fates import Fate
from trunkline.delivery.outlet import Outlet
from trunkline.delivery.subscribers import Subscribers
from trunkline.hub import answers
from trunkline.hub.leavers import MAX_LEFT, Leavers
from trunkline.hub.session import Session
from trunkline.testing import simulate, world


def _alive(kind: type) -> int:
    gc.collect()
    return sum(isinstance(each, kind) for each in gc.get_objects())


def test_nothing_holds_sessions_and_subscriptions_of_clients_that_left() -> None:
    """Each has a reply topic of its own, which nobody uses again; every second one loses its connection."""
    clients = 20

    async def act(simulation: Any) -> None:
        place = Place(world(simulation))
        await place.start()
        before = _alive(Session), _alive(Outlet)
        async with place.bus("server") as server:

            @server.on("price")
            async def price(number: int) -> int:
                return number

            for number in range(clients):
                async with place.bus(f"client-{number}") as bus, bus.subscribe(f"news.{number}") as news:
                    assert await bus.request("price", number) == number
                    await bus.publish(f"news.{number}", number)
                    assert (await news.recv()) is not None
                    if number % 2:
                        place.cut(bus.name)
            # The timers of their sessions.
            await asyncio.sleep(3600)
            assert _alive(Session) - before[0] <= 2, "that of the server, and the last one"
            assert _alive(Outlet) - before[1] < clients / 2
            counts = place.hub.broker.published_by_topic()
            assert {f"news.{number}" for number in range(clients)} <= counts.keys(), "what was published is counted"
        await place.stop()

    simulate(act)


def test_topics_used_once_are_forgotten_beyond_the_limit() -> None:
    async def act(simulation: Any) -> None:
        broker = MemoryBroker(world(simulation), tl.Settings(max_topics=100))
        for number in range(1000):
            broker.resolve(f"once.{number}").published += 1
            if number % 30 == 0:
                await broker.subscribe("once.*").aclose()
            assert len(broker.tree.routes) + len(broker.tree._published) <= 100
        assert len(broker.published_by_topic()) == 100
        broker.forget_route("once.999")
        assert broker.resolve("once.999").published == 1
        await broker.aclose()

    simulate(act)


def _leaver(name: str, rows: int) -> Leaver:
    kept = Books(books.MAX_ROWS)
    for number in range(rows):
        kept.accepted += 1
        kept.end(2 * number + 1, 2 * number + 1, Fate.DROPPED, "why", number)
    return Leaver(name, "t", kept)


def test_leavers_are_bounded_in_all_their_rows() -> None:
    left = Leavers()
    rows = books.MAX_ROWS
    most = MAX_ROWS_LEFT // rows
    for origin in range(1, 2 * most):
        left.put(origin, 1, _leaver("s", rows))
    kept = [origin for origin in range(1, 2 * most) if left.take(origin, 1, "t") is not None]
    assert kept == list(range(most, 2 * most))
    for origin in range(1, 2 * MAX_LEFT):
        left.put(origin, 1, _leaver("s", 1))
    assert left.take(MAX_LEFT - 1, 1, "t") is None
    assert left.take(MAX_LEFT, 1, "t") is not None


def test_a_broker_bounds_the_rows_of_those_who_left_and_counts_them_for_ever() -> None:
    found = Subscribers(World(), tl.Settings())
    rows = books.MAX_ROWS
    count = 2 * MAX_ROWS_LEFT // rows
    assert count < subscribers.KEPT_LEAVERS
    for number in range(count):
        leaver = _leaver(f"s{number}", rows)
        found.admit(leaver)
        found.dismiss(leaver)
    message = tl.Message(topic="t", seq=1)
    assert len(found.outcomes(message)) == MAX_ROWS_LEFT // rows
    assert found.accounts()[subscribers.DEPARTED].dropped == count * rows


def test_members_of_groups_at_a_hub_keep_fewer_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are exact: each delivery has a row, unless it follows another within a second."""

    async def act(simulation: Any) -> None:
        place = Place(world(simulation))
        await place.start()
        async with place.bus() as bus, bus.subscribe("t", group="g") as stream:
            for number in range(80):
                await bus.publish("t", number)
                assert (await stream.recv()) is not None
                await asyncio.sleep(2.0)
            (inbox,) = place.hub.broker.served
            assert (inbox.books.size, inbox.books.delivered) == (50, 80)
        await place.stop()

    monkeypatch.setattr(answers, "MAX_ROWS_ELSEWHERE", 50)
    simulate(act)
