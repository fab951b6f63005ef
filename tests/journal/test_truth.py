"""Random schedules: at the end, the journal's fates are the true ones, for each message and each subscriber.

Publishers, plain subscribers, durable ones, cancellations, full disks, sealing and restarts are drawn from a seed, as
is the order of their steps. Now and then it is checked what a crash would leave. `play(seed)` replays one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.journal.journals import BadDisk, Place, journal_of, take, tend
from trunkline.journal import Reader
from trunkline.journal.settings import TopicStorage
from trunkline.testing import Simulation, simulate
from trunkline.topic import covers, matches

TOPICS = ("d.a", "d.b", "r.a", "n.a")
"""Durable, recorded, and not kept, unless everything is."""
PLAIN = ("d.a", "d.*", "r.*", "*.a", ">")
DURABLE = ("d.a", "d.*", "r.a", "*.a", ">")
RECORDED = ("r.>", ">")
"""With the second of them everything is kept, and a durable subscription may be on all of it."""


class Play:
    def __init__(self, simulation: Simulation, directory: Path, *, slow: bool) -> None:
        self.simulation = simulation
        self.random = simulation.random
        recorded = self.random.choice(RECORDED)
        self.place = Place(simulation, directory, slow=slow, seal_rows=60, durable=("d.>",), recorded=(recorded,))
        self.full_at_times = self.random.random() < 0.3
        self.durable = [pattern for pattern in DURABLE if covers(recorded, pattern) or covers("d.>", pattern)]
        self.numbers = itertools.count()
        self.messages: dict[str, tl.Message] = {}
        """All that anybody has seen, or that is in the journal, by id."""
        self.seen: defaultdict[str, set[str]] = defaultdict(set)
        """By subscriber: what it took, or acknowledged where that is needed."""
        self.fates: defaultdict[str, dict[str, tl.Fate]] = defaultdict(dict)
        """By subscriber: what its own books say of a message."""
        self.dead: defaultdict[str, set[str]] = defaultdict(set)
        self.cursors: dict[str, str] = {}
        self.published: set[str] = set()
        """On durable topics, and the publisher was told so."""

    async def run(self) -> None:
        for life in range(3):
            async with self.place.bus(backpressure=tl.Backpressure(max_pending=8, timeout_s=2)) as bus:
                self.life = life
                await self.live(bus)
        await self.drain()
        self.judge()

    def pause_s(self) -> float:
        return self.random.choice([0, 0, 0.001, 0.01, self.random.uniform(0, 0.3)])

    async def live(self, bus: tl.Bus) -> None:
        async with asyncio.TaskGroup() as cast:
            for number in range(3):
                cast.create_task(self.subscribe(bus, f"plain {self.life}.{number}"))
            for number in range(2):
                cast.create_task(self.subscribe_durably(bus, f"durable {number}", f"member {self.life}.{number}"))
                cast.create_task(self.subscribe_durably(bus, "group", f"worker {self.life}.{number}"))
            for _ in range(3):
                cast.create_task(self.publish(bus))
            cast.create_task(self.tend(bus))
            cast.create_task(self.replay(bus))
            cast.create_task(self.crash())
            if self.full_at_times:
                cast.create_task(self.fill_the_disk(bus))
        await self.note(bus)

    # Who does something

    async def publish(self, bus: tl.Bus) -> None:
        for _ in range(self.random.randint(2, 8)):
            await asyncio.sleep(self.pause_s())
            task = asyncio.create_task(self.publish_some(bus))
            if self.random.random() < 0.2:
                await asyncio.sleep(self.random.choice([0, 0.0001, 0.005, 0.1]))
                task.cancel()
            with suppress(asyncio.CancelledError, tl.Refused):
                await task

    async def publish_some(self, bus: tl.Bus) -> None:
        topic = self.random.choice(TOPICS)
        payloads = [b"%d" % next(self.numbers) for _ in range(self.random.randint(1, 4))]
        ids: list[str] = []
        match self.random.randrange(4):
            case 0:
                ids = [await bus.publish(topic, payloads[0])]
            case 1:
                fields: Any = self.random.choice([{"priority": 80}, {"headers": {"k": "v"}}, {"requires_ack": True}])
                ids = [await bus.publish(topic, payloads[0], **fields)]
            case 2:
                ids = await bus.publish_many(topic, payloads)
            case 3:
                async with bus.pipeline(in_flight=3) as pipe:
                    ids = [await pipe.publish(topic, payload) for payload in payloads]
        if topic.startswith("d."):
            self.published.update(ids)

    async def subscribe(self, bus: tl.Bus, name: str) -> None:
        await asyncio.sleep(self.pause_s())
        ack = self.random.random() < 0.4
        options: Any = {
            "name": name,
            "capacity": self.random.choice([1, 3, 50]),
            "overflow": self.random.choice(["block", "drop_oldest", "drop_newest", "reject"]),
            "ack": ack,
            "group": self.random.choice([None, None, "plain group"]),
            "where": self.random.choice([None, None, "payload != 3"]),
            "lease_s": 0.2,
            "retry": tl.Retry(attempts=2, delay_s=0.05),
        }
        async with bus.subscribe(self.random.choice(PLAIN), **options) as stream:
            for _ in range(self.random.randint(0, 15)):
                message = await self.next_of(stream, None if ack else name)
                if message is None:
                    break
                if ack or message.requires_ack:
                    await self.acknowledge(stream, message, name)

    async def subscribe_durably(self, bus: tl.Bus, name: str, member: str) -> None:
        await asyncio.sleep(self.pause_s())
        group = name == "group"
        pattern = self.cursors.setdefault(name, self.random.choice(self.durable))
        options: Any = {
            "name": member if group else name,
            "group": "group" if group else None,
            "durable": True,
            "capacity": self.random.choice([1, 3, 50]),
            "start": "beginning",
            "lease_s": 0.2,
            "retry": tl.Retry(attempts=3, delay_s=0.05),
        }
        stream = bus.broker.subscribe(pattern, tl.Delivery(**options))
        # The disk may be full just now: then it is for the next one to try.
        with suppress(tl.NotStored):
            await stream.opened()
            for _ in range(self.random.randint(0, 15)):
                message = await self.next_of(stream)
                if message is None:
                    break
                await self.acknowledge(stream, message, name)
        await stream.aclose()

    async def next_of(self, stream: tl.Stream, taker: str | None = None) -> tl.Message | None:
        message = None
        with suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                message = await stream.recv()
        if message is not None:
            self.messages[message.id] = message
            if taker is not None and not message.requires_ack:
                self.seen[taker].add(message.id)
            await asyncio.sleep(self.pause_s())
        return message

    async def acknowledge(self, stream: tl.Stream, message: tl.Message, name: str) -> None:
        choice = self.random.random()
        if choice < 0.7:
            if stream.ack(message):
                self.seen[name].add(message.id)
        elif choice < 0.8:
            stream.nack(message, "not now")
        elif choice < 0.85:
            stream.reject(message, "never")
        else:
            await asyncio.sleep(0.3)

    async def tend(self, bus: tl.Bus) -> None:
        for _ in range(2):
            await asyncio.sleep(self.random.uniform(0, 0.5))
            with suppress(tl.NotStored):
                tend(bus, everything=self.random.random() < 0.5)

    async def replay(self, bus: tl.Bus) -> None:
        for _ in range(3):
            await asyncio.sleep(self.random.uniform(0, 0.6))
            mine = [letter for letter in bus.dead_letters if letter.subscriber in bus.broker.served.receivers]
            if mine:
                bus.dead_letters.replay(self.random.choice(mine))

    async def fill_the_disk(self, bus: tl.Bus) -> None:
        disk = BadDisk(journal_of(bus))
        for _ in range(3):
            await asyncio.sleep(self.random.uniform(0, 0.4))
            disk.full = True
            await asyncio.sleep(self.random.uniform(0, 0.1))
            disk.full = False

    async def crash(self) -> None:
        """Sometimes, check the state that would be left if the process died at this moment."""
        for _ in range(2):
            await asyncio.sleep(self.random.uniform(0, 0.5))
            with self.place.crash().reader() as reader:
                self.judge_crash(reader)

    # What is true

    def judge_crash(self, reader: Reader) -> None:
        """Published messages are stored, written fates are true, and a durable subscription has lost nothing."""
        kept = list(reader.messages())
        assert self.published <= {message.id for message in kept}
        letters = {*reader.query("SELECT subscriber, seq FROM dead_letters")}
        waiting = {*reader.query("SELECT subscriber, seq FROM retries")}
        known = {name for (name,) in reader.query("SELECT name FROM cursors")}
        for message in kept:
            told = {outcome.subscriber: outcome.fate for outcome in reader.outcomes(message)}
            for name, fate in told.items():
                if fate is tl.Fate.DELIVERED:
                    assert message.id in self.seen[name], f"{name} has not got {message}"
            for name in known:
                if matches(self.cursors[name], message.topic):
                    assert name in told, f"{message} is lost to {name}"
                    if told[name] is tl.Fate.DEAD:
                        assert (name, message.seq) in letters | waiting, f"{message} is dead, and its letter is lost"

    async def note(self, bus: tl.Bus) -> None:
        """All plain subscribers have left: the journal must agree with their final books."""
        await bus.flush()
        there = [*self.messages.values(), *journal_of(bus).reader.messages()]
        for leaver in bus.broker.served._leavers:
            if leaver.name.startswith("plain"):
                books = ((message, leaver.outcome_of(message)) for message in there)
                self.fates[leaver.name] |= {message.id: outcome.fate for message, outcome in books if outcome}
        self.dead.clear()
        for letter in bus.dead_letters:
            self.dead[letter.subscriber].add(letter.message.id)

    async def drain(self) -> None:
        """One more run, in which all waiting messages of a durable subscription are taken."""
        async with self.place.bus() as bus:
            for name, pattern in self.cursors.items():
                kept = {message.id for message in journal_of(bus).reader.messages(pattern)}
                open_ones = kept - self.seen[name] - self.dead[name]
                options: Any = {"group": name} if name == "group" else {"name": name}
                async with bus.subscribe(pattern, durable=True, **options) as stream:
                    got = await take(stream, len(open_ones), timeout_s=100)
                    assert {message.id for message in got} == open_ones, name
                    self.seen[name] |= open_ones
                    with suppress(TimeoutError):
                        async with asyncio.timeout(100):
                            more = await stream.recv()
                            raise AssertionError(f"{name} got {more} again")

    def judge(self) -> None:
        with self.place.reader() as reader:
            kept = list(reader.messages())
            assert [message.seq for message in kept] == sorted({message.seq for message in kept})
            told = {
                message.id: {outcome.subscriber: outcome.fate for outcome in reader.outcomes(message)}
                for message in kept
            }
        by_id = {message.id: message for message in kept}
        for message in self.messages.values():
            must = (TopicStorage.DURABLE,) if self.full_at_times else (TopicStorage.DURABLE, TopicStorage.RECORDED)
            if self.place.settings.keeps(message.topic) in must:
                assert message.id in by_id, f"{message} was seen, and is not in the journal"
        for message_id, message in by_id.items():
            truth: dict[str, tl.Fate] = {}
            for name, books in self.fates.items():
                if message_id in books:
                    truth[name] = books[message_id]
                assert (books.get(message_id) is tl.Fate.DELIVERED) == (message_id in self.seen[name]), (name, message)
            for name, pattern in self.cursors.items():
                if matches(pattern, message.topic):
                    delivered = message_id in self.seen[name]
                    truth[name] = tl.Fate.DELIVERED if delivered else tl.Fate.DEAD
            assert told[message_id] == truth, message


def play(seed: int, directory: Path, *, slow: bool = True) -> None:
    simulate(lambda simulation: Play(simulation, directory, slow=slow).run(), seed=seed)


@pytest.mark.parametrize("seed", range(7))
def test_the_journal_tells_the_truth(seed: int, tmp_path: Path) -> None:
    play(seed, tmp_path, slow=bool(seed % 3))


@pytest.mark.long
@pytest.mark.parametrize("block", range(5))
def test_the_journal_tells_the_truth_whatever_happens(block: int, tmp_path: Path) -> None:
    for seed in range(1000 + block * 30, 1030 + block * 30):
        play(seed, tmp_path, slow=bool(seed % 3))
