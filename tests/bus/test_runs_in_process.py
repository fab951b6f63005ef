"""Runs in one process: bursts to slow subscribers are kept as columns, without a visible difference."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest

import trunkline as tl
from trunkline.bus import bus as bus_module
from trunkline.delivery import route
from trunkline.delivery.plain_run import PlainRun
from trunkline.testing import Simulation, world

TOPIC = "orders.placed"


async def burst(bus: tl.Bus, count: int, start: int = 0, topic: str = TOPIC) -> list[str]:
    return [await bus.publish(topic, b"%d" % number) for number in range(start, start + count)]


async def take(stream: tl.Stream, count: int) -> list[tl.Message]:
    taken: list[tl.Message] = []
    async for message in stream:
        taken.append(message)
        if len(taken) == count:
            break
    return taken


def numbers(messages: list[tl.Message]) -> list[int]:
    return [int(message.payload) for message in messages]


@pytest.fixture(autouse=True)
def early_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs begin with fewer messages."""
    monkeypatch.setattr(bus_module, "WATCH", 7)


def connect(simulation: Simulation) -> tl.Bus:
    return tl.connect("memory:", world=world(simulation))


async def test_a_burst_becomes_a_run_and_is_taken_in_order(simulation: Simulation) -> None:
    async with connect(simulation) as bus, bus.subscribe(TOPIC) as stream:
        ids = await burst(bus, 1000)
        assert stream.inbox.run is not None, "a run is open"
        taken = await take(stream, 1000)
        assert numbers(taken) == list(range(1000))
        assert [message.id for message in taken] == ids
        assert [message.seq for message in taken] == list(range(taken[0].seq, taken[0].seq + 1000))
        assert bus.history(1000) == taken, "the history has the same messages"
        account = stream.account()
        assert (account.accepted, account.delivered, account.in_flight) == (1000, 1000, 0)


async def test_ids_of_a_run_are_unique_and_ascend_with_time(simulation: Simulation) -> None:
    chance = random.Random(1)
    async with connect(simulation) as bus, bus.subscribe(TOPIC) as stream:
        ids: list[str] = []
        for number in range(3000):
            match chance.randrange(200):
                case 0:
                    # The ids that the run has reserved are too old then.
                    await asyncio.sleep(0.002)
                case 1:
                    ids.append(await bus.publish(TOPIC, b"%d" % number, sender="me"))
                    continue
                case 2:
                    bus.stats()
            ids.append(await bus.publish(TOPIC, b"%d" % number))
        assert ids == sorted(set(ids))
        taken = await take(stream, 3000)
        assert [message.id for message in taken] == ids
        for message in taken:
            made_ms = int(message.id[:13].replace("-", ""), 16)
            assert 0 <= message.timestamp_ns // 1_000_000 - made_ms <= 1


async def test_a_closed_bus_appends_nothing_to_its_open_run(simulation: Simulation) -> None:
    async with connect(simulation) as there, there.subscribe(TOPIC) as stream:
        async with tl.Bus(there.broker) as bus:
            await burst(bus, 300)
            assert stream.inbox.run is not None
        with pytest.raises(tl.BusClosed):
            await bus.publish(TOPIC, b"300")
        assert numbers(await take(stream, 300)) == list(range(300))
        assert stream.depth == 0


async def test_whoever_looks_sees_every_message_of_a_run(simulation: Simulation) -> None:
    async with connect(simulation) as bus, bus.subscribe(TOPIC) as stream:
        ids = await burst(bus, 100)
        assert stream.inbox.run is not None
        assert stream.depth == 100
        await burst(bus, 1, 100)
        assert (stream.account().accepted, stream.account().in_flight) == (101, 101)
        await burst(bus, 1, 101)
        stats = bus.stats()
        assert (stats.total_messages, stats.pending, stats.account.accepted) == (102, 102, 102)
        assert stats.per_topic == {TOPIC: 102}
        ids += await burst(bus, 30, 102)
        explained = await bus.explain(ids[-1])
        assert "waits in the inbox" in str(explained)
        ids += await burst(bus, 30, 132)
        assert numbers(bus.history()) == list(range(162))
        ids += await burst(bus, 30, 162)
        assert [message.payload for message in stream.unfinished()] == [b"%d" % number for number in range(192)]
        assert bus.broker.sequence.last == 192
        assert numbers(await take(stream, 192)) == list(range(192))


async def test_all_subscribers_get_the_same_messages_of_a_run(simulation: Simulation) -> None:
    async with connect(simulation) as bus, bus.subscribe(TOPIC) as first, bus.subscribe("orders.>") as second:
        await burst(bus, 300)
        one = await take(first, 300)
        both = [(mine, theirs) for mine, theirs in zip(one, await take(second, 300), strict=True)]
        # Messages before the run are the same objects; those of the run as well, while a reader waits.
        assert all(mine is theirs for mine, theirs in both)


async def test_a_message_with_fields_of_its_own_keeps_its_place_behind_a_run(simulation: Simulation) -> None:
    async with connect(simulation) as bus, bus.subscribe("orders.>") as stream:
        await burst(bus, 50)
        await bus.publish(TOPIC, b"50", correlation_id="c")
        await bus.publish(TOPIC, b"-1", priority=tl.Priority.HIGH)
        await bus.publish(TOPIC, b"53", priority=tl.Priority.LOW)
        await bus.publish("orders.paid", b"51")
        await bus.publish_many(TOPIC, [b"52"])
        assert numbers(await take(stream, 55)) == [-1, *range(54)]


async def test_two_buses_on_one_broker_number_their_runs_in_order(simulation: Simulation) -> None:
    async with connect(simulation) as bus, tl.Bus(bus.broker, name="other") as other, bus.subscribe(TOPIC) as stream:
        for start in range(0, 400, 80):
            await burst(bus, 40, start)
            await burst(other, 40, start + 40)
        taken = await take(stream, 400)
        assert numbers(taken) == list(range(400))
        assert [message.seq for message in taken] == sorted(message.seq for message in taken)
        assert {message.sender for message in taken} == {bus.name, "other"}
        assert bus.stats().total_messages == other.stats().total_messages == 200


async def test_a_run_ends_where_the_inbox_is_full(simulation: Simulation) -> None:
    async with (
        connect(simulation) as bus,
        bus.subscribe(TOPIC, capacity=100, overflow=tl.Overflow.DROP_OLDEST) as stream,
    ):
        await burst(bus, 250)
        assert stream.depth == 100
        account = stream.account()
        assert (account.accepted, account.dropped, account.in_flight) == (250, 150, 100)
        assert numbers(await take(stream, 100)) == list(range(150, 250))


async def test_publishers_that_wait_for_room_come_after_what_is_not_open(simulation: Simulation) -> None:
    async with connect(simulation) as bus, bus.subscribe(TOPIC, capacity=100) as stream:
        publisher = asyncio.create_task(burst(bus, 1000))
        assert numbers(await take(stream, 1000)) == list(range(1000))
        await publisher
        assert stream.account().delivered == 1000


async def test_batches_and_payloads_take_runs(simulation: Simulation) -> None:
    async with connect(simulation) as bus, bus.subscribe(TOPIC) as stream:
        await burst(bus, 700)
        async with aclosing(stream.batches(300)) as batches:
            taken: list[tl.Message] = []
            while len(taken) < 700:
                taken += await anext(batches)
        await burst(bus, 700, 700)
        async with aclosing(stream.payloads(5000)) as payloads:
            while len(taken) < 1400:
                taken += [tl.Message(payload=each, topic=TOPIC) for each in await anext(payloads)]
        assert numbers(taken) == list(range(1400))
        assert stream.account().delivered == 1400


async def test_a_stream_that_is_thrown_away_leaves_after_a_run(simulation: Simulation) -> None:
    async with connect(simulation) as bus:
        stream = await bus.subscribe(TOPIC).open()
        await burst(bus, 50)
        assert stream.inbox.run is not None
        inbox = stream.inbox
        with pytest.warns(ResourceWarning, match="never closed"):
            del stream
        await burst(bus, 1)
        assert inbox.gone
        assert bus.stats().account.dropped == 51


async def test_subscribers_come_and_go_during_a_run(simulation: Simulation) -> None:
    async with connect(simulation) as bus, bus.subscribe(TOPIC) as stream:
        await burst(bus, 50)
        async with bus.subscribe(TOPIC) as late:
            await burst(bus, 50, 50)
            assert numbers(await take(late, 50)) == list(range(50, 100))
        await burst(bus, 50, 100)
        assert numbers(await take(stream, 150)) == list(range(150))


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_between_messages_the_books_are_right(
    simulation: Simulation, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "WATCH", 0)
    monkeypatch.setattr(route, "MAX_RUN", 5)
    chance = random.Random(seed)
    topics = ("a.x", "a.y")
    expected: dict[str, list[int]] = {"a.x": [], "a.y": [], "a.>": []}
    begun: list[PlainRun] = []
    begin = route.Route.begin_run

    def counted(self: route.Route, sender: str, content_type: str) -> PlainRun | None:
        if (run := begin(self, sender, content_type)) is not None:
            begun.append(run)
        return run

    monkeypatch.setattr(route.Route, "begin_run", counted)
    published = 0
    async with (
        connect(simulation) as bus,
        bus.subscribe("a.x") as x,
        bus.subscribe("a.y") as y,
        bus.subscribe("a.>", ack=True) as both,
        tl.Bus(bus.broker, name="other") as other,
    ):
        streams = {"a.x": x, "a.y": y, "a.>": both}
        taken: dict[str, list[int]] = {name: [] for name in streams}
        for _ in range(150):
            action = chance.randrange(8)
            if action < 4:
                topic = chance.choice(topics)
                for _ in range(chance.randrange(1, 9)):
                    await chance.choice((bus, bus, other)).publish(topic, b"%d" % published)
                    expected[topic].append(published)
                    expected["a.>"].append(published)
                    published += 1
            elif action == 4:
                topic = chance.choice(topics)
                await bus.publish_many(topic, [b"%d" % published, b"%d" % (published + 1)])
                expected[topic] += (published, published + 1)
                expected["a.>"] += (published, published + 1)
                published += 2
            elif action < 7:
                name = chance.choice(list(streams))
                for _ in range(min(chance.randrange(1, 12), streams[name].depth)):
                    message = streams[name].try_recv()
                    taken[name].append(int(message.payload))
                    if name == "a.>":
                        both.ack(message)
            else:
                assert bus.stats().total_messages + other.stats().total_messages == published
            for name, stream in streams.items():
                if chance.random() < 0.2:
                    account = stream.account()
                    assert account.balanced
                    assert account.accepted == len(expected[name])
        for name, stream in streams.items():
            while stream.depth:
                message = stream.try_recv()
                taken[name].append(int(message.payload))
                if name == "a.>":
                    both.ack(message)
            assert taken[name] == expected[name]
            assert stream.account().delivered == len(expected[name])
        assert bus.broker.sequence.last == published
    assert begun
