"""Replay: dead letters to the subscribers that failed, ranges of a journal as new messages, orphans to requesters."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.journal.journals import Place, nothing_more, seqs, take, tend, until
from trunkline.bus.replay import REPLAYED_FROM, Replayed, ReplayFailure
from trunkline.journal import Reader
from trunkline.testing import Simulation

HOUR_S = 3600.0


class Workshop:
    """Handlers by name, which fail while they are `broken`, and the messages that each has handled."""

    def __init__(self) -> None:
        self.broken = True
        self.done: dict[str, list[int]] = {}
        self.tried = 0

    def opens(self, bus: tl.Bus, pattern: str, who: str, **options: Any) -> None:
        bus.handle(pattern, self.handler(who), **{"name": who, "durable": True, "retry": ONCE, **options})

    def handler(self, name: str) -> Callable[[tl.Message], Awaitable[None]]:
        done = self.done.setdefault(name, [])

        async def handle(message: tl.Message) -> None:
            self.tried += 1
            if self.broken:
                raise tl.Reject("no") if message.payload == b"reject" else ConnectionError("closed today")
            done.append(message.seq)

        return handle


ONCE = tl.Retry(attempts=1)


async def dead(bus: tl.Bus, count: int) -> None:
    """Return when so many letters are on disk."""
    await until(lambda: bus.dead_letters.total >= count)
    await bus.flush()


def in_journal(place: Place) -> list[tuple[str, int]]:
    with place.reader() as reader:
        return reader.query("SELECT subscriber, seq FROM dead_letters ORDER BY seq, subscriber")


# Dead letters


@pytest.mark.parametrize("restart", [False, True])
async def test_all_dead_letters_go_back_to_whom_they_died_at(
    simulation: Simulation, tmp_path: Path, restart: bool
) -> None:
    place = Place(simulation, tmp_path / str(restart))
    shop = Workshop()
    async with contextlib.AsyncExitStack() as lives:
        bus = await lives.enter_async_context(place.bus())
        for name, pattern in (("a", "jobs.*"), ("b", "jobs.two")):
            shop.opens(bus, pattern, name)
        ids = [await bus.publish(topic, b"") for topic in ("jobs.one", "jobs.two", "jobs.one", "jobs.two")]
        await dead(bus, 6)
        assert in_journal(place) == [("a", 1), ("a", 2), ("b", 2), ("a", 3), ("a", 4), ("b", 4)]
        if restart:
            await lives.aclose()
            bus = await lives.enter_async_context(place.bus())
            for name, pattern in (("a", "jobs.*"), ("b", "jobs.two")):
                shop.opens(bus, pattern, name)
        shop.broken = False
        replayed = await bus.replay_dead()
        assert sorted(replayed.ids) == sorted([*ids, ids[1], ids[3]])
        assert (replayed.count, replayed.failed, replayed.dry_run) == (6, (), False)
        assert str(replayed) == "6 messages replayed"
        await bus.quiet()
        await bus.flush()
        assert {name: sorted(done) for name, done in shop.done.items()} == {"a": [1, 2, 3, 4], "b": [2, 4]}
        assert len(bus.dead_letters) == 0
        assert in_journal(place) == []
        assert (await bus.replay_dead()).ids == ()


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"subscriber": "a"}, [("a", 1), ("a", 2), ("a", 3)]),
        ({"subscriber": "b"}, [("b", 2), ("b", 4)]),
        ({"cause": tl.Cause.REJECTED}, [("a", 3), ("b", 4)]),
        ({"cause": tl.Cause.HANDLER_FAILED}, [("a", 1), ("a", 2), ("b", 2)]),
        ({"cause": tl.Cause.HANDLER_TIMEOUT}, []),
        ({"message_id": "second"}, [("a", 2), ("b", 2)]),
        ({"message_id": "nobody's"}, []),
        ({"pattern": "jobs.one"}, [("a", 1), ("a", 3)]),
        ({"pattern": "*.two"}, [("a", 2), ("b", 2), ("b", 4)]),
        ({"pattern": "other.>"}, [("b", 4)]),
        ({"subscriber": "a", "cause": tl.Cause.HANDLER_FAILED, "pattern": "jobs.two"}, [("a", 2)]),
    ],
)
async def test_dead_letters_are_chosen(
    simulation: Simulation, tmp_path: Path, choice: dict[str, Any], wanted: list[tuple[str, int]]
) -> None:
    place = Place(simulation, tmp_path)
    shop = Workshop()
    async with place.bus() as bus:
        shop.opens(bus, "jobs.*", "a")
        shop.opens(bus, "*.two", "b")
        await bus.publish("jobs.one", b"", id="first")
        await bus.publish("jobs.two", b"", id="second")
        await bus.publish("jobs.one", b"reject", id="third")
        await bus.publish("other.two", b"reject", id="fourth")
        await dead(bus, 5)
        letters = in_journal(place)
        would = await bus.replay_dead(**choice, dry_run=True)
        assert in_journal(place) == letters, "a dry run changes nothing"
        assert (len(would.ids), would.dry_run) == (len(wanted), True)
        shop.broken = False
        replayed = await bus.replay_dead(**choice)
        assert replayed.ids == would.ids
        await bus.quiet()
        await bus.flush()
        assert sorted((name, seq) for name, done in shop.done.items() for seq in done) == wanted
        assert in_journal(place) == [key for key in letters if key not in wanted]


@pytest.mark.parametrize(
    ("replayed", "text"),
    [
        (Replayed(()), "0 messages replayed"),
        (Replayed(("a",)), "1 message replayed"),
        (Replayed(("a",), dry_run=True), "1 message would be replayed"),
        (Replayed(("a", "b"), (ReplayFailure("b", "no"),)), "1 message replayed, 1 failed, the first because no"),
        (Replayed(("a",), (ReplayFailure("a", "no"),)), "0 messages replayed, 1 failed, the first because no"),
    ],
)
def test_what_was_replayed_is_told_in_a_line(replayed: Replayed, text: str) -> None:
    assert str(replayed) == text


async def test_a_replay_keeps_to_its_pace(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    shop = Workshop()
    async with place.bus() as bus:
        shop.opens(bus, "jobs", "a")
        await bus.publish_many("jobs", range(11))
        await dead(bus, 11)
        shop.broken = False
        began = simulation.now()
        task = asyncio.create_task(bus.replay_dead(per_s=2))
        await until(lambda: len(shop.done["a"]) == 5)
        assert simulation.now() - began == pytest.approx(2.0, abs=0.1)
        assert (await task).count == 11
        assert simulation.now() - began == pytest.approx(5.0, abs=0.1)
        for wrong in (0, -1):
            with pytest.raises(tl.UsageError, match="above 0"):
                await bus.replay_dead(per_s=wrong)
        with pytest.raises(tl.InvalidTopic):
            await bus.replay_dead(pattern="a..b")


async def test_who_fails_again_is_not_tried_again_by_the_same_replay(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    shop = Workshop()
    async with place.bus() as bus:
        shop.opens(bus, "jobs", "a")
        await bus.publish_many("jobs", range(4))
        await dead(bus, 4)
        assert (await bus.replay_dead(per_s=1)).count == 4
        await dead(bus, 8)
        assert shop.tried == 8
        assert in_journal(place) == [("a", 1), ("a", 2), ("a", 3), ("a", 4)]


async def test_a_letter_whose_subscriber_is_not_there_stays_and_says_so(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    shop = Workshop()
    async with place.bus() as bus:
        shop.opens(bus, "jobs", "away")
        shop.opens(bus, "jobs", "here")
        await bus.publish("jobs", b"", id="x")
        await dead(bus, 2)
    shop.broken = False
    async with place.bus() as bus:
        shop.opens(bus, "jobs", "here")
        replayed = await bus.replay_dead()
        assert (replayed.ids, replayed.count) == (("x", "x"), 1)
        (failure,) = replayed.failed
        assert failure.message_id == "x"
        assert "no handler named 'away'" in failure.reason
        assert failure.reason in str(replayed)
        await bus.quiet()
        assert shop.done == {"away": [], "here": [1]}
        await bus.flush()
        assert in_journal(place) == [("away", 1)]
        # When it is there again, so is its letter.
        shop.opens(bus, "jobs", "away")
        assert (await bus.replay_dead()).count == 1
        await bus.quiet()
        assert shop.done["away"] == [1]


# More dead letters than memory holds


async def many_dead(place: Place, shop: Workshop, *topics: str) -> None:
    """Ten letters on each topic, for a subscriber of its name, one topic after the other."""
    async with place.bus(max_dead_letters=3) as bus:
        for at, topic in enumerate(topics, 1):
            shop.opens(bus, topic, topic)
            await bus.publish_many(topic, range(10))
            await dead(bus, 10 * at)
    shop.broken = False


async def test_letters_that_memory_has_no_room_for_come_from_the_journal(
    simulation: Simulation, tmp_path: Path
) -> None:
    place = Place(simulation, tmp_path)
    shop = Workshop()
    await many_dead(place, shop, "a")
    async with place.bus(max_dead_letters=3) as bus:
        shop.opens(bus, "a", "a")
        assert len(bus.dead_letters) == 3
        assert (await bus.replay_dead()).count == 10
        await bus.quiet()
        assert sorted(shop.done["a"]) == list(range(1, 11))


async def test_those_in_the_journal_come_though_memory_was_emptied_by_hand(
    simulation: Simulation, tmp_path: Path
) -> None:
    place = Place(simulation, tmp_path)
    shop = Workshop()
    await many_dead(place, shop, "a")
    async with place.bus(max_dead_letters=3) as bus:
        shop.opens(bus, "a", "a")
        for letter in bus.dead_letters:
            bus.dead_letters.replay(letter)
        assert len(bus.dead_letters) == 0
        assert (await bus.replay_dead()).count == 7


async def test_a_dry_run_tells_of_all_that_are_in_the_journal(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    shop = Workshop()
    await many_dead(place, shop, "a")
    async with place.bus(max_dead_letters=3) as bus:
        assert len((await bus.replay_dead(dry_run=True)).ids) == 10
        assert len(bus.dead_letters) <= 3, "memory stays within its bounds"


async def test_newer_letters_of_others_do_not_hide_older_ones(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    shop = Workshop()
    await many_dead(place, shop, "old", "new")
    async with place.bus(max_dead_letters=3) as bus:
        shop.opens(bus, "old", "old")
        assert (await bus.replay_dead(subscriber="old")).count == 10
        await bus.quiet()
        assert sorted(shop.done["old"]) == list(range(1, 11))
        await bus.flush()
        assert [name for name, _ in in_journal(place)] == ["new"] * 10


async def test_letters_that_cannot_go_back_do_not_hide_those_that_can(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    shop = Workshop()
    await many_dead(place, shop, "here", "away")
    async with place.bus(max_dead_letters=3) as bus:
        shop.opens(bus, "here", "here")
        replayed = await bus.replay_dead()
        assert (len(replayed.ids), len(replayed.failed)) == (20, 10)
        await bus.quiet()
        assert sorted(shop.done["here"]) == list(range(1, 11))


async def test_a_letter_that_is_damaged_does_not_hold_up_the_others(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    shop = Workshop()
    await many_dead(place, shop, "a")
    with contextlib.closing(sqlite3.connect(place.directory / "journal.db")) as database:
        database.execute("UPDATE dead_letters SET letter = x'00' WHERE seq = 2")
        database.commit()
    async with place.bus(max_dead_letters=3) as bus:
        shop.opens(bus, "a", "a")
        async with asyncio.timeout(HOUR_S):
            assert (await bus.replay_dead()).count == 9


# Dead letters of a closed journal


@pytest.mark.parametrize("kind", ["durable", "group", "acknowledged"])
async def test_what_was_given_back_meanwhile_is_what_a_subscriber_gets_when_it_starts(
    simulation: Simulation, tmp_path: Path, kind: str
) -> None:
    kinds: dict[str, dict[str, Any]] = {
        "durable": {},
        "group": {"name": None, "group": "a"},
        "acknowledged": {"durable": False, "ack": True},
    }
    options = kinds[kind]
    place = Place(simulation, tmp_path / kind)
    shop = Workshop()
    async with place.bus() as bus:
        shop.opens(bus, "jobs", "a", **options)
        await bus.publish_many("jobs", range(5))
        await dead(bus, 5)
    with place.journal() as journal:
        assert journal.replay_dead([("a", 2), ("a", 4), ("a", 99), ("nobody", 2)]) == 2
    shop.broken = False
    async with place.bus() as bus:
        shop.opens(bus, "jobs", "a", **options)
        await bus.publish("jobs", b"new")
        await until(lambda: 6 in shop.done["a"] and len(shop.done["a"]) >= 3)
        await bus.quiet()
        assert sorted(shop.done["a"]) == [2, 4, 6]
        await bus.flush()
        assert in_journal(place) == [("a", 1), ("a", 3), ("a", 5)]
    async with place.bus() as bus:
        shop.opens(bus, "jobs", "a", **options)
        await bus.publish("jobs", b"new")
        await until(lambda: 7 in shop.done["a"])
        await bus.quiet()
        assert sorted(shop.done["a"]) == [2, 4, 6, 7], "they come once"


# A stretch of a journal


async def orders(place: Place, *, sealed: bool) -> list[tl.Message]:
    """Ten messages a minute apart, of two topics, the first six of them sealed."""
    async with place.bus() as bus:
        for number in range(10):
            topic = ("orders.placed", "orders.paid")[number % 2]
            fields: dict[str, Any] = {}
            if number == 3:
                fields = {"headers": {"colour": "red"}, "correlation_id": "talk", "requires_ack": True, "ttl_s": 5.0}
            await bus.publish(topic, {"n": number}, id=f"id {number}", sender="till", **fields)
            if sealed and number == 5:
                tend(bus, everything=True)
            await asyncio.sleep(60)
    with place.reader() as reader:
        return list(reader.messages())


@pytest.fixture(params=[False, True], ids=["journal", "lake"])
def sealed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


async def test_a_stretch_is_published_again_on_another_bus(
    simulation: Simulation, tmp_path: Path, sealed: bool
) -> None:
    source = Place(simulation, tmp_path / "source")
    old = await orders(source, sealed=sealed)
    other = Place(simulation, tmp_path / "other")
    async with other.bus() as bus, bus.subscribe("orders.*") as stream:
        replayed = await bus.replay(source.directory, first=2, last=8)
        assert replayed == Replayed(tuple(f"id {number}" for number in range(1, 8)))
        got = await take(stream, 7, ack=False)
        await nothing_more(stream)
        now_ns = bus.broker.world.time_ns()
    assert seqs(got) == list(range(1, 8))
    assert [(each.topic, each.payload, each.sender) for each in got] == [
        (each.topic, each.payload, "till") for each in old[1:8]
    ]
    assert [each.headers[REPLAYED_FROM] for each in got if each.headers] == [str(seq) for seq in range(2, 9)]
    assert len({*(each.id for each in got), *(each.id for each in old)}) == 17, "each is a message of its own"
    assert all(now_ns - each.timestamp_ns < 10e9 for each in got), "and as old as it is itself"
    special = got[2]
    assert special.headers == {"colour": "red", REPLAYED_FROM: "4"}
    assert (special.correlation_id, special.requires_ack, special.ttl_s) == ("talk", True, 5.0)
    assert [each.correlation_id for each in got if each is not special] == [f"id {n}" for n in (1, 2, 4, 5, 6, 7)]


async def test_a_stretch_is_chosen_by_time_and_topic(simulation: Simulation, tmp_path: Path, sealed: bool) -> None:
    source = Place(simulation, tmp_path / "source")
    old = await orders(source, sealed=sealed)
    since, until_s = old[2].timestamp_ns / 1e9 - 1, old[8].timestamp_ns / 1e9 - 1
    async with Place(simulation, tmp_path / "other").bus() as bus, bus.subscribe(">") as stream:
        replayed = await bus.replay(source.directory, "orders.paid", since=since, until=until_s)
        assert replayed.ids == ("id 3", "id 5", "id 7")
        assert [each.correlation_id for each in await take(stream, 3, ack=False)] == ["talk", "id 5", "id 7"]
        assert (await bus.replay(source.directory, since=since, until=until_s, last=5, dry_run=True)).ids == (
            "id 2",
            "id 3",
            "id 4",
        )
        assert (await bus.replay(source.directory, "nothing.*")).ids == ()
        await nothing_more(stream)


async def test_a_journal_is_replayed_below_a_topic_while_it_is_used(
    simulation: Simulation, tmp_path: Path, sealed: bool
) -> None:
    place = Place(simulation, tmp_path)
    await orders(place, sealed=sealed)
    async with place.bus() as bus, bus.subscribe("orders.*") as live, bus.subscribe("again.>") as again:
        assert (await bus.replay(place.directory, dry_run=True)).ids == tuple(f"id {n}" for n in range(10))
        # Everything, and with it, if it went on with what it publishes, itself.
        assert (await bus.replay(place.directory, to="again.once")).count == 10
        got = await take(again, 10, ack=False)
        assert [each.topic for each in got[:2]] == ["again.once.orders.placed", "again.once.orders.paid"]
        assert seqs(got) == list(range(11, 21))
        await nothing_more(again)
        await nothing_more(live)
        with pytest.raises(tl.InvalidTopic):
            await bus.replay(place.directory, to="again.*")
        assert bus.stats().total_messages == 10
        assert (await bus.explain(got[0].id)).message == got[0]


async def test_a_stretch_keeps_to_its_pace(simulation: Simulation, tmp_path: Path) -> None:
    source = Place(simulation, tmp_path / "source")
    await orders(source, sealed=False)
    async with Place(simulation, tmp_path / "other").bus() as bus:
        began = simulation.now()
        assert (await bus.replay(source.directory, per_s=0.5)).count == 10
        assert simulation.now() - began == pytest.approx(18.0, abs=0.1)
        assert (await bus.replay(source.directory, per_s=0.5, dry_run=True)).count == 10
        assert simulation.now() - began == pytest.approx(18.0, abs=0.1), "to tell takes no time"


async def test_what_is_refused_is_named_and_the_rest_goes_on(simulation: Simulation, tmp_path: Path) -> None:
    source = Place(simulation, tmp_path / "source")
    async with source.bus() as bus:
        for number, size in enumerate((10, 2000, 20)):
            await bus.publish("files", bytes(size), id=f"id {number}")
    async with Place(simulation, tmp_path / "other").bus(max_message_bytes=1000) as bus:
        replayed = await bus.replay(source.directory)
        assert (replayed.ids, replayed.count) == (("id 0", "id 1", "id 2"), 2)
        (failure,) = replayed.failed
        assert isinstance(failure, ReplayFailure)
        assert (failure.message_id, "2000 bytes, limit 1000" in failure.reason) == ("id 1", True)
        assert str(replayed) == f"2 messages replayed, 1 failed, the first because {failure.reason}"
        assert bus.stats().total_messages == 2


async def test_a_replay_on_a_bus_that_is_closed_ends_with_that(simulation: Simulation, tmp_path: Path) -> None:
    source = Place(simulation, tmp_path / "source")
    await orders(source, sealed=False)
    async with Place(simulation, tmp_path / "other").bus() as bus:
        task = asyncio.create_task(bus.replay(source.directory, per_s=1))
        await until(lambda: bus.stats().total_messages == 3)
        await bus.aclose()
        with pytest.raises(tl.BusClosed):
            await task
        assert bus.stats().total_messages == 3


def test_a_replay_that_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    async def life() -> int:
        async with tl.connect("memory:", journal=tmp_path / "source") as bus:
            await bus.publish_many("numbers", range(5000))
        async with tl.connect("memory:") as bus:
            for turn in range(20):
                task = asyncio.create_task(bus.replay(tmp_path / "source"))
                await asyncio.sleep(turn * 0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            return bus.stats().total_messages

    # The reader, its file and its thread are looked for by the check for leaks.
    assert asyncio.run(life()) < 20 * 5000


def test_a_journal_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    async def life() -> None:
        async with tl.connect("memory:") as bus:
            with pytest.raises(tl.JournalUnusable, match="there is no journal here"):
                await bus.replay(tmp_path)

    asyncio.run(life())
    assert [*tmp_path.iterdir()] == []


# Orphans


def answer(request_id: str, payload: bytes = b"42") -> tl.Message:
    return tl.Message(topic="_reply", type=tl.MessageType.RESPONSE, request_id=request_id, payload=payload)


def orphans_in(place: Place) -> list[str]:
    with place.reader() as reader:
        return [request_id for (request_id,) in reader.query("SELECT request_id FROM orphans ORDER BY seq")]


async def test_an_answer_that_nobody_waited_for_is_claimed_after_a_restart(
    simulation: Simulation, tmp_path: Path
) -> None:
    place = Place(simulation, tmp_path)
    async with place.bus() as bus:
        await bus.post(answer("asked"))
        await bus.post(answer("also asked", b"43"))
        await bus.flush()
        assert len(bus.orphans) == 2
    async with place.bus() as bus:
        assert len(bus.orphans) == 2
        assert await bus.wait_reply("asked", timeout_s=1) == b"42"
        await bus.flush()
        assert orphans_in(place) == ["also asked"]
    async with place.bus() as bus:
        with pytest.raises(tl.RequestTimeout):
            await bus.wait_reply("asked", timeout_s=1)
        assert await bus.wait_reply("also asked", timeout_s=1) == b"43"
    assert orphans_in(place) == []


async def test_orphans_that_are_too_old_to_come_by_themselves_are_replayed(
    simulation: Simulation, tmp_path: Path
) -> None:
    place = Place(simulation, tmp_path)
    async with place.bus() as bus:
        for request_id in ("one", "two", "three"):
            await bus.post(answer(request_id, request_id.encode()))
            await asyncio.sleep(HOUR_S)
    async with place.bus() as bus:
        assert len(bus.orphans) == 0
        waiting = asyncio.create_task(bus.wait_reply("two", timeout_s=10))
        await asyncio.sleep(1)
        assert len(bus.replay_orphans(request_id="nobody").ids) == 0
        assert len(bus.replay_orphans(max_age_s=1.5 * HOUR_S).ids) == 1
        assert [orphan.message.request_id for orphan in bus.orphans] == ["three"]
        assert len(bus.replay_orphans(request_id="two").ids) == 1
        assert await waiting == b"two"
        await bus.flush()
        assert bus.replay_orphans().count == 1, "those that are here already are left out"
        assert sorted(orphan.message.request_id or "" for orphan in bus.orphans) == ["one", "three"]
        assert await bus.wait_reply("one", timeout_s=1) == b"one"
        await bus.flush()
        assert bus.replay_orphans().count == 0
        assert orphans_in(place) == ["three"]


async def test_an_answer_that_was_just_claimed_is_not_replayed(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    async with place.bus() as bus:
        await bus.post(answer("asked"))
    async with place.bus() as bus:
        assert await bus.wait_reply("asked", timeout_s=1) == b"42"
        # Before the next commit: the journal does not know of it yet.
        assert bus.replay_orphans().ids == ()
        assert len(bus.orphans) == 0


def test_a_requester_that_died_gets_its_answer_in_its_next_life(tmp_path: Path) -> None:
    """With threads and in real time: request, answer and claim are in three runs."""

    async def ask() -> str:
        async with tl.connect("memory:", journal=tmp_path, name="asker") as bus:
            request = bus.message("sums", {"a": 2, "b": 3}, type=tl.MessageType.REQUEST, reply_to="_reply")
            return await bus.post(request)

    async def serve() -> None:
        async with tl.connect("memory:", journal=tmp_path, name="server") as bus:
            done = asyncio.Event()

            @bus.on("sums", name="adder", durable=True, start="beginning")
            async def add(numbers: dict[str, int]) -> int:
                done.set()
                return numbers["a"] + numbers["b"]

            await done.wait()
            await bus.quiet()

    async def claim(request_id: str) -> Any:
        async with tl.connect("memory:", journal=tmp_path, name="asker") as bus:
            return await bus.wait_reply(request_id, timeout_s=20)

    request_id = asyncio.run(ask())
    asyncio.run(serve())
    assert asyncio.run(claim(request_id)) == 5
    with Reader(tmp_path) as reader:
        assert [bytes(each.payload) != b"" for each in reader.messages()] == [True, True]
        assert reader.query("SELECT count(*) FROM orphans") == [(0,)]
