"""The pipeline: many publishes in flight, in order, bounded, and an exact list of refusals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trunkline as tl
from tests.journal.journals import BadDisk, Place, journal_of, seqs, take, texts
from trunkline.errors import BusClosed, InboxFull, NotStored, PartlyRefused, UsageError
from trunkline.testing import Simulation

slowly = pytest.mark.parametrize("slow", [False, True], ids=["at once", "slow"])


def numbers(count: int, start: int = 0) -> list[str]:
    return [str(number) for number in range(start, start + count)]


async def warm(bus: tl.Bus, *topics: str) -> None:
    """The first message on a topic takes the full path. Later ones are in the pipeline."""
    for topic in topics:
        await bus.publish(topic, b"warm")


async def send(bus: tl.Bus, *payloads: str, then: Exception | None = None) -> None:
    """Publish all at once, and fail afterwards if requested."""
    async with bus.pipeline() as pipe:
        for payload in payloads:
            await pipe.publish("a", payload.encode())
        if then is not None:
            await asyncio.sleep(1)
            raise then


@slowly
async def test_everything_is_published_when_the_block_ends(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    async with (
        Place(simulation, tmp_path, slow=slow).bus() as bus,
        bus.subscribe("a", name="x") as plain,
        bus.subscribe("a", durable=True, name="y") as durable,
    ):
        async with bus.pipeline() as pipe:
            ids = [await pipe.publish("a", text.encode()) for text in numbers(50)]
        assert pipe.in_flight == 0
        kept = list(journal_of(bus).reader.messages("a"))
        assert texts(kept) == numbers(50)
        assert [message.id for message in kept] == ids
        assert seqs(kept) == sorted(set(seqs(kept)))
        assert await take(plain, 50, ack=False) == await take(durable, 50) == kept
        stats = bus.stats()
        assert (stats.total_messages, stats.total_refused, stats.unrouted) == (50, 0, 0)
        assert texts(bus.history()) == numbers(50)


async def test_no_more_are_under_way_than_allowed(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path, slow=True).bus() as bus:
        await warm(bus, "a")
        most = 0
        async with bus.pipeline(in_flight=7) as pipe:
            for text in numbers(100):
                await pipe.publish("a", text.encode())
                most = max(most, pipe.in_flight)
        assert most <= 7
        assert texts(journal_of(bus).reader.messages("a"))[1:] == numbers(100)


async def test_it_does_not_wait_for_each(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path, slow=True).bus() as bus:
        await warm(bus, "a")
        commits = journal_of(bus).writer.commits
        async with bus.pipeline() as pipe:
            for text in numbers(500):
                await pipe.publish("a", text.encode())
        assert journal_of(bus).writer.commits - commits <= 5


@slowly
async def test_order_among_all_kinds(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    """Plain, large, with fields, on several topics, while others publish too: each topic keeps the order."""
    async with (
        Place(simulation, tmp_path, slow=slow, durable=("a", "b"), recorded=("c",)).bus() as bus,
        bus.subscribe("*", name="x") as stream,
    ):

        async def others() -> None:
            for number in range(20):
                await bus.publish("b", f"other {number}".encode())
                await bus.publish_many("a", [f"other {number}".encode()])

        going = asyncio.create_task(others())
        sent: dict[str, list[str]] = {"a": [], "b": [], "c": [], "n": []}
        async with bus.pipeline(in_flight=10) as pipe:
            for number in range(80):
                topic = simulation.random.choice("abcn")
                text = str(number)
                sent[topic].append(text)
                match simulation.random.randrange(4):
                    case 0:
                        await pipe.publish(topic, text.encode(), headers={"k": "v"})
                    case 1:
                        await pipe.publish(topic, f"{text} {'x' * 5000}".encode())
                    case _:
                        await pipe.publish(topic, text.encode())
        await going
        got = await take(stream, 120, ack=False)
        for topic, wanted in sent.items():
            mine = [text.split()[0] for text in texts(each for each in got if each.topic == topic)]
            assert [text for text in mine if text != "other"] == wanted, topic


async def test_values_are_encoded(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        async with bus.pipeline() as pipe:
            for number in range(3):
                await pipe.publish("a", {"n": number})
        assert [message.decode() for message in journal_of(bus).reader.messages()] == [{"n": n} for n in range(3)]


# Refusals


@slowly
async def test_what_could_not_be_written_is_told_exactly(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    async with Place(simulation, tmp_path, slow=slow).bus() as bus:
        await warm(bus, "a", "b")
        async with bus.subscribe("*", name="x") as plain, bus.subscribe("a", durable=True, name="y") as durable:
            await warm(bus, "a", "b")
            disk = BadDisk(journal_of(bus))
            published: list[str] = []

            async def send() -> None:
                async with bus.pipeline(in_flight=4) as pipe:
                    for text in numbers(60):
                        disk.full = simulation.random.random() < 0.3
                        try:
                            await pipe.publish(simulation.random.choice("ab"), text.encode())
                        except NotStored:
                            continue
                        published.append(text)
                    disk.full = False

            with pytest.raises(PartlyRefused) as caught:
                await send()
            refused = texts(message for message, _ in caught.value.refused)
            assert len(refused) == len(set(refused)) > 0
            assert {type(error) for _, error in caught.value.refused} == {NotStored}
            kept = [message for message in journal_of(bus).reader.messages() if message.payload != b"warm"]
            assert sorted([*texts(kept), *refused], key=int) == published
            assert seqs(kept) == sorted(set(seqs(kept)))
            # Nobody has seen them, and all the others have been seen.
            got = [message for message in await take(plain, len(kept) + 2, ack=False) if message.payload != b"warm"]
            assert sorted(seqs(got)) == seqs(kept)
            wanted = [message for message in kept if message.topic == "a"]
            assert (await take(durable, len(wanted) + 1))[1:] == wanted
            stats = bus.stats()
            assert stats.total_refused == len(refused)
            assert stats.total_messages == len(kept) + 4
            for message, _ in caught.value.refused:
                assert [outcome.fate for outcome in (await bus.explain(message.id)).outcomes] == [tl.Fate.REFUSED]


async def test_it_is_told_once(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        await warm(bus, "a")
        disk = BadDisk(journal_of(bus))
        async with bus.pipeline() as pipe:
            disk.full = True
            await pipe.publish("a", b"1")
            with pytest.raises(PartlyRefused, match="1 of 1 message refused"):
                await pipe.flush()
            disk.full = False
            await pipe.publish("a", b"2")
            await pipe.flush()
            disk.full = True
            await pipe.publish("a", b"3")
            await pipe.publish("a", b"4")
            with pytest.raises(PartlyRefused, match="2 of 2 messages refused"):
                await pipe.flush()
            disk.full = False
        assert texts(journal_of(bus).reader.messages())[1:] == ["2"]


@slowly
async def test_a_subscriber_that_rejects(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    async with (
        Place(simulation, tmp_path, slow=slow).bus() as bus,
        bus.subscribe("a", name="x", capacity=4, overflow="reject") as stream,
    ):
        with pytest.raises(PartlyRefused) as caught:
            await send(bus, *numbers(10))
        assert texts(message for message, _ in caught.value.refused) == numbers(6, 4)
        assert {type(error) for _, error in caught.value.refused} == {InboxFull}
        assert texts(await take(stream, 4, ack=False)) == numbers(4)
        assert texts(journal_of(bus).reader.messages("a")) == numbers(10)


# Slow subscribers


@slowly
async def test_a_slow_subscriber_slows_it_down(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    """As it slows `bus.publish` down: waiting by the policy `block` is not a refusal."""
    limits = tl.Backpressure(max_pending=10, timeout_s=30)
    async with (
        Place(simulation, tmp_path, slow=slow).bus(backpressure=limits) as bus,
        bus.subscribe("a", name="x", capacity=5) as stream,
    ):
        await warm(bus, "a")

        async def consume() -> list[tl.Message]:
            got: list[tl.Message] = []
            while len(got) < 101:
                got += await take(stream, 1, ack=False)
                await asyncio.sleep(0.05)
            return got

        consuming = asyncio.create_task(consume())
        most = 0
        async with bus.pipeline(in_flight=8) as pipe:
            for text in numbers(100):
                await pipe.publish("a", text.encode())
                most = max(most, len(stream.inbox.parked))
        assert texts(await consuming)[1:] == numbers(100)
        assert most <= 8, "more wait for room than may be under way"


async def test_it_ends_when_there_is_room_for_all(simulation: Simulation, tmp_path: Path) -> None:
    async with (
        Place(simulation, tmp_path).bus() as bus,
        bus.subscribe("a", name="x", capacity=3) as stream,
    ):
        sending = asyncio.create_task(send(bus, *numbers(6)))
        await asyncio.sleep(1)
        assert not sending.done(), "three wait for room"
        assert texts(await take(stream, 6, ack=False)) == numbers(6)
        await sending


async def test_two_tasks_share_one(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path, slow=True).bus() as bus:
        await warm(bus, "a", "b")

        async def send(pipe: tl.Pipeline, topic: str) -> None:
            for text in numbers(20):
                await pipe.publish(topic, text.encode())

        async with asyncio.timeout(60), bus.pipeline(in_flight=3) as pipe, asyncio.TaskGroup() as group:
            for topic in "ab":
                group.create_task(send(pipe, topic))
        for topic in "ab":
            assert texts(journal_of(bus).reader.messages(topic))[1:] == numbers(20)


# The end


async def test_if_the_block_fails_its_error_counts(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path, slow=True).bus() as bus:
        await warm(bus, "a")
        with pytest.raises(ZeroDivisionError):
            await send(bus, *numbers(5), then=ZeroDivisionError())
        assert texts(journal_of(bus).reader.messages())[1:] == numbers(5), "what was begun is done"


async def test_if_the_block_fails_nothing_goes_on_behind(simulation: Simulation, tmp_path: Path) -> None:
    """Publishes that wait for room are cancelled or awaited: none continues in the background."""
    async with (
        Place(simulation, tmp_path).bus() as bus,
        bus.subscribe("a", name="x", capacity=1),
    ):
        await warm(bus, "a")
        before = asyncio.all_tasks()
        with pytest.raises((ZeroDivisionError, PartlyRefused)):
            await send(bus, "1", then=ZeroDivisionError())
        assert asyncio.all_tasks() == before


async def test_cancelled_it_ends(simulation: Simulation, tmp_path: Path) -> None:
    async with (
        Place(simulation, tmp_path).bus() as bus,
        bus.subscribe("a", name="x", capacity=1) as stream,
    ):
        await warm(bus, "a")
        before = asyncio.all_tasks()

        sending = asyncio.create_task(send(bus, *numbers(5)))
        await asyncio.sleep(1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert asyncio.all_tasks() == before
        assert texts(await take(stream, 1, ack=False)) == ["warm"]
        assert not stream.inbox.parked


async def test_on_a_closed_bus(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        await warm(bus, "a")
        pipe = bus.pipeline()
        await bus.aclose()
        with pytest.raises(BusClosed):
            await pipe.publish("a", b"1")


async def test_it_needs_room_for_one(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        with pytest.raises(UsageError):
            bus.pipeline(in_flight=0)
        async with bus.pipeline(in_flight=1) as pipe:
            for text in numbers(5):
                await pipe.publish("a", text.encode())
        assert texts(journal_of(bus).reader.messages()) == numbers(5)


async def test_without_a_journal_it_publishes_as_ever(simulation: Simulation) -> None:
    async with tl.connect() as bus, bus.subscribe("a") as stream:
        async with bus.pipeline() as pipe:
            for text in numbers(5):
                await pipe.publish("a", text.encode())
        assert texts(await take(stream, 5, ack=False)) == numbers(5)
