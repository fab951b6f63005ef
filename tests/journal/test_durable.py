"""Durable subscriptions while the process lives: at least once, in order, shared, from any start, at any rate."""

from __future__ import annotations

import asyncio
import gc
import itertools
import warnings
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.journal.journals import (
    NS,
    Place,
    broker_of,
    journal_of,
    nothing_more,
    seqs,
    take,
    tend,
    texts,
    until,
)
from trunkline.errors import DuplicateName, InvalidSettings, Unsupported
from trunkline.testing import Simulation

slowly = pytest.mark.parametrize("slow", [False, True], ids=["at once", "slow"])


async def publish(bus: tl.Bus, topic: str, *payloads: object) -> None:
    for payload in payloads:
        await bus.publish(topic, str(payload).encode())


# At least once, and in order


@slowly
async def test_what_is_published_comes_once_and_in_order(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    async with (
        Place(simulation, tmp_path, slow=slow).bus() as bus,
        bus.subscribe("a.*", durable=True, name="x") as stream,
    ):
        await publish(bus, "a.b", *range(20))
        await publish(bus, "b.b", "not for it")
        await bus.publish_many("a.c", [b"20", b"21"])
        got = await take(stream, 22)
        assert texts(got) == [str(number) for number in range(22)]
        assert seqs(got) == sorted(seqs(got))
        await nothing_more(stream)


async def test_it_is_on_disk_before_anybody_sees_it(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path, slow=True)
    async with (
        place.bus() as bus,
        bus.subscribe("a") as plain,
        bus.subscribe("a", durable=True, name="x") as durable,
    ):
        publishing = asyncio.create_task(publish(bus, "a", *range(5)))
        for stream in (plain, durable):
            got = await stream.recv()
            assert got is not None
            with place.reader() as reader:
                assert got in list(reader.messages())
        await publishing


@slowly
async def test_what_is_not_acknowledged_comes_again(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    async with Place(simulation, tmp_path, slow=slow).bus() as bus:
        again = tl.Retry(attempts=3, delay_s=5, jitter=0)
        async with bus.subscribe("a", durable=True, name="x", lease_s=10, retry=again) as stream:
            await publish(bus, "a", 1)
            (first,) = await take(stream, 1, ack=False)
            since = simulation.now()
            (second,) = await take(stream, 1, ack=False)
            assert simulation.now() - since == pytest.approx(15, abs=0.1)
            assert (second.id, second.seq, first.attempts, second.attempts) == (first.id, first.seq, 0, 1)
            assert not stream.ack(first), "its lease had ended"
            assert stream.ack(second)
            await nothing_more(stream, 60)


async def test_a_lease_is_renewed_while_a_handler_works(simulation: Simulation, tmp_path: Path) -> None:
    calls: list[str] = []
    async with Place(simulation, tmp_path).bus() as bus:

        async def handle(message: tl.Message) -> None:
            calls.append(message.id)
            await asyncio.sleep(100)

        bus.handle("a", handle, durable=True, name="x", lease_s=3)
        await publish(bus, "a", 1, 2)
        await bus.quiet()
        assert len(calls) == len(set(calls)) == 2
        await journal_of(bus).flush()
        assert journal_of(bus).progress(journal_of(bus).reader.query)[0].low == 2


async def test_handlers_retry_and_give_up(simulation: Simulation, tmp_path: Path) -> None:
    calls: Counter[bytes] = Counter()
    async with Place(simulation, tmp_path).bus() as bus:

        async def handle(message: tl.Message) -> None:
            calls[message.payload] += 1
            if message.payload == b"bad" or calls[message.payload] == 1:
                raise ValueError("no")

        bus.handle("a", handle, durable=True, name="x", retry=tl.Retry(attempts=3, delay_s=1))
        await publish(bus, "a", "good", "bad")
        await bus.quiet()
        assert calls == {b"good": 2, b"bad": 3}
        (letter,) = bus.dead_letters
        assert (letter.subscriber, letter.message.payload, len(letter.attempts)) == ("x", b"bad", 3)
        await journal_of(bus).flush()
        outcomes = {
            each.payload: [outcome.fate for outcome in journal_of(bus).reader.outcomes(each)]
            for each in journal_of(bus).reader.messages("a")
        }
        assert outcomes == {b"good": [tl.Fate.DELIVERED], b"bad": [tl.Fate.DEAD]}


# Where it begins


@pytest.mark.parametrize("sealed", [False, True], ids=["journal", "lake"])
async def test_where_it_begins(simulation: Simulation, tmp_path: Path, sealed: bool) -> None:
    async with Place(simulation, tmp_path, seal_rows=6).bus() as bus:
        times = []
        for number in range(6):
            times.append(simulation.time_ns())
            await publish(bus, "a", number)
            await asyncio.sleep(1)
        if sealed:
            tend(bus, everything=True)
        starts: dict[str, int | str] = {
            "at the beginning": "beginning",
            "at the end": "end",
            "at a number": 3,
            "above all numbers": 7,
            "at a time": f"{datetime.fromtimestamp(times[2] / NS, UTC):%Y-%m-%dT%H:%M:%SZ}",
            "before all times": "2000-01-01",
            "after all times": "2100-01-01T00:00:00+01:00",
        }
        wanted = {
            "at the beginning": "012345",
            "at the end": "",
            "at a number": "2345",
            "above all numbers": "",
            "at a time": "2345",
            "before all times": "012345",
            "after all times": "",
        }
        streams = {
            name: await bus.subscribe("a", durable=True, name=name, start=start).open()
            for name, start in starts.items()
        }
        await publish(bus, "a", "new")
        for name, stream in streams.items():
            assert texts(await take(stream, len(wanted[name]) + 1)) == [*wanted[name], "new"], name
            await nothing_more(stream, 1)
            await stream.aclose()


async def test_where_it_begins_counts_only_the_first_time(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        await publish(bus, "a", 1, 2, 3)
        async with bus.subscribe("a", durable=True, name="x", start="beginning") as stream:
            await take(stream, 2)
        async with bus.subscribe("a", durable=True, name="x", start="beginning") as stream:
            assert texts(await take(stream, 1)) == ["3"]
        async with bus.subscribe("a", durable=True, name="x", start="end") as stream:
            await publish(bus, "a", 4)
            assert texts(await take(stream, 1)) == ["4"]


async def test_a_start_that_is_none_is_refused(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        with pytest.raises(InvalidSettings, match='starts at the "beginning", the "end"'):
            await bus.subscribe("a", durable=True, name="x", start="yesterday").open()
        assert journal_of(bus).reader.query("SELECT * FROM cursors") == []


async def test_nothing_is_missed_between_the_past_and_the_present(simulation: Simulation, tmp_path: Path) -> None:
    """Publishers continue while a subscription catches up."""
    async with Place(simulation, tmp_path, slow=True).bus() as bus:
        await publish(bus, "a", *range(50))

        async def go_on() -> None:
            for number in range(50, 150):
                await publish(bus, "a", number)
                await asyncio.sleep(simulation.random.choice([0, 0, 0.001, 0.02]))

        going = asyncio.create_task(go_on())
        async with bus.subscribe("a", durable=True, name="x", start="beginning", capacity=7) as stream:
            got = []
            for _ in range(150):
                got += await take(stream, 1)
                await asyncio.sleep(simulation.random.choice([0, 0, 0, 0.01]))
            assert texts(got) == [str(number) for number in range(150)]
            await nothing_more(stream)
        await going


# Slow subscribers


@pytest.mark.parametrize("sealed", [False, True], ids=["journal", "lake"])
@slowly
async def test_a_slow_subscriber_keeps_nobody_waiting(
    simulation: Simulation, tmp_path: Path, sealed: bool, slow: bool
) -> None:
    async with (
        Place(simulation, tmp_path, slow=slow, seal_rows=8).bus() as bus,
        bus.subscribe("a", durable=True, name="x", capacity=3) as stream,
    ):
        before = simulation.now()
        await publish(bus, "a", *range(60))
        assert simulation.now() - before < 5
        assert stream.account().accepted <= 3
        if sealed:
            tend(bus, everything=True)
            assert journal_of(bus).reader.query("SELECT count(*) FROM batches") == [(0,)]
        await publish(bus, "a", *range(60, 80))
        assert texts(await take(stream, 80)) == [str(number) for number in range(80)]
        await nothing_more(stream)


async def test_it_catches_up_while_everything_moves(simulation: Simulation, tmp_path: Path) -> None:
    """From lake to journal to current publishes, while ranges are sealed and files joined."""
    async with Place(simulation, tmp_path, slow=True, seal_rows=10, replaced_s=1).bus() as bus:
        stop = asyncio.Event()

        async def move() -> None:
            while not stop.is_set():
                await asyncio.sleep(simulation.random.uniform(0, 0.1))
                tend(bus, everything=simulation.random.random() < 0.5)

        async with (
            bus.subscribe("a", durable=True, name="x", capacity=4) as stream,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(publish(bus, "a", *range(120)))
            group.create_task(publish(bus, "b", *range(40)))
            group.create_task(move())
            got = []
            for _ in range(120):
                got += await take(stream, 1)
                await asyncio.sleep(simulation.random.choice([0, 0, 0.005]))
            stop.set()
        assert texts(got) == [str(number) for number in range(120)]


async def test_a_place_that_is_free_is_filled(simulation: Simulation, tmp_path: Path) -> None:
    """A worker is not idle while messages wait, even if other workers take long."""
    async with (
        Place(simulation, tmp_path).bus() as bus,
        bus.subscribe("a", durable=True, name="x", capacity=8, lease_s=1000) as stream,
    ):
        await publish(bus, "a", *range(20))
        held = await take(stream, 8, ack=False)
        stream.ack(held[0])
        assert texts(await take(stream, 1, timeout_s=10)) == ["8"]


async def test_more_members_than_room_for_each_are_fed(simulation: Simulation, tmp_path: Path) -> None:
    done: list[bytes] = []

    async def work(message: tl.Message) -> None:
        await asyncio.sleep(1000 if message.payload == b"0" else 1)
        done.append(message.payload)

    async with Place(simulation, tmp_path).bus() as bus:
        bus.handle("a", work, durable=True, name="x", capacity=10, concurrency=10)
        await publish(bus, "a", *range(40))
        await asyncio.sleep(30)
        assert len(done) == 39, "one that takes long keeps others from their work"
        await bus.quiet()


@slowly
async def test_everything_at_once(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    """Numbers that were never stored, and topics that are not kept, leave gaps that no reader waits for."""
    async with Place(simulation, tmp_path, slow=slow, durable=("a", "b"), recorded=("c",)).bus() as bus:
        async with bus.subscribe("a") as plain:
            for number in range(10):
                await publish(bus, "a", number)
                await publish(bus, "not.kept", number)
                await publish(bus, "c", number)
            assert len(await take(plain, 10, ack=False)) == 10
        async with bus.subscribe("a", durable=True, name="x", start="beginning") as stream:
            assert texts(await take(stream, 10)) == [str(number) for number in range(10)]


async def test_a_hole_in_the_numbers_is_not_waited_at(simulation: Simulation, tmp_path: Path) -> None:
    """The last number may belong to a message that is not stored."""
    place = Place(simulation, tmp_path, slow=True, durable=("a",))
    async with place.bus() as bus:
        await publish(bus, "a", 1)
        await publish(bus, "not.kept", 2)
    async with place.bus() as bus:
        journal = journal_of(bus)
        asked = 0
        original = journal.in_thread

        async def in_thread(function: Any) -> Any:
            nonlocal asked
            asked += 1
            return await original(function)

        journal.in_thread = in_thread  # type: ignore[method-assign]  # only counted
        async with bus.subscribe("a", durable=True, name="x", start="beginning") as stream:
            assert texts(await take(stream, 1)) == ["1"]
            await asyncio.sleep(60)
            assert asked < 20, f"{asked} looks into a journal in which nothing has changed"
            await publish(bus, "a", 3)
            assert texts(await take(stream, 1)) == ["3"]


# Topics that are kept in several ways


@slowly
async def test_recorded_and_durable_topics_in_one_subscription(
    simulation: Simulation, tmp_path: Path, slow: bool
) -> None:
    """Recorded messages are delivered before they are written, and must not make others look old."""
    async with (
        Place(simulation, tmp_path, slow=slow, durable=("a.>",), recorded=(">",)).bus() as bus,
        bus.subscribe(">", durable=True, name="x") as stream,
    ):
        await asyncio.sleep(1)
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(bus.publish("a.1", f"a{number}".encode()))
                group.create_task(bus.publish("b.1", f"b{number}".encode()))
                await asyncio.sleep(simulation.random.choice([0, 0.001, 0.01]))
        got = await take(stream, 40)
        assert sorted(texts(got)) == sorted(f"{kind}{number}" for kind in "ab" for number in range(20))
        await nothing_more(stream)


async def test_a_recorded_topic_is_never_left_behind(simulation: Simulation, tmp_path: Path) -> None:
    """Delivered while the subscription was reading, written after it had read: it must still be found."""
    async with (
        Place(simulation, tmp_path, slow=True, durable=(), recorded=(">",)).bus() as bus,
        bus.subscribe("a", durable=True, name="x", capacity=3) as stream,
    ):
        got = []
        publishing = asyncio.create_task(publish(bus, "a", *range(100)))
        for _ in range(100):
            got += await take(stream, 1)
            await asyncio.sleep(simulation.random.choice([0, 0, 0.001, 0.01]))
        await publishing
        assert texts(got) == [str(number) for number in range(100)]


async def test_everything_in_one_subscription(simulation: Simulation, tmp_path: Path) -> None:
    """The bus's own topics are recorded, not durable. A subscription to everything gets both."""
    async with Place(simulation, tmp_path, slow=True).bus() as bus:

        async def fail(message: tl.Message) -> None:
            raise ValueError("no")

        async with bus.subscribe(">", durable=True, name="x") as stream:
            bus.handle("a", fail, retry=tl.Retry(attempts=1), name="fails")
            async with asyncio.TaskGroup() as group:
                for number in range(10):
                    group.create_task(bus.publish("a", str(number).encode()))
                    group.create_task(bus.publish("b", str(number).encode()))
                    await asyncio.sleep(simulation.random.choice([0, 0.001, 0.02]))
            await bus.quiet()
            await asyncio.sleep(1)
            await journal_of(bus).flush()
            there = Counter(each.topic for each in journal_of(bus).reader.messages())
            assert there == {"a": 10, "b": 10, "_dead.a": 10}
            assert Counter(each.topic for each in await take(stream, 30)) == there


# Groups


@slowly
async def test_a_group_shares(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    async with Place(simulation, tmp_path, slow=slow).bus() as bus:
        got: dict[str, list[bytes]] = {"1": [], "2": [], "3": []}

        async def member(name: str) -> None:
            async with bus.subscribe("a", durable=True, group="g", capacity=4) as stream:
                while True:
                    (message,) = await take(stream, 1, timeout_s=1e9)
                    got[name].append(message.payload)
                    await asyncio.sleep(simulation.random.uniform(0, 0.01))

        members = [asyncio.create_task(member(name)) for name in got]
        await asyncio.sleep(1)
        await publish(bus, "a", *range(90))
        await until(lambda: sum(map(len, got.values())) == 90)
        await asyncio.sleep(5)
        together = list(itertools.chain(*got.values()))
        assert sorted(together) == sorted(str(number).encode() for number in range(90)), "each to one of them"
        assert all(len(share) > 10 for share in got.values()), "nobody stands idle"
        for each in members:
            each.cancel()
        await asyncio.gather(*members, return_exceptions=True)


@slowly
async def test_members_come_and_go(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    """A leaving member gives back its messages, sometimes when no other member is there. Each is acknowledged once."""
    random = simulation.random
    async with Place(simulation, tmp_path, slow=slow).bus() as bus:
        acknowledged: Counter[bytes] = Counter()

        async def visit() -> None:
            await asyncio.sleep(random.uniform(0, 2))
            options: Any = {"capacity": random.choice([1, 2, 5]), "lease_s": 1000}
            async with bus.subscribe("a", durable=True, group="g", **options) as stream:
                for _ in range(random.randint(0, 8)):
                    try:
                        async with asyncio.timeout(1):
                            message = await stream.recv()
                    except TimeoutError:
                        break
                    assert message is not None
                    await asyncio.sleep(random.choice([0, 0.001, 0.1]))
                    if random.random() < 0.7:
                        acknowledged[message.payload] += stream.ack(message)

        async with bus.subscribe("a", durable=True, group="g", start="beginning"):
            pass
        async with asyncio.TaskGroup() as group:
            group.create_task(publish(bus, "a", *range(40)))
            for _ in range(12):
                group.create_task(visit())
        async with bus.subscribe("a", durable=True, group="g") as last:
            for message in await take(last, 40 - acknowledged.total()):
                acknowledged[message.payload] += 1
            await nothing_more(last, 2000)
        assert acknowledged == {str(number).encode(): 1 for number in range(40)}


async def test_who_lets_its_lease_end_loses_it_to_another(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        options: Any = {"durable": True, "group": "g", "lease_s": 5, "retry": tl.Retry(delay_s=1, jitter=0)}
        async with (
            bus.subscribe("a", name="dead", **options) as dead,
            bus.subscribe("a", name="well", **options) as well,
        ):
            await publish(bus, "a", 1, 2, 3, 4)
            lost = await take(dead, 2, ack=False)
            await take(well, 2)
            again = await take(well, 2)
            assert sorted(seqs(again)) == sorted(seqs(lost))
            assert [each.attempts for each in again] == [1, 1]
            await nothing_more(well, 60)


async def test_what_a_leaver_had_keeps_its_order(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        async with bus.subscribe("a", durable=True, name="x") as stream:
            await publish(bus, "a", *range(6))
            await take(stream, 3, ack=False)
        async with bus.subscribe("a", durable=True, name="x") as stream:
            assert texts(await take(stream, 6)) == list("012345")


# Filters, duplicates, priorities, time to live


async def test_a_filter_on_a_durable_subscription(simulation: Simulation, tmp_path: Path) -> None:
    async with (
        Place(simulation, tmp_path).bus() as bus,
        bus.subscribe("a", durable=True, name="x", where="payload.n > 2", capacity=2) as stream,
    ):
        for number in range(6):
            await bus.publish("a", {"n": number})
        got = await take(stream, 3)
        assert [each.decode()["n"] for each in got] == [3, 4, 5]
        await journal_of(bus).flush()
        fates = [
            outcome.fate
            for each in journal_of(bus).reader.messages("a")
            for outcome in journal_of(bus).reader.outcomes(each)
        ]
        assert fates == [tl.Fate.FILTERED] * 3 + [tl.Fate.DELIVERED] * 3
        assert journal_of(bus).progress(journal_of(bus).reader.query)[0].low == 6


async def test_an_id_comes_once(simulation: Simulation, tmp_path: Path) -> None:
    async with (
        Place(simulation, tmp_path).bus() as bus,
        bus.subscribe("a", durable=True, name="x", dedupe_s=60) as stream,
    ):
        for _ in range(3):
            await bus.publish("a", b"1", id="the same")
        await bus.publish("a", b"2", id="another")
        assert texts(await take(stream, 2)) == ["1", "2"]
        await nothing_more(stream, 1)


async def test_what_is_replayed_is_no_duplicate(simulation: Simulation, tmp_path: Path) -> None:
    async with (
        Place(simulation, tmp_path).bus() as bus,
        bus.subscribe("a", durable=True, name="x", dedupe_s=600) as stream,
    ):
        await publish(bus, "a", 1)
        (message,) = await take(stream, 1, ack=False)
        stream.reject(message, "not now")
        (letter,) = bus.dead_letters
        bus.dead_letters.replay(letter)
        assert texts(await take(stream, 1, timeout_s=5)) == ["1"]


async def test_priority_and_ttl(simulation: Simulation, tmp_path: Path) -> None:
    async with (
        Place(simulation, tmp_path).bus() as bus,
        bus.subscribe("a", durable=True, name="x") as stream,
    ):
        await bus.publish("a", b"usual")
        await bus.publish("a", b"late", ttl_s=5)
        await bus.publish("a", b"urgent", priority=90)
        await asyncio.sleep(10)
        assert texts(await take(stream, 2)) == ["urgent", "usual"]
        await nothing_more(stream, 1)
        await journal_of(bus).flush()
        fates = {
            each.payload: [outcome.fate for outcome in journal_of(bus).reader.outcomes(each)]
            for each in journal_of(bus).reader.messages("a")
        }
        assert fates == {
            b"usual": [tl.Fate.DELIVERED],
            b"late": [tl.Fate.EXPIRED],
            b"urgent": [tl.Fate.DELIVERED],
        }


# Names


async def test_a_name_is_for_one(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        async with bus.subscribe("a", durable=True, name="x"):
            with pytest.raises(DuplicateName):
                await bus.subscribe("a", durable=True, name="x").open()
            with pytest.raises(DuplicateName):
                await bus.subscribe("a", name="x").open()
            with pytest.raises(InvalidSettings, match="is on 'a', not on 'b'"):
                await bus.subscribe("b", durable=True, name="x").open()
        with pytest.raises(InvalidSettings, match="is on 'a', not on 'b'"):
            await bus.subscribe("b", durable=True, name="x").open()
        async with bus.subscribe("a", durable=True, name="x"):
            pass


async def test_it_needs_a_name(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        with pytest.raises(InvalidSettings, match="needs a name or a group"):
            bus.subscribe("a", durable=True)


async def test_it_needs_topics_that_are_kept(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path, durable=("a.>",), recorded=("b",)).bus() as bus:
        for pattern in (">", "c", "*.b", "b.c"):
            with pytest.raises(InvalidSettings, match="is not kept by the journal"):
                await bus.subscribe(pattern, durable=True, name="x").open()
        for pattern in ("a.*", "b", "a.b"):
            async with bus.subscribe(pattern, durable=True, name=pattern):
                pass


async def test_it_needs_a_journal(simulation: Simulation) -> None:
    async with tl.connect() as bus:
        with pytest.raises(Unsupported):
            bus.subscribe("a", durable=True, name="x")


@pytest.mark.parametrize("why", ["filter", "name"])
async def test_a_subscription_that_was_refused_leaves_nothing(simulation: Simulation, tmp_path: Path, why: str) -> None:
    """Its cursor would keep old messages in the journal, and the next try would have another pattern or start."""
    async with Place(simulation, tmp_path).bus() as bus:
        await publish(bus, "a", 1)
        async with bus.subscribe("b", name="x"):
            options: Any = {"name": "y", "where": "no filter ("} if why == "filter" else {"name": "x"}
            with pytest.raises(tl.TrunklineError):
                await bus.subscribe("b", durable=True, **options).open()
        await journal_of(bus).flush()
        assert journal_of(bus).reader.query("SELECT name FROM cursors") == []
        name = "y" if why == "filter" else "x"
        async with bus.subscribe("a", durable=True, name=name, start="beginning") as stream:
            assert texts(await take(stream, 1)) == ["1"]


async def test_a_stream_that_nobody_holds_makes_room(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        stream = await bus.subscribe("a", durable=True, name="x").open()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del stream
            gc.collect()
        await publish(bus, "a", 1)
        await asyncio.sleep(1)
        async with bus.subscribe("a", durable=True, name="x") as stream:
            assert texts(await take(stream, 1)) == ["1"]


# Forgetting


async def test_forget(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        broker = broker_of(bus)
        assert not await broker.store.forget("x")
        async with bus.subscribe("a", durable=True, name="x", start="beginning") as stream:
            await publish(bus, "a", 1, 2)
            await take(stream, 1)
            with pytest.raises(DuplicateName):
                await broker.store.forget("x")
        assert await broker.store.forget("x")
        assert not await broker.store.forget("x")
        await journal_of(bus).flush()
        assert journal_of(bus).reader.query("SELECT * FROM cursors") == []
        await publish(bus, "a", 3)
        # It starts from scratch, with any start and pattern.
        async with bus.subscribe("*", durable=True, name="x", start="beginning") as stream:
            assert texts(await take(stream, 3)) == ["1", "2", "3"]


@slowly
async def test_what_failed_is_forgotten_too(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    async with Place(simulation, tmp_path, slow=slow).bus() as bus:
        retry = tl.Retry(delay_s=100)
        async with bus.subscribe("a", durable=True, name="x", retry=retry) as stream:
            await publish(bus, "a", 1)
            (message,) = await take(stream, 1, ack=False)
            stream.nack(message)
        # At once: what is to be written of it is not written yet.
        await broker_of(bus).store.forget("x")
        await asyncio.sleep(1)
        assert journal_of(bus).reader.query("SELECT * FROM retries") == []
        async with bus.subscribe("a", durable=True, name="x") as stream:
            await nothing_more(stream, 1000)


async def test_what_was_delivered_stays_on_record(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        async with bus.subscribe("a", durable=True, name="x") as stream:
            await publish(bus, "a", 1)
            (message,) = await take(stream, 1)
        await broker_of(bus).store.forget("x")
        await asyncio.sleep(1)
        (outcome,) = journal_of(bus).reader.outcomes(message)
        assert (outcome.subscriber, outcome.fate) == ("x", tl.Fate.DELIVERED)


# Being quiet, and closing


@slowly
async def test_quiet_means_the_backlog_too(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    done: list[bytes] = []

    async def work(message: tl.Message) -> None:
        await asyncio.sleep(0.01)
        done.append(message.payload)

    async with Place(simulation, tmp_path, slow=slow).bus() as bus:
        await publish(bus, "a", *range(50))
        bus.handle("a", work, durable=True, name="x", start="beginning", capacity=2)
        await bus.quiet()
        assert len(done) == 50
        await publish(bus, "a", *range(50))
        await bus.quiet()
        assert len(done) == 100


@slowly
@pytest.mark.parametrize("own", [False, True], ids=["shared broker", "own broker"])
async def test_closing_does_not_wait_for_the_backlog(
    simulation: Simulation, tmp_path: Path, slow: bool, own: bool
) -> None:
    """They can wait in the journal. Handlers that have started finish, and the rest is redelivered."""
    done: list[str] = []

    async def work(message: tl.Message) -> None:
        await asyncio.sleep(1)
        done.extend(texts([message]))

    place = Place(simulation, tmp_path, slow=slow)
    journal = place.journal()
    broker = tl.journal.JournalBroker(journal, owns_journal=own)
    bus = await tl.Bus(broker, owns_broker=own).__aenter__()
    bus.handle("a", work, durable=True, name="x", capacity=3)
    await publish(bus, "a", *range(100))
    await asyncio.sleep(2.5)
    before = simulation.now()
    unfinished = await bus.aclose(drain_s=1000)
    took_s = simulation.now() - before
    await broker.aclose()
    await journal.aclose()
    assert took_s < 10
    assert unfinished == []
    assert done == [str(number) for number in range(len(done))]
    async with place.bus() as bus, bus.subscribe("a", durable=True, name="x") as stream:
        rest = texts(await take(stream, 100 - len(done)))
        assert done + rest == [str(number) for number in range(100)]


async def test_closing_in_a_hurry(simulation: Simulation, tmp_path: Path) -> None:
    """Running handlers are interrupted. Their messages stay in the journal, and are returned as unfinished."""

    async def work(message: tl.Message) -> None:
        await asyncio.sleep(1000)

    place = Place(simulation, tmp_path)
    async with place.bus() as bus:
        bus.handle("a", work, durable=True, name="x", capacity=2)
        await publish(bus, "a", *range(5))
        await asyncio.sleep(1)
        unfinished = await bus.aclose(drain_s=2)
        assert {each.outcome.fate for each in unfinished} == {tl.Fate.IN_FLIGHT}
        assert {each.outcome.reason for each in unfinished} == {"stays in the journal and will be redelivered"}
    async with place.bus() as bus, bus.subscribe("a", durable=True, name="x") as stream:
        got = await take(stream, 5)
        assert texts(got) == list("01234")
        assert {each.attempts for each in got} == {0}, "being stopped is no failure"


# Coming back within one life


async def test_a_pause_is_kept_when_another_takes_over(simulation: Simulation, tmp_path: Path) -> None:
    """As after a restart: the next subscriber does not get a message at once that has just failed."""
    async with Place(simulation, tmp_path).bus() as bus:
        options: Any = {"durable": True, "name": "x", "retry": tl.Retry(delay_s=50, jitter=0)}
        async with bus.subscribe("a", **options) as stream:
            await publish(bus, "a", "bad", "good")
            bad, good = await take(stream, 2, ack=False)
            stream.nack(bad)
            stream.ack(good)
            failed_at = simulation.now()
        async with bus.subscribe("a", **options) as stream:
            (again,) = await take(stream, 1, timeout_s=100)
            assert (again.payload, again.attempts) == (b"bad", 1)
            assert simulation.now() - failed_at == pytest.approx(50, abs=0.1)


# Many topics


@slowly
async def test_more_topics_than_a_broker_remembers(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    place = Place(simulation, tmp_path, slow=slow)
    async with (
        place.bus(max_topics=3) as bus,
        bus.subscribe(">", durable=True, name="x") as durable,
        bus.subscribe("t.*", name="y") as plain,
    ):
        async with bus.pipeline() as pipe:
            for number in range(30):
                await publish(bus, f"t.{number % 7}", number)
                await pipe.publish(f"t.{number % 5}", f"{number} too".encode())
        wanted = sorted([*map(str, range(30)), *(f"{number} too" for number in range(30))])
        assert sorted(texts(await take(durable, 60))) == wanted
        assert sorted(texts(await take(plain, 60, ack=False))) == wanted
