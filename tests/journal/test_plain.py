"""Plain subscribers on durable topics: messages are stored first, then the same policies as in memory apply."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.journal.journals import Place, journal_of, nothing_more, take, texts, until
from trunkline.errors import BackpressureTimeout, InboxFull, PartlyRefused, StreamClosed
from trunkline.testing import Simulation

slowly = pytest.mark.parametrize("slow", [False, True], ids=["at once", "slow"])


async def publish(bus: tl.Bus, topic: str, *payloads: object) -> None:
    for payload in payloads:
        await bus.publish(topic, str(payload).encode())


def stored(bus: tl.Bus, pattern: str = ">") -> list[str]:
    return texts(journal_of(bus).reader.messages(pattern))


# Policies


@slowly
async def test_block_makes_the_publisher_wait(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    async with (
        Place(simulation, tmp_path, slow=slow).bus() as bus,
        bus.subscribe("a", name="x", capacity=2, overflow="block") as stream,
    ):
        await publish(bus, "a", 1, 2)
        third = asyncio.create_task(publish(bus, "a", 3))
        await asyncio.sleep(1)
        assert not third.done()
        assert stored(bus) == ["1", "2", "3"], "it is on disk, all the same"
        assert texts(await take(stream, 3, ack=False)) == ["1", "2", "3"]
        await third


@slowly
async def test_block_has_an_end(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    async with (
        Place(simulation, tmp_path, slow=slow).bus(backpressure=tl.Backpressure(timeout_s=5)) as bus,
        bus.subscribe("a", name="x", capacity=1) as full,
        bus.subscribe("a", name="y") as other,
    ):
        await publish(bus, "a", 1)
        with pytest.raises(BackpressureTimeout):
            await publish(bus, "a", 2)
        assert texts(await take(other, 2, ack=False)) == ["1", "2"]
        assert texts(await take(full, 1, ack=False)) == ["1"]
        await nothing_more(full)
        assert full.account().dropped == 1


@slowly
async def test_reject_tells_the_publisher(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    async with (
        Place(simulation, tmp_path, slow=slow).bus() as bus,
        bus.subscribe("a", name="x", capacity=2, overflow="reject") as stream,
    ):
        await publish(bus, "a", 1, 2)
        with pytest.raises(InboxFull):
            await publish(bus, "a", 3)
        with pytest.raises(PartlyRefused) as caught:
            await bus.publish_many("a", [b"4", b"5"])
        assert texts(message for message, _ in caught.value.refused) == ["4", "5"]
        assert stored(bus) == list("12345"), "the subscriber refused it, not the journal"
        assert texts(await take(stream, 2, ack=False)) == ["1", "2"]
        account = stream.account()
        assert (account.accepted, account.delivered, account.dropped) == (5, 2, 3)


@pytest.mark.parametrize(("overflow", "left"), [("drop_oldest", "45"), ("drop_newest", "12")])
@slowly
async def test_drop_keeps_nobody_waiting(
    simulation: Simulation, tmp_path: Path, overflow: str, left: str, slow: bool
) -> None:
    async with (
        Place(simulation, tmp_path, slow=slow).bus() as bus,
        bus.subscribe("a", name="x", capacity=2, overflow=overflow) as stream,
    ):
        await publish(bus, "a", *range(1, 6))
        assert texts(await take(stream, 2, ack=False)) == list(left)
        assert stream.account().dropped == 3


async def test_only_some_of_a_batch_find_room(simulation: Simulation, tmp_path: Path) -> None:
    async with (
        Place(simulation, tmp_path).bus() as bus,
        bus.subscribe("a", name="x", capacity=3, overflow="reject") as stream,
    ):
        with pytest.raises(PartlyRefused) as caught:
            await bus.publish_many("a", [b"%d" % number for number in range(5)])
        assert texts(message for message, _ in caught.value.refused) == ["3", "4"]
        assert texts(await take(stream, 3, ack=False)) == ["0", "1", "2"]


async def test_each_publisher_hears_of_its_own(simulation: Simulation, tmp_path: Path) -> None:
    """Several publish in one iteration, and share a row. Only some of them find no room."""
    async with Place(simulation, tmp_path).bus() as bus:
        await publish(bus, "a", "warm")
        async with bus.subscribe("a", name="x", capacity=2, overflow="reject") as stream:
            await publish(bus, "b", "warm")
            results = await asyncio.gather(*(publish(bus, "a", number) for number in range(5)), return_exceptions=True)
            refused = {str(number) for number, result in enumerate(results) if isinstance(result, InboxFull)}
            got = set(texts(await take(stream, 2, ack=False)))
            assert refused | got == set("01234")
            assert not refused & got


# Order


@slowly
async def test_order_is_kept_per_publisher(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    async with (
        Place(simulation, tmp_path, slow=slow).bus() as bus,
        bus.subscribe("a", name="x", capacity=3) as stream,
    ):

        async def send(name: str) -> None:
            for number in range(0, 30, 3):
                await bus.publish("a", f"{name} {number}".encode())
                await bus.publish_many("a", [f"{name} {number + 1}".encode()])
                await bus.publish("a", f"{name} {number + 2}".encode(), headers={"k": "v"})

        async with asyncio.TaskGroup() as group:
            for name in "xyz":
                group.create_task(send(name))
            got = texts(await take(stream, 90, ack=False))
        for name in "xyz":
            assert [text for text in got if text.startswith(name)] == [f"{name} {number}" for number in range(30)]


@slowly
async def test_what_is_in_the_journal_is_in_the_order_of_numbers(
    simulation: Simulation, tmp_path: Path, slow: bool
) -> None:
    async with (
        Place(simulation, tmp_path, slow=slow).bus() as bus,
        bus.subscribe("a", name="x") as stream,
    ):
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(publish(bus, "a", number))
                group.create_task(publish(bus, "b", number))
                await asyncio.sleep(simulation.random.choice([0, 0, 0.01]))
        got = await take(stream, 20, ack=False)
        assert got == list(journal_of(bus).reader.messages("a"))


async def test_nobody_passes_those_in_line(simulation: Simulation, tmp_path: Path) -> None:
    """One waits for room, with others behind it. Then there is room, and at that moment one more arrives."""
    async with (
        Place(simulation, tmp_path).bus() as bus,
        bus.subscribe("a", name="x", capacity=1) as stream,
    ):
        await publish(bus, "a", 0)
        async with bus.pipeline() as pipe:
            for number in (1, 2, 3):
                await pipe.publish("a", str(number).encode())
                await asyncio.sleep(1)
            await pipe.publish("a", b"4")
            got = [stream.try_recv(), stream.try_recv()]
            got += await take(stream, 3, ack=False)
        assert texts(got) == list("01234")


async def test_what_waits_in_line_comes_in_the_order_of_its_numbers(simulation: Simulation, tmp_path: Path) -> None:
    async with (
        Place(simulation, tmp_path, slow=True).bus() as bus,
        bus.subscribe("a", name="x", capacity=4) as stream,
    ):
        got: list[tl.Message] = []

        async def consume() -> None:
            while len(got) < 120:
                await asyncio.sleep(simulation.random.choice([0, 0.001, 0.02]))
                while stream.depth:
                    got.append(stream.try_recv())

        async with asyncio.TaskGroup() as group:
            group.create_task(consume())
            for number in range(120):
                group.create_task(publish(bus, "a", number))
                await asyncio.sleep(0.001)
        assert got == list(journal_of(bus).reader.messages("a"))


# Cancellation


@slowly
@pytest.mark.parametrize("later_s", [0, 1], ids=["taken at once", "taken later"])
async def test_a_publisher_that_gives_up_while_it_waits_for_room(
    simulation: Simulation, tmp_path: Path, slow: bool, later_s: float
) -> None:
    async with (
        Place(simulation, tmp_path, slow=slow).bus() as bus,
        bus.subscribe("a", name="x", capacity=1) as stream,
    ):
        await publish(bus, "a", 1)
        waiting = asyncio.create_task(publish(bus, "a", 2))
        await until(lambda: stream.inbox.parked)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        await asyncio.sleep(later_s)
        await publish_soon(bus, stream)
        await journal_of(bus).flush()
        outcomes = {
            each.payload: [(outcome.fate, outcome.reason) for outcome in journal_of(bus).reader.outcomes(each)]
            for each in journal_of(bus).reader.messages("a")
        }
        assert outcomes[b"2"] == [(tl.Fate.DROPPED, "its publisher was cancelled while waiting for room")]


async def publish_soon(bus: tl.Bus, stream: tl.Stream) -> None:
    assert texts(await take(stream, 1, ack=False)) == ["1"]
    await publish(bus, "a", 3)
    assert texts(await take(stream, 1, ack=False)) == ["3"]


@pytest.mark.parametrize("fields", [{}, {"headers": {"k": "v"}}], ids=["plain", "with fields"])
@pytest.mark.parametrize("capacity", [1, 100])
async def test_a_publisher_that_gives_up_before_it_is_stored(
    simulation: Simulation, tmp_path: Path, fields: Any, capacity: int
) -> None:
    """It may be published or not. If it is, no error is reported, and other publishers are not delayed."""
    place = Place(simulation, tmp_path, slow=True)
    async with (
        place.bus() as bus,
        bus.subscribe("a", name="x", capacity=capacity) as stream,
    ):
        await publish(bus, "a", "first")
        if capacity > 1:
            await take(stream, 1, ack=False)
        publishing = asyncio.create_task(bus.publish("a", b"given up", **fields))
        await asyncio.sleep(simulation.random.choice([0, 0.0001, 0.001]))
        publishing.cancel()
        await asyncio.gather(publishing, return_exceptions=True)
        await asyncio.sleep(1)
        last = asyncio.create_task(publish(bus, "a", "last"))
        seen = ["first"] if capacity > 1 else []
        while "last" not in seen:
            seen += texts(await take(stream, 1, ack=False))
        await last
        await journal_of(bus).flush()
        for message in journal_of(bus).reader.messages("a"):
            told = {outcome.subscriber: outcome.fate for outcome in (await bus.explain(message.id)).outcomes}
            got_it = bytes(message.payload).decode() in seen
            assert told == {"x": tl.Fate.DELIVERED if got_it else tl.Fate.DROPPED}


# Recorded topics


async def test_recorded_topics_do_not_wait_for_the_disk(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path, slow=True, durable=("d",), recorded=("r",))
    async with (
        place.bus() as bus,
        bus.subscribe("r", name="x") as stream,
    ):
        before = simulation.now()
        await publish(bus, "r", *range(20))
        assert simulation.now() == before
        assert texts(await take(stream, 20, ack=False)) == [str(number) for number in range(20)]
    with place.reader() as reader:
        assert texts(reader.messages()) == [str(number) for number in range(20)]


async def test_a_recorded_topic_waits_when_the_disk_is_far_behind(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path, slow=True, durable=(), recorded=(">",), max_backlog_bytes=3000)
    async with place.bus() as bus:
        most = 0
        for _ in range(200):
            await bus.publish("r", b"x" * 1000)
            most = max(most, journal_of(bus).intake.backlog)
        assert most <= 4000
        await journal_of(bus).flush()
        assert journal_of(bus).intake.backlog == 0


async def test_topics_that_are_not_kept_leave_no_trace(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path, durable=("d",), recorded=("r",))
    async with place.bus() as bus:
        async with bus.subscribe(">", name="x") as stream:
            for topic in ("d", "n", "r", "n"):
                await publish(bus, topic, topic)
            assert sorted(texts(await take(stream, 4, ack=False))) == ["d", "n", "n", "r"]
        assert bus.stats().total_messages == 4
    with place.reader() as reader:
        assert texts(reader.messages()) == ["d", "r"]


# Counting


@slowly
async def test_what_the_bus_counts(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    async with Place(simulation, tmp_path, slow=slow).bus() as bus:
        await publish(bus, "a", 1, 2)
        async with bus.subscribe("a", name="x"), bus.subscribe("b", durable=True, name="y"):
            await publish(bus, "a", 3)
            await bus.publish_many("a", [b"4", b"5"])
            await bus.publish("b", b"6", headers={"k": "v"})
            stats = bus.stats()
            assert (stats.total_messages, stats.unrouted, stats.total_refused) == (6, 2, 0)
            assert texts(bus.history()) == list("123456")
            assert dict(stats.per_topic) == {"a": 5, "b": 1}
            assert dict(stats.per_sender) == {"bus": 6}


# The end


async def test_a_journal_that_was_closed_under_a_bus(simulation: Simulation, tmp_path: Path) -> None:
    """A publisher then gets an error, and does not wait for ever."""
    journal = Place(simulation, tmp_path).journal()
    broker = tl.journal.JournalBroker(journal)
    bus = await tl.connect(broker).__aenter__()
    await publish(bus, "a", 1)
    await journal.aclose()
    with pytest.raises(tl.TrunklineError):
        async with asyncio.timeout(100):
            await publish(bus, "a", 2)
    await bus.aclose()
    with suppress(tl.JournalUnusable):
        await broker.aclose()
    with pytest.raises(StreamClosed):
        broker.subscribe("a")


async def test_closing_while_publishers_wait_for_the_disk(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path, slow=True)
    results: list[Any] = []
    async with place.bus() as bus:
        publishing = [asyncio.create_task(bus.publish("a", b"%d" % number)) for number in range(5)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    async with asyncio.timeout(100):
        results = await asyncio.gather(*publishing, return_exceptions=True)
    published = {result for result in results if isinstance(result, str)}
    with place.reader() as reader:
        assert published <= {message.id for message in reader.messages("a")}
