"""What survives a restart: positions of subscriptions, failed messages and their next attempt, dead letters, fates."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.journal.journals import (
    Place,
    QuickJournal,
    SlowJournal,
    broker_of,
    journal_of,
    nothing_more,
    seqs,
    take,
    tend,
    texts,
    until,
)
from trunkline.errors import InvalidSettings, UnknownHandler
from trunkline.testing import Simulation

slowly = pytest.mark.parametrize("slow", [False, True], ids=["at once", "slow"])


async def publish(bus: tl.Bus, topic: str, *payloads: object) -> None:
    for payload in payloads:
        await bus.publish(topic, str(payload).encode())


def durable(name: str = "x", **options: Any) -> Any:
    return {"durable": True, "name": name, **options}


# Where it was


@slowly
async def test_it_goes_on_where_it_was(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    place = Place(simulation, tmp_path, slow=slow)
    async with place.bus() as bus, bus.subscribe("a", **durable()) as stream:
        await publish(bus, "a", *range(10))
        await take(stream, 4)
    async with place.bus() as bus:
        await publish(bus, "a", 10)
        async with bus.subscribe("a", **durable()) as stream:
            assert texts(await take(stream, 7)) == [str(number) for number in range(4, 11)]
            await nothing_more(stream)
    async with place.bus() as bus, bus.subscribe("a", **durable()) as stream:
        await nothing_more(stream)


@slowly
async def test_only_what_was_out_comes_again(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    """Acknowledged out of order, some not: only those are redelivered."""
    place = Place(simulation, tmp_path, slow=slow)
    async with place.bus() as bus, bus.subscribe("a", **durable()) as stream:
        await publish(bus, "a", *range(20))
        got = await take(stream, 15, ack=False)
        simulation.random.shuffle(got)
        for message in got[:9]:
            assert stream.ack(message)
        done = set(texts(got[:9]))
    async with place.bus() as bus, bus.subscribe("a", **durable()) as stream:
        again = await take(stream, 11)
        assert sorted(texts(again), key=int) == [str(number) for number in range(20) if str(number) not in done]
        await nothing_more(stream, 200)


@slowly
async def test_many_lives(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    """For any events in each run: each message is acknowledged once, and then is not redelivered."""
    random = simulation.random
    place = Place(simulation, tmp_path, slow=slow, seal_rows=7)
    numbers = itertools.count()
    acknowledged: Counter[bytes] = Counter()
    async with place.bus() as bus, bus.subscribe("a", durable=True, group="g", start="beginning"):
        pass
    for life in range(8):
        async with place.bus() as bus:
            for _ in range(random.randint(0, 8)):
                await publish(bus, random.choice(["a", "a", "b"]), next(numbers))
            if random.random() < 0.4:
                tend(bus, everything=True)
            capacity = random.choice([1, 2, 3, 100])
            retry = tl.Retry(attempts=1000, delay_s=random.choice([0.01, 50]))
            async with bus.subscribe("a", durable=True, group="g", capacity=capacity, retry=retry) as stream:
                last = life == 7
                while True:
                    try:
                        async with asyncio.timeout(500 if last else random.choice([0, 1, 100])):
                            message = await stream.recv()
                    except TimeoutError:
                        break
                    assert message is not None
                    choice = random.random()
                    if last or choice < 0.4:
                        acknowledged[message.payload] += stream.ack(message)
                    elif choice < 0.6:
                        stream.nack(message)
                    elif choice < 0.7:
                        break
    with place.reader() as reader:
        wanted = Counter(each.payload for each in reader.messages("a"))
    assert acknowledged == wanted


async def test_another_pattern_under_its_name_is_refused(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    async with place.bus() as bus, bus.subscribe("a", **durable()):
        pass
    async with place.bus() as bus:
        with pytest.raises(InvalidSettings, match="is on 'a', not on 'b'"):
            await bus.subscribe("b", **durable()).open()
        assert await broker_of(bus).store.forget("x")
        async with bus.subscribe("b", **durable()):
            pass
    async with place.bus() as bus, bus.subscribe("b", **durable()):
        pass


async def test_a_name_and_a_group_are_one(simulation: Simulation, tmp_path: Path) -> None:
    """A subscription that needs several consumers becomes a group of the same name."""
    place = Place(simulation, tmp_path)
    async with place.bus() as bus, bus.subscribe("a", **durable("work")) as stream:
        await publish(bus, "a", 1, 2, 3)
        await take(stream, 1)
    async with place.bus() as bus, bus.subscribe("a", durable=True, group="work") as stream:
        assert texts(await take(stream, 2)) == ["2", "3"]


async def test_a_broker_after_another_on_one_journal(simulation: Simulation, tmp_path: Path) -> None:
    journal = Place(simulation, tmp_path).journal()
    for number in range(3):
        broker = tl.journal.JournalBroker(journal)
        async with tl.connect(broker) as bus, bus.subscribe("a", **durable(start="beginning")) as stream:
            await publish(bus, "a", number)
            assert texts(await take(stream, 1)) == [str(number)]
        await broker.aclose()
    await journal.aclose()


async def test_numbers_go_on(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path, durable=("a",))
    seen: list[int] = []
    for _ in range(3):
        async with place.bus() as bus, bus.subscribe(">") as stream:
            await publish(bus, "a", 1)
            await publish(bus, "not.kept", 2)
            seen += seqs(await take(stream, 2, ack=False))
    assert seen == sorted(set(seen))


# What failed


@slowly
@pytest.mark.parametrize("others", [False, True], ids=["alone", "among others"])
async def test_a_retry_keeps_its_pause_and_its_story(
    simulation: Simulation, tmp_path: Path, slow: bool, others: bool
) -> None:
    place = Place(simulation, tmp_path, slow=slow)
    options = durable(retry=tl.Retry(attempts=3, delay_s=50, factor=1, jitter=0))
    async with place.bus() as bus, bus.subscribe("a", **options) as stream:
        await publish(bus, "a", "bad")
        (message,) = await take(stream, 1, ack=False)
        if others:
            await publish(bus, "a", "good", "waits")
            await take(stream, 1)
        stream.nack(message, "first")
        failed_at = simulation.now()
    await asyncio.sleep(30)
    async with place.bus() as bus, bus.subscribe("a", **options) as stream:
        if others:
            assert texts(await take(stream, 1)) == ["waits"]
        (again,) = await take(stream, 1, ack=False, timeout_s=500)
        assert simulation.now() - failed_at == pytest.approx(50, abs=0.1)
        assert (again.payload, again.seq, again.attempts) == (b"bad", message.seq, 1)
        stream.nack(again, "second")
    async with place.bus() as bus, bus.subscribe("a", **options) as stream:
        (again,) = await take(stream, 1, ack=False, timeout_s=500)
        assert again.attempts == 2
        assert stream.nack(again, "third") is None
        (letter,) = bus.dead_letters
        assert [attempt.number for attempt in letter.attempts] == [1, 2, 3]
        assert [attempt.error for attempt in letter.attempts] == ["Nacked: first", "Nacked: second", "Nacked: third"]
        await nothing_more(stream, 500)
    with place.reader() as reader:
        assert reader.query("SELECT * FROM retries") == []


async def test_a_retry_that_was_due_meanwhile_is_at_once(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    options = durable(retry=tl.Retry(delay_s=100, jitter=0))
    async with place.bus() as bus, bus.subscribe("a", **options) as stream:
        await publish(bus, "a", 1)
        (message,) = await take(stream, 1, ack=False)
        stream.nack(message)
    await asyncio.sleep(1000)
    async with place.bus() as bus, bus.subscribe("a", **options) as stream:
        (again,) = await take(stream, 1, timeout_s=1)
        assert again.attempts == 1
        await nothing_more(stream, 500)


@slowly
async def test_those_before_a_retry_are_not_forgotten(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    """The last of three failed, and was handled first after a restart. The two before it were never acknowledged."""
    place = Place(simulation, tmp_path, slow=slow)
    retry = tl.Retry(delay_s=10, jitter=0)
    async with place.bus() as bus, bus.subscribe("a", **durable(retry=retry)) as stream:
        await publish(bus, "a", 1, 2, 3)
        got = await take(stream, 3, ack=False)
        stream.nack(got[2])
    await asyncio.sleep(20)
    done: list[str] = []
    async with place.bus() as bus, bus.subscribe("a", **durable(retry=retry, capacity=1)) as stream:
        done += texts(await take(stream, 1))
        await take(stream, 1, ack=False)
    async with place.bus() as bus, bus.subscribe("a", **durable(retry=retry)) as stream:
        done += texts(await take(stream, 2))
        await nothing_more(stream, 100)
    assert sorted(done) == ["1", "2", "3"]


@slowly
async def test_a_retry_outlives_its_message(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    """The journal no longer holds it, but a message that waits for its next attempt is kept separately."""
    place = Place(simulation, tmp_path, slow=slow)
    options = durable(retry=tl.Retry(delay_s=10, jitter=0))
    async with place.bus() as bus, bus.subscribe("a", **options) as stream:
        await publish(bus, "a", 1)
        (message,) = await take(stream, 1, ack=False)
        stream.nack(message)
    with place.journal() as journal, journal.hurry() if isinstance(journal, SlowJournal) else nullcontext():
        journal.writer.call(lambda database: database.execute("DELETE FROM batches"))
    async with place.bus() as bus, bus.subscribe("a", **options) as stream:
        (again,) = await take(stream, 1, timeout_s=20)
        assert (again.id, again.attempts) == (message.id, 1)
        await publish(bus, "a", 2)
        assert texts(await take(stream, 1)) == ["2"]


async def test_a_plain_handler_takes_up_what_failed(simulation: Simulation, tmp_path: Path) -> None:
    """Without a cursor, under the same name: a process that died left a retry behind."""
    place = Place(simulation, tmp_path)
    retry = tl.Retry(attempts=5, delay_s=50, jitter=0)

    async def fail(message: tl.Message) -> None:
        raise ValueError("no")

    async with place.bus() as bus:
        bus.handle("a", fail, name="plain", retry=retry)
        await publish(bus, "a", 1)
        await asyncio.sleep(1)
        failed_at = simulation.now() - 1
        crashed = place.crash()
    got: list[tl.Message] = []

    async def work(message: tl.Message) -> None:
        got.append(message)

    async with crashed.bus() as bus:
        bus.handle("a", work, name="plain", retry=retry)
        await until(lambda: got, 100, 0.05)
        assert got[0].attempts == 1
        assert simulation.now() - failed_at == pytest.approx(50, abs=0.1)
        await asyncio.sleep(500)
        assert len(got) == 1


@pytest.mark.parametrize(("seconds", "at_most_s"), [(-36_000, 3601), (36_000, 0.1), (-10, 61)])
async def test_a_clock_that_was_set_does_not_keep_a_retry(
    simulation: Simulation, tmp_path: Path, seconds: float, at_most_s: float
) -> None:
    place = Place(simulation, tmp_path)
    options = durable(retry=tl.Retry(delay_s=50, jitter=0))
    async with place.bus() as bus, bus.subscribe("a", **options) as stream:
        await publish(bus, "a", 1)
        (message,) = await take(stream, 1, ack=False)
        stream.nack(message)
    simulation.jump_wall(seconds)
    async with place.bus() as bus, bus.subscribe("a", **options) as stream:
        assert texts(await take(stream, 1, timeout_s=at_most_s)) == ["1"]
        await publish(bus, "a", 2)
        assert texts(await take(stream, 1)) == ["2"]


@pytest.mark.parametrize("start", [1000, 2**63 - 1])
async def test_a_start_beyond_the_end_harms_nobody_else(simulation: Simulation, tmp_path: Path, start: int) -> None:
    place = Place(simulation, tmp_path)
    async with place.bus() as bus:
        await publish(bus, "a", 1)
        async with bus.subscribe("a", **durable(start=start)):
            await publish(bus, "a", 2)
    async with place.bus() as bus, bus.subscribe("a", name="y") as plain:
        await publish(bus, "a", 3)
        assert texts(await take(plain, 1, ack=False)) == ["3"]
        async with bus.subscribe("a", **durable("z", start="beginning")) as stream:
            assert texts(await take(stream, 3)) == ["1", "2", "3"]


# Dead letters


async def die(bus: tl.Bus, stream: tl.Stream, payload: str = "bad") -> tl.Message:
    await publish(bus, "a", payload)
    (message,) = await take(stream, 1, ack=False)
    stream.reject(message, "it is broken")
    return message


@slowly
async def test_dead_letters_are_there_and_can_be_replayed(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    place = Place(simulation, tmp_path, slow=slow)
    async with place.bus() as bus, bus.subscribe("a", **durable()) as stream:
        dead = await die(bus, stream)
        (before,) = bus.dead_letters
    async with place.bus() as bus:
        (letter,) = bus.dead_letters
        assert letter == before
        assert (letter.message.id, letter.cause, letter.reason) == (dead.id, tl.Cause.REJECTED, "Reject: it is broken")
        async with bus.subscribe("a", **durable()) as stream:
            await nothing_more(stream, 10)
            bus.dead_letters.replay(letter)
            (again,) = await take(stream, 1)
            assert (again.id, again.seq, again.attempts) == (dead.id, dead.seq, 0)
            await nothing_more(stream, 100)
        await journal_of(bus).flush()
        assert [outcome.fate for outcome in journal_of(bus).reader.outcomes(dead)] == [tl.Fate.DELIVERED]
    async with place.bus() as bus, bus.subscribe("a", **durable()) as stream:
        assert len(bus.dead_letters) == 0
        await nothing_more(stream, 100)


@slowly
@pytest.mark.parametrize("restart", [False, True], ids=["later", "after a restart"])
async def test_a_replay_waits_for_a_member(simulation: Simulation, tmp_path: Path, slow: bool, restart: bool) -> None:
    """The subscription has no subscriber at the moment: the next one gets it, as it was changed."""
    place = Place(simulation, tmp_path, slow=slow)
    async with place.bus() as bus:
        async with bus.subscribe("a", **durable()) as stream:
            await die(bus, stream)
        (letter,) = bus.dead_letters
        bus.dead_letters.replay(letter, payload=b"mended")
        assert len(bus.dead_letters) == 0
        if not restart:
            async with bus.subscribe("a", **durable()) as stream:
                assert texts(await take(stream, 1)) == ["mended"]
    async with place.bus() as bus, bus.subscribe("a", **durable()) as stream:
        assert len(bus.dead_letters) == 0
        if restart:
            (again,) = await take(stream, 1)
            assert (again.payload, again.attempts, again.seq) == (b"mended", 0, letter.message.seq)
        await nothing_more(stream, 100)


@slowly
async def test_a_replay_as_soon_as_a_handler_is_there(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    """A handler opens in the background: its subscription is not open yet at the replay. It comes once."""
    place = Place(simulation, tmp_path, slow=slow)
    async with place.bus() as bus, bus.subscribe("a", **durable()) as stream:
        await die(bus, stream)
        await publish(bus, "a", 1)
    got: list[bytes] = []

    async def work(message: tl.Message) -> None:
        got.append(message.payload)

    async with place.bus() as bus:
        bus.handle("a", work, **durable())
        for letter in bus.dead_letters:
            bus.dead_letters.replay(letter)
        await asyncio.sleep(100)
        assert sorted(got) == [b"1", b"bad"]
        await bus.quiet()


async def test_a_letter_for_nobody_stays(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    async with place.bus() as bus, bus.subscribe("a", **durable()) as stream:
        await die(bus, stream)
    async with place.bus() as bus:
        (letter,) = bus.dead_letters
        with pytest.raises(UnknownHandler):
            bus.dead_letters.replay(letter)
        assert list(bus.dead_letters) == [letter]
    async with place.bus() as bus:
        assert list(bus.dead_letters) == [letter]
        assert bus.dead_letters.remove(letter)
    async with place.bus() as bus:
        assert list(bus.dead_letters) == []


async def test_a_letter_is_replayed_while_no_bus_is_there(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    async with place.bus() as bus, bus.subscribe("a", **durable()) as stream:
        dead = await die(bus, stream)
        await die(bus, stream, "stays")
    journal = QuickJournal(place.directory, place.settings, simulation).open()
    assert journal.replay_dead([("x", dead.seq), ("nobody", 1), ("x", 99)]) == 1
    journal.close()
    async with place.bus() as bus, bus.subscribe("a", **durable()) as stream:
        assert texts(await take(stream, 1)) == ["bad"]
        await nothing_more(stream, 10)
        assert texts(letter.message for letter in bus.dead_letters) == ["stays"]


async def test_letters_of_a_group_go_to_any_member(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    async with place.bus() as bus, bus.subscribe("a", durable=True, group="g", name="first") as stream:
        await die(bus, stream)
    async with place.bus() as bus, bus.subscribe("a", durable=True, group="g", name="second") as stream:
        (letter,) = bus.dead_letters
        assert letter.subscriber == "g"
        bus.dead_letters.replay(letter)
        assert texts(await take(stream, 1)) == ["bad"]


async def test_letters_of_a_plain_handler(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    broken = True
    got: list[bytes] = []

    async def work(message: tl.Message) -> None:
        if broken:
            raise ValueError("no")
        got.append(message.payload)

    async with place.bus() as bus:
        bus.handle("a", work, name="plain", retry=tl.Retry(attempts=1))
        await publish(bus, "a", 1)
        await bus.quiet()
    broken = False
    async with place.bus() as bus:
        (letter,) = bus.dead_letters
        bus.handle("a", work, name="plain")
        bus.dead_letters.replay(letter)
        await bus.quiet()
        assert got == [b"1"]
        await journal_of(bus).flush()
        assert [outcome.fate for outcome in journal_of(bus).reader.outcomes(letter.message)] == [tl.Fate.DELIVERED]
    async with place.bus() as bus:
        bus.handle("a", work, name="plain")
        assert len(bus.dead_letters) == 0
        await asyncio.sleep(10)
        assert got == [b"1"]


async def test_more_letters_than_a_bus_keeps(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    async with place.bus(max_dead_letters=3) as bus, bus.subscribe("a", **durable()) as stream:
        for number in range(5):
            await die(bus, stream, str(number))
            await asyncio.sleep(1)
    async with place.bus(max_dead_letters=3) as bus:
        assert texts(letter.message for letter in bus.dead_letters) == ["2", "3", "4"]
    async with place.bus() as bus:
        assert texts(letter.message for letter in bus.dead_letters) == ["0", "1", "2", "3", "4"]
        await bus.replay_dead(subscriber="x") if bus.subscribers("a") else None
        async with bus.subscribe("a", **durable()) as stream:
            replayed = await bus.replay_dead(subscriber="x")
            assert replayed.count == 5
            assert sorted(texts(await take(stream, 5))) == list("01234")


# Orphans


async def test_an_orphan_is_claimed_after_a_restart(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    async with place.bus() as bus:
        await bus.post(tl.Message(type=tl.MessageType.RESPONSE, payload=b"early", request_id="r1"))
        await bus.post(tl.Message(type=tl.MessageType.RESPONSE, payload=b"other", request_id="r2"))
        await asyncio.sleep(5)
    async with place.bus() as bus:
        assert sorted(texts(orphan.message for orphan in bus.orphans)) == ["early", "other"]
        answer = await bus.wait_reply("r1", reply=tl.Message, timeout_s=1)
        assert answer.payload == b"early"
    async with place.bus() as bus:
        assert texts(orphan.message for orphan in bus.orphans) == ["other"]
        await asyncio.sleep(100)
        assert list(bus.orphans) == []
    async with place.bus() as bus:
        assert list(bus.orphans) == [], "too old to be claimed"
        bus.replay_orphans(request_id="r2")
        assert texts(orphan.message for orphan in bus.orphans) == ["other"]


async def test_an_answer_after_its_request_timed_out(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)

    async def late(message: tl.Message) -> str:
        await asyncio.sleep(10)
        return "here I am"

    async with place.bus() as bus:
        bus.handle("ask", late)
        assert await bus.try_request("ask", timeout_s=1, request_id="r") is None
        await bus.quiet()
        assert len(bus.orphans) == 1
    async with place.bus() as bus:
        assert await bus.wait_reply("r", timeout_s=1) == "here I am"


async def test_orphans_are_not_kept_without_end(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path, max_orphans=3)
    async with place.bus() as bus:
        for number in range(7):
            await bus.post(tl.Message(type=tl.MessageType.RESPONSE, payload=b"%d" % number, request_id=str(number)))
        await journal_of(bus).flush()
        tend(bus)
    async with place.bus() as bus:
        assert texts(orphan.message for orphan in bus.orphans) == ["4", "5", "6"]


# Explaining


@slowly
async def test_explain_after_a_restart(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    place = Place(simulation, tmp_path, slow=slow)
    async with place.bus() as bus:
        async with (
            bus.subscribe("a", **durable("done")) as done,
            bus.subscribe("a", **durable("dead")) as dead,
            bus.subscribe("a", **durable("picky", where="sender == 'nobody'")) as picky,
            bus.subscribe("a", **durable("idle")),
            bus.subscribe("a", name="plain") as plain,
            bus.subscribe("a", name="full", capacity=1, overflow="drop_newest"),
        ):
            ids = [await bus.publish("a", str(number).encode()) for number in range(2)]
            await take(done, 2)
            await take(plain, 2, ack=False)
            await until(lambda: picky.account().filtered == 2)
            for message in await take(dead, 2, ack=False):
                dead.reject(message, "why not")
        late = await bus.publish("a", b"late")
        unheard = await bus.publish("b", b"")
    async with place.bus() as bus:
        told = {outcome.subscriber: (outcome.fate, outcome.reason) for outcome in (await bus.explain(ids[1])).outcomes}
        assert told == {
            "done": (tl.Fate.DELIVERED, ""),
            "plain": (tl.Fate.DELIVERED, ""),
            "dead": (tl.Fate.DEAD, "rejected by the handler: Reject: why not"),
            "picky": (tl.Fate.FILTERED, "does not match \"sender == 'nobody'\""),
            "idle": (tl.Fate.IN_FLIGHT, "waits in the journal"),
            "full": (tl.Fate.DROPPED, "drop_newest: the inbox is full (1)"),
        }
        explained = await bus.explain(late)
        assert explained.message is not None
        assert {outcome.subscriber for outcome in explained.outcomes} == {"done", "dead", "picky", "idle"}
        assert {outcome.fate for outcome in explained.outcomes} == {tl.Fate.IN_FLIGHT}
        assert (await bus.explain(unheard)).outcomes == ()
        assert (await bus.explain(unheard)).note
        assert (await bus.explain("nonsense")).message is None


async def test_what_was_replayed_and_waits_is_not_dead(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    async with place.bus() as bus:
        async with bus.subscribe("a", **durable()) as stream:
            dead = await die(bus, stream)
        bus.dead_letters.replay(next(iter(bus.dead_letters)))
    async with place.bus() as bus:
        assert [outcome.fate for outcome in (await bus.explain(dead.id)).outcomes] == [tl.Fate.IN_FLIGHT]


async def test_explain_names_a_subscription_once(simulation: Simulation, tmp_path: Path) -> None:
    """A member of a durable group and the group itself do not count as two receivers."""
    async with (
        Place(simulation, tmp_path).bus() as bus,
        bus.subscribe("a", durable=True, group="g", name="member") as stream,
    ):
        message_id = await bus.publish("a", b"1")
        await take(stream, 1)
        await journal_of(bus).flush()
        assert len((await bus.explain(message_id)).outcomes) == 1
