"""The memory of a hub for former clients and unused topics is bounded."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tracemalloc
from typing import Any

import pytest

import trunkline as tl
from tests.hub.hubs import Place
from trunkline.brokers.hub.broker import HubBroker
from trunkline.brokers.memory import MemoryBroker
from trunkline.brokers.remote import outbox
from trunkline.brokers.remote.places import MAX_PLACES, Places
from trunkline.clock import World
from trunkline.delivery import books, subscribers
from trunkline.delivery.books import MAX_ROWS_LEFT, Books, Leaver
from trunkline.delivery.fates import Fate
from trunkline.delivery.outlet import Outlet
from trunkline.delivery.routing import MAX_UNUSED
from trunkline.delivery.subscribers import Subscribers
from trunkline.hub import answers
from trunkline.hub.leavers import MAX_LEFT, Leavers
from trunkline.hub.session import Session
from trunkline.hub.settings import HubSettings
from trunkline.registry.registry import MAX_CACHED, Registry
from trunkline.testing import simulate, world
from trunkline.topic import REPLY_PREFIX


def _alive(kind: type) -> int:
    gc.collect()
    return sum(isinstance(each, kind) for each in gc.get_objects())


def test_nothing_holds_sessions_and_subscriptions_of_clients_that_left() -> None:
    """Each has its own reply topic, which is not used again. Every second one loses its connection."""
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
            # Less time than a new connection has for its HELLO.
            await asyncio.sleep(HubSettings().hello_s / 2)
            assert _alive(Session) - before[0] <= 2, "that of the server, and the last one"
            assert _alive(Outlet) - before[1] < clients / 2
            counts = place.hub.broker.published_by_topic()
            assert {f"news.{number}" for number in range(clients)} <= counts.keys(), "what was published is counted"
        await place.stop()

    simulate(act)


def test_a_hub_and_whoever_answers_forget_the_reply_topics_of_clients_that_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clients = 30

    async def act(simulation: Any) -> None:
        place = Place(world(simulation))
        await place.start()
        async with place.bus("server") as server, place.bus("stays") as stays:

            @server.on("price")
            async def price(number: int) -> int:
                return number

            for number in range(clients):
                assert await stays.request("price", number) == number
                async with place.bus(f"client-{number}") as bus:
                    assert await bus.request("price", number) == number
                # The hub confirms the answers a moment later.
                await asyncio.sleep(0.1)
            assert isinstance(server.broker, HubBroker)
            answered = [topic for topic in server.broker.lanes if topic.startswith(REPLY_PREFIX)]
            assert len(answered) == outbox.MAX_OWN_TOPICS
            counted = [topic for topic in place.hub.broker.published_by_topic() if topic.startswith(REPLY_PREFIX)]
            assert len(counted) == 1, "that of the one who stays"
            assert stays.stats().account.balanced
        await place.stop()

    monkeypatch.setattr(outbox, "MAX_OWN_TOPICS", 5)
    simulate(act)


def test_an_answer_that_is_on_its_way_keeps_its_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its batch is sent, or sent again, through the lane."""

    async def act(simulation: Any) -> None:
        place = Place(world(simulation))
        await place.start()
        async with place.bus("server") as server:
            for number in range(20):
                await server.publish(f"{REPLY_PREFIX}{number:032x}", number)
            assert isinstance(server.broker, HubBroker)
            assert len(server.broker.lanes) >= 20, "nothing was sent yet"
            await server.flush()
            for number in range(20, 40):
                await server.publish(f"{REPLY_PREFIX}{number:032x}", number)
                await server.flush()
            assert len(server.broker.lanes) == 5
            assert server.stats().total_messages == 40
        await place.stop()

    monkeypatch.setattr(outbox, "MAX_OWN_TOPICS", 5)
    simulate(act)


def test_the_channels_of_topics_used_once_are_not_remembered_for_ever() -> None:
    registry = Registry()
    tracemalloc.start()
    try:
        for number in range(3 * MAX_CACHED):
            assert registry.find(f"{number:0255d}") is None
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 6 * 2**20


def test_the_books_of_a_subscriber_are_bounded_in_bytes() -> None:
    """For an exact subscriber: a row for each delivery."""
    kept = Books()
    kept.exact = True
    tracemalloc.start()
    try:
        for number in range(10**9, 10**9 + 4 * books.MAX_ROWS, 2):
            kept.deliver_one(number, 2_000_000_000 * number)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept.size == books.MAX_ROWS
    assert taken < 200 * books.MAX_ROWS


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


def test_the_counts_of_topics_that_nobody_uses_any_more_are_bounded_in_bytes() -> None:
    tree = MemoryBroker().tree
    used = [f"used.{number}" for number in range(10)]
    tracemalloc.start()
    try:
        for number in range(3 * MAX_UNUSED):
            for topic in (f"{number:0255d}", *used[:: number % 2 + 1]):
                tree.route(topic).published += 1
            if number % 50 == 0:
                tree.forget()
        tree.forget()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 6 * 2**20
    assert len(tree.published()) <= MAX_UNUSED + 100
    assert tree.published()[used[0]] == 3 * MAX_UNUSED, "what is in use is counted for ever"


def test_a_subscriber_remembers_the_publishers_that_it_heard_last() -> None:
    places = Places()
    tracemalloc.start()
    try:
        for number in range(3 * MAX_PLACES):
            assert not places.passed(number + 10**9, f"{number:0255d}", 50, 0, 1)
            if number % 1000 == 0:
                assert not places.passed(1, "t", 50, number // 1000, 1)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 6 * 2**20
    known = 3 * MAX_PLACES // 1000
    assert places.passed(1, "t", 50, known + 7, 1) == 7, "it publishes now and then, and was not forgotten"
    assert not places.passed(10**9, f"{0:0255d}", 50, 7, 1), "it was heard once, long ago"


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


@pytest.mark.parametrize(("given", "used"), [(None, "system"), ("mimalloc", "mimalloc")])
def test_a_hub_process_takes_memory_for_sealing_from_the_system(given: str | None, used: str) -> None:
    program = (
        "from trunkline.hub.serve import prepare_process; prepare_process();"
        " import pyarrow; print(pyarrow.default_memory_pool().backend_name)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}
    if given is not None:
        environment["ARROW_DEFAULT_MEMORY_POOL"] = given
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == used
