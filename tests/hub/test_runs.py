"""Consecutive publishes on one topic are sent as columns, without a visible difference but speed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import trunkline as tl
from tests.hub.hubs import Place, connection_of, until
from trunkline.delivery.plain_run import PlainRun
from trunkline.testing import Simulation, simulate, world

MANY = 600


def with_hub(test: Any, **settings: Any) -> None:
    async def main(simulation: Simulation) -> None:
        there = world(simulation)
        place = Place(there)
        await place.start()
        try:
            async with tl.connect(place.address, name="bus", world=there, settings=tl.Settings(**settings)) as bus:
                await test(place, bus)
        finally:
            await place.stop()

    simulate(main)


async def known(bus: tl.Bus, topic: str) -> None:
    """With the first message the bus asks the hub about the topic."""
    await bus.publish(topic)
    await bus.flush()


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of messages of runs that were built."""
    counts: list[int] = []
    original: Any = vars(PlainRun)["messages"]

    def messages(self: PlainRun) -> Any:
        if self._messages is None:
            counts.append(len(self))
        return original.fget(self)

    monkeypatch.setattr(PlainRun, "messages", property(messages))
    return counts


def test_no_message_is_built_that_nobody_looks_at(built: list[int]) -> None:
    async def test(place: Place, bus: tl.Bus) -> None:
        async with bus.subscribe("a") as stream:
            await known(bus, "a")
            for number in range(MANY):
                await bus.publish("a", number)
            await bus.publish_many("a", range(MANY))
            await bus.flush()
            got = []
            async for batch in stream.batches():
                got += [message.decode() for message in batch]
                if len(got) == 2 * MANY + 1:
                    break
        assert got == [b"", *range(MANY), *range(MANY)]
        assert bus.stats().total_messages == 2 * MANY + 1
        assert built == []
        assert len(bus.history()) == 2 * MANY + 1
        assert sum(built) > 2 * MANY - 10

    with_hub(test)


@pytest.mark.parametrize("every", [2, 5, 50])
def test_a_message_with_a_field_of_its_own_stops_runs_for_a_moment_only(every: int, built: list[int]) -> None:
    """Like a traced message. Frequent ones share a batch with the plain ones."""
    own: tl.Fields = {"headers": {"kind": "other"}}

    async def test(place: Place, bus: tl.Bus) -> None:
        async with bus.subscribe("a") as stream:
            await known(bus, "a")
            for number in range(MANY):
                await bus.publish("a", number, **(own if number % every == 0 else {}))
            await bus.flush()
            got: list[tl.Message] = []
            async for batch in stream.batches():
                got += batch
                if len(got) == MANY + 1:
                    break
        assert [message.decode() for message in got] == [b"", *range(MANY)]
        assert [message.headers is not None for message in got[1:]] == [n % every == 0 for n in range(MANY)]
        if every == 50:
            # The runs between them were never opened.
            assert built == []

    with_hub(test)


def test_history_and_counts_are_exact_at_any_moment() -> None:
    async def test(place: Place, bus: tl.Bus) -> None:
        sent: list[tuple[str, str]] = []

        async def publish(topic: str, **fields: Any) -> None:
            sent.append((topic, await bus.publish(topic, len(sent), **fields)))

        async with bus.subscribe(">"):
            for step in range(200):
                topic = "ab"[step // 7 % 2]
                await publish(topic, **({"priority": 75} if step % 13 == 0 else {}))
                if step % 17 == 0:
                    ids = await bus.publish_many(topic, [b"x", b"y", b"z"])
                    sent += [(topic, each) for each in ids]
                if step % 31 == 0:
                    assert [(each.topic, each.id) for each in bus.history()] == sent[-150:]
                if step % 29 == 0:
                    assert bus.stats().total_messages == bus.health().total_messages == len(sent)
                    assert dict(bus.stats().per_topic) == {
                        each: sum(topic == each for topic, _ in sent) for each in {topic for topic, _ in sent}
                    }
            await bus.flush()
            assert [(each.topic, each.id) for each in bus.history()] == sent[-150:]
            assert all(each.seq for each in bus.history())
            assert len({each.seq for each in bus.history()}) == 150

    with_hub(test, history=tl.History(max_messages=150))


def test_a_message_of_a_run_can_be_explained() -> None:
    async def test(place: Place, bus: tl.Bus) -> None:
        async with bus.subscribe("a", name="listener") as stream:
            ids = [await bus.publish("a", number) for number in range(20)]
            await bus.flush()
            for _ in range(20):
                await stream.recv()
            explained = str(await bus.explain(ids[10]))
        assert "listener" in explained
        assert "delivered" in explained

    with_hub(test)


def test_each_message_of_a_run_that_was_lost_is_on_record() -> None:
    async def test(place: Place, bus: tl.Bus) -> None:
        async with bus.subscribe("a"):
            await bus.publish("a")
            await bus.flush()
            place.cut("bus")
            ids = [await bus.publish("a", number) for number in range(MANY)]
            assert bus.stats().total_messages == MANY + 1
            await until(lambda: bus.stats().total_refused > 0, "the loss is told")
            await place.back(bus)
            await bus.flush()
            refused = bus.stats().total_refused
            told = 0
            for each in ids:
                told += "NotConfirmed" in str(await bus.explain(each))
            assert told == refused

    with_hub(test)


def test_a_run_ends_where_the_window_ends() -> None:
    async def test(place: Place, bus: tl.Bus) -> None:
        async with bus.subscribe("a", capacity=2000, overflow="drop_oldest"):
            await known(bus, "a")
            most = 0
            for number in range(MANY):
                await bus.publish("a", number)
                lane: Any = bus.broker.lanes["a"]
                most = max(most, lane.in_flight)
            assert 0 < most <= 50
            await bus.flush()
            await until(lambda: lane.in_flight == 0, "all is confirmed")

    with_hub(test, backpressure=tl.Backpressure(max_pending=50))


def test_runs_go_on_after_a_publish_that_waited_for_room(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[PlainRun] = []
    close = PlainRun.close

    def collect(run: PlainRun) -> None:
        if run not in runs:
            runs.append(run)
        close(run)

    monkeypatch.setattr(PlainRun, "close", collect)

    async def test(place: Place, bus: tl.Bus) -> None:
        async with bus.subscribe("a", capacity=2000, overflow="drop_oldest"):
            await known(bus, "a")
            for number in range(MANY):
                await bus.publish("a", number)
            await bus.flush()
        assert len(runs) > 2, "the window was used up, and had room again"
        assert sum(map(len, runs)) > 0.9 * MANY

    with_hub(test, backpressure=tl.Backpressure(max_pending=100))


def test_a_topic_that_becomes_durable_takes_no_more_into_its_run() -> None:
    async def test(place: Place, bus: tl.Bus) -> None:
        async with bus.subscribe("a"):
            await known(bus, "a")
            for number in range(3):
                await bus.publish("a", number)
            lane: Any = bus.broker.lanes["a"]
            run = lane.outbox.pending["a"].run
            assert run.room
            lane.learn(lane.terms)
            assert run.room == 0
            assert lane.in_flight >= len(run)
            await bus.publish("a", 3)
            await bus.flush()
            assert [message.decode() for message in bus.history()] == [b"", 0, 1, 2, 3]

    with_hub(test)


def test_a_handler_runs_in_the_turn_in_which_its_message_arrives() -> None:
    async def test(place: Place, bus: tl.Bus) -> None:
        loop = asyncio.get_running_loop()
        turns = 0
        seen: list[int] = []

        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        connection = connection_of(bus)
        received = connection.received

        def noted(batch: Any) -> None:
            seen.append(turns)
            received(batch)

        connection.received = noted  # type: ignore[method-assign]
        handled = asyncio.get_running_loop().create_future()

        @bus.on("a")
        async def handle(number: int) -> None:
            handled.set_result((asyncio.current_task() is not None, turns))

        await bus.flush()
        loop.call_soon(turn)
        await bus.publish("a", 1)
        assert await handled == (True, seen[-1])

    with_hub(test)
