"""The lag of a durable subscription: messages that match its pattern and have no fate, wherever they are stored."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trunkline as tl
from tests.journal.journals import Place, broker_of, journal_of, take, tend, until
from trunkline.journal import JournalBroker
from trunkline.journal.settings import Retention
from trunkline.journal.stats import stats
from trunkline.testing import Simulation

TOPICS = ("a.x", "a.y", "b", "c.d")


async def behind(bus: tl.Bus) -> dict[str, int]:
    """From the hub's snapshot. On disk it is the same, when everything is written."""
    found = {place.name: place.behind for place in (await broker_of(bus).store.summary()).places}
    await journal_of(bus).flush()
    assert {each.name: each.behind for each in stats(journal_of(bus).directory).cursors} == found
    return found


async def test_only_what_matches_counts_connected_or_not(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        async with bus.subscribe("a.*", name="reader", durable=True) as stream:
            await bus.publish_many("a.x", range(3))
            await bus.publish_many("b", range(1000))
            await take(stream, 3)
            assert await behind(bus) == {"reader": 0}
            await bus.publish_many("a.y", range(2))
            await bus.publish_many("b", range(1000))
            assert await behind(bus) == {"reader": 2}
            await take(stream, 2)
        assert await behind(bus) == {"reader": 0}
        await bus.publish_many("b", range(1000))
        assert await behind(bus) == {"reader": 0}
        await bus.publish_many("a.x", range(7))
        assert await behind(bus) == {"reader": 7}


async def test_in_the_middle_of_a_batch_and_of_a_sealed_file(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    async with place.bus() as bus:
        async with bus.subscribe("a.*", name="reader", durable=True) as stream:
            await bus.publish_many("a.x", range(10))
            await bus.publish_many("b", range(10))
            await bus.publish_many("a.y", range(10))
            got = await take(stream, 14, ack=False)
            for number, each in enumerate(got):
                if number not in (3, 5):
                    stream.ack(each)
        assert await behind(bus) == {"reader": 2 + 6}
        tend(bus, everything=True)
        assert await behind(bus) == {"reader": 2 + 6}
        await bus.publish_many("a.x", range(5))
        assert await behind(bus) == {"reader": 2 + 6 + 5}
    async with place.bus() as bus:
        # Nothing is remembered of the last time: it is counted again, partly from the file.
        assert await behind(bus) == {"reader": 2 + 6 + 5}
        async with bus.subscribe("a.*", name="reader", durable=True) as stream:
            await take(stream, 9)
            assert await behind(bus) == {"reader": 4}
            await take(stream, 4)
            assert await behind(bus) == {"reader": 0}


async def test_a_dead_letter_that_is_to_be_handled_again_counts(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    async with place.bus() as bus:

        @bus.on("a", name="reader", durable=True, retry=tl.Retry(attempts=1))
        async def fail() -> None:
            raise ValueError("no")

        await bus.publish("a")
        await until(lambda: len(bus.dead_letters))
        assert await behind(bus) == {"reader": 0}
    with place.journal() as journal:
        assert journal.replay_dead([("reader", 1)]) == 1
    async with place.bus() as bus:
        assert await behind(bus) == {"reader": 1}


async def test_what_retention_removes_unread_does_not_count(simulation: Simulation, tmp_path: Path) -> None:
    rule = Retention(topics="a", max_count=1, even_unread=True)
    async with Place(simulation, tmp_path, retention=(rule,)).bus() as bus:
        async with bus.subscribe("a", name="reader", durable=True):
            pass
        for _ in range(5):
            await bus.publish("a")
        await bus.publish("b")
        assert await behind(bus) == {"reader": 5}
        tend(bus)
        assert await behind(bus) == {"reader": 1}


@pytest.mark.parametrize("slow", [False, True], ids=["at once", "slow"])
async def test_whatever_happens_between_two_looks(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    """A count that is updated equals one that is computed again from the messages."""
    random = simulation.random
    place = Place(simulation, tmp_path, slow=slow)
    patterns = {"all": ">", "some": "a.*", "one": "c.d"}
    async with place.bus() as bus:
        left = dict.fromkeys(patterns, 0)
        for name, pattern in patterns.items():
            async with bus.subscribe(pattern, name=name, durable=True):
                pass
        for _ in range(12):
            for _ in range(random.randint(0, 3)):
                topic, count = random.choice(TOPICS), random.choice([1, 2, 30])
                await bus.publish_many(topic, [b""] * count)
                for name in [name for name in patterns if tl.topic.matches(patterns[name], topic)]:
                    left[name] += count
            if random.random() < 0.3:
                tend(bus, everything=random.random() < 0.7)
            name = random.choice([*patterns, ""])
            if name:
                async with bus.subscribe(patterns[name], name=name, durable=True, capacity=20) as stream:
                    count = random.randint(0, left[name])
                    await take(stream, count)
                    left[name] -= count
                    if random.random() < 0.5:
                        places = (await broker_of(bus).store.summary()).places
                        assert {each.name: each.behind for each in places} == left
            if random.random() < 0.6:
                await journal_of(bus).flush()
                assert await behind(bus) == left


async def test_a_second_look_reads_only_what_is_new(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        for number in range(5):
            async with bus.subscribe("a", name=f"reader {number}", durable=True):
                await bus.publish("a")
        for number in range(600):
            await bus.publish("a" if number % 2 else "b")
        steps = 0

        def step() -> None:
            nonlocal steps
            steps += 1

        journal_of(bus).reader._database.set_progress_handler(step, 10)
        await broker_of(bus).store.summary()
        first, steps = steps, 0
        await bus.publish("a")
        await broker_of(bus).store.summary()
        assert first > 600
        assert steps < first / 20


def test_the_event_loop_asks_no_database(tmp_path: Path) -> None:
    async def life() -> None:
        async with tl.connect("memory:", journal=tmp_path, name="shop") as bus:
            async with bus.subscribe("a", name="reader", durable=True):
                await bus.publish_many("a", range(3))
            asked: list[str] = []
            assert isinstance(bus.broker, JournalBroker)
            bus.broker.journal.reader._database.set_trace_callback(asked.append)
            found = await asyncio.gather(*(bus.broker.store.summary() for _ in range(3)))
            assert [[place.behind for place in each.places] for each in found] == [[3]] * 3
            assert asked == []

    asyncio.run(life())
