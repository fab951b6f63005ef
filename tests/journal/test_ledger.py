"""The journal's ledger records the true fate of each message, for plain subscribers as well."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.journal.journals import BadDisk, Place, journal_of, take, until
from trunkline.testing import Simulation

DELIVERED, DROPPED, DEAD, FILTERED = tl.Fate.DELIVERED, tl.Fate.DROPPED, tl.Fate.DEAD, tl.Fate.FILTERED


async def publish(bus: tl.Bus, topic: str, *payloads: object) -> list[str]:
    return [await bus.publish(topic, str(payload).encode()) for payload in payloads]


async def fates(bus: tl.Bus, message_id: str) -> dict[str, tl.Fate]:
    """The fates in the journal, once everything is written."""
    await journal_of(bus).flush()
    message = journal_of(bus).reader.find(message_id)
    assert message is not None
    return {outcome.subscriber: outcome.fate for outcome in journal_of(bus).reader.outcomes(message)}


# Plain subscribers


@pytest.mark.parametrize("how", ["recv", "iterate", "batches"])
@pytest.mark.parametrize("seconds", [0, 1], ids=["in one go", "over time"])
async def test_whichever_way_it_is_taken(simulation: Simulation, tmp_path: Path, how: str, seconds: float) -> None:
    async with Place(simulation, tmp_path, durable=("a",)).bus() as bus:
        async with bus.subscribe("a", name="x") as stream:
            ids = await publish(bus, "a", *range(6))
            match how:
                case "recv":
                    for _ in range(4):
                        await stream.recv()
                        await asyncio.sleep(seconds)
                case "iterate":
                    count = 0
                    async for _ in stream:
                        await asyncio.sleep(seconds)
                        count += 1
                        if count == 4:
                            break
                case "batches":
                    async for batch in stream.batches(2):
                        await asyncio.sleep(seconds)
                        if batch[-1].payload == b"3":
                            break
            await until(lambda: stream.account().delivered == 4)
            told = [await fates(bus, message_id) for message_id in ids]
        left = [await fates(bus, message_id) for message_id in ids]
        assert left == [{"x": DELIVERED}] * 4 + [{"x": DROPPED}] * 2
        if how != "iterate":
            # An iterating reader is recorded when it has reached the end.
            assert told == [{"x": DELIVERED}] * 4 + [{}] * 2


async def test_what_is_held_is_not_delivered(simulation: Simulation, tmp_path: Path) -> None:
    """One that requires an acknowledgement, between others that do not."""
    async with Place(simulation, tmp_path, durable=("a",)).bus() as bus:
        async with bus.subscribe("a", name="x", lease_s=1000) as stream:
            before = await publish(bus, "a", 1, 2)
            held = await bus.publish("a", b"3", requires_ack=True)
            after = await publish(bus, "a", 4, 5)
            got: list[tl.Message] = []
            async for batch in stream.batches():
                got += batch
                if len(got) == 5:
                    break
            assert await fates(bus, held) == {}, "nobody has acknowledged it"
            assert stream.ack(next(message for message in got if message.id == held))
            assert await fates(bus, held) == {"x": DELIVERED}
        for message_id in (*before, *after):
            assert await fates(bus, message_id) == {"x": DELIVERED}


async def test_a_lower_priority_may_wait_long(simulation: Simulation, tmp_path: Path) -> None:
    async with (
        Place(simulation, tmp_path, durable=("a",)).bus() as bus,
        bus.subscribe("a", name="x") as stream,
    ):
        (first,) = await publish(bus, "a", 1)
        low = await bus.publish("a", b"low", priority=10)
        (last,) = await publish(bus, "a", 2)
        await take(stream, 2, ack=False)
        assert await fates(bus, first) == await fates(bus, last) == {"x": DELIVERED}
        assert await fates(bus, low) == {}
        await take(stream, 1, ack=False)
        assert await fates(bus, low) == {"x": DELIVERED}


async def test_others_of_the_group_did_not_get_it(simulation: Simulation, tmp_path: Path) -> None:
    async with (
        Place(simulation, tmp_path, durable=("a",)).bus() as bus,
        bus.subscribe("a", name="one", group="g") as one,
        bus.subscribe("a", name="two", group="g") as two,
    ):
        ids = await publish(bus, "a", *range(10))
        got: dict[str, str] = {}
        for stream in (one, two):
            got |= {message.id: stream.name for message in await take(stream, 5, ack=False)}
        for message_id in ids:
            assert await fates(bus, message_id) == {got[message_id]: DELIVERED}


async def test_an_endpoint_gets_what_is_for_everyone(simulation: Simulation, tmp_path: Path) -> None:
    """On another topic than its own, between messages on its own."""
    async with (
        Place(simulation, tmp_path).bus() as bus,
        bus.subscribe(tl.endpoint("ann"), name="ann") as stream,
    ):
        bus.link("news.*", "ann")
        ids = [
            await bus.send("ann", b"1"),
            await bus.broadcast(b"2"),
            await bus.publish("news.today", b"3"),
            await bus.send("ann", b"4"),
        ]
        await take(stream, 4, ack=False)
        assert [await fates(bus, message_id) for message_id in ids] == [{"ann": DELIVERED}] * 4


async def test_a_name_that_was_somebody_elses(simulation: Simulation, tmp_path: Path) -> None:
    """One leaves, another arrives with its name on another topic, both within one commit."""
    async with Place(simulation, tmp_path, durable=("a", "b"), flush_s=10.0).bus() as bus:
        async with bus.subscribe("a", name="x") as stream:
            (one,) = await publish(bus, "a", 1)
            await take(stream, 1, ack=False)
        async with bus.subscribe("b", name="x") as stream:
            (two,) = await publish(bus, "b", 2)
            await take(stream, 1, ack=False)
        assert await fates(bus, one) == await fates(bus, two) == {"x": DELIVERED}


async def test_a_handler_behind_a_rule(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:

        async def chosen(message: tl.Message) -> None:
            return

        bus.router.register_handler("chosen", chosen)
        bus.router.add_rule(tl.Rule(id="large", handler="chosen", where="payload.n > 1"))
        ids = [await bus.publish("a", {"n": number}) for number in range(4)]
        await bus.quiet()
        assert [await fates(bus, message_id) for message_id in ids] == [
            {},
            {},
            {"chosen": DELIVERED},
            {"chosen": DELIVERED},
        ]


@pytest.mark.parametrize("how", ["lease ends", "leaves"])
async def test_what_failed_at_one_and_went_to_another(simulation: Simulation, tmp_path: Path, how: str) -> None:
    """In a group that is not durable: the message no longer waits at the member that failed."""
    place = Place(simulation, tmp_path)
    options: Any = {"group": "g", "ack": True, "lease_s": 1, "retry": tl.Retry(attempts=5, delay_s=5)}
    async with place.bus() as bus, bus.subscribe("a", name="two", **options) as two:
        async with bus.subscribe("a", name="one", **options) as one:
            ids = await publish(bus, "a", 1, 2)
            (mine,) = await take(two, 1)
            (other,) = await take(one, 1, ack=False)
            if how == "leaves":
                one.nack(other)
            else:
                await take(two, 1)
        if how == "leaves":
            await take(two, 1)
        assert [await fates(bus, message_id) for message_id in ids] == [{"two": DELIVERED}] * 2
        assert journal_of(bus).reader.query("SELECT subscriber, seq FROM retries") == []
        assert mine.id != other.id


# After a replay


@pytest.mark.parametrize("durable", [False, True], ids=["plain", "durable"])
async def test_what_died_and_was_replayed_is_delivered(simulation: Simulation, tmp_path: Path, durable: bool) -> None:
    """Its neighbours are delivered in the same commit: its final fate must not be lost among theirs."""
    async with Place(simulation, tmp_path, durable=("a", "b")).bus() as bus:
        options: Any = {"name": "x", "ack": True, "durable": durable}
        async with bus.subscribe("a", **options) as stream:
            (dead,) = await publish(bus, "a", "dead")
            await publish(bus, "b", "between")
            (message,) = await take(stream, 1, ack=False)
            stream.reject(message, "no")
            assert await fates(bus, dead) == {"x": DEAD}
            neighbours = await publish(bus, "a", 1, 2)
            await publish(bus, "b", "between")
            neighbours += await publish(bus, "a", 3)
            got = await take(stream, 3, ack=False)
            bus.dead_letters.replay(next(iter(bus.dead_letters)))
            got += await take(stream, 1, ack=False)
            for each in got:
                assert stream.ack(each)
            assert await fates(bus, dead) == {"x": DELIVERED}
            for message_id in neighbours:
                assert await fates(bus, message_id) == {"x": DELIVERED}


# What is not kept


async def test_nothing_is_written_of_topics_that_are_not_kept(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path, durable=("kept",)).bus() as bus:

        async def fail(message: tl.Message) -> None:
            raise ValueError("no")

        async with (
            bus.subscribe("other", name="iterates") as iterates,
            bus.subscribe("other", name="takes", where="sender == 'bus'") as takes,
            bus.subscribe("other", name="leaves"),
        ):
            await bus.publish_many("other", [b"1", b"2", b"3"])
            async for batch in iterates.batches():
                assert len(batch) == 3
                break
            await take(takes, 3, ack=False)
        await journal_of(bus).flush()
        assert journal_of(bus).reader.query("SELECT subscriber, fate, first, last FROM fates") == []


async def test_mixed_topics_in_one_subscription(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path, slow=True, durable=("d",), recorded=("r",)).bus() as bus:
        async with bus.subscribe("*", name="x") as stream:
            ids: dict[str, list[str]] = {"d": [], "r": [], "n": []}

            async def send(topic: str) -> None:
                for number in range(10):
                    ids[topic] += await publish(bus, topic, number)
                    await asyncio.sleep(simulation.random.choice([0, 0.001]))

            async with asyncio.TaskGroup() as group:
                for topic in ids:
                    group.create_task(send(topic))
                seen = [message.id for message in await take(stream, 20, ack=False)]
        for message_id in (*ids["d"], *ids["r"]):
            assert await fates(bus, message_id) == {"x": DELIVERED if message_id in seen else DROPPED}
        for message_id in ids["n"]:
            assert journal_of(bus).reader.find(message_id) is None


# When it cannot be written


@pytest.mark.parametrize("kind", ["delivered", "dead", "retry", "replayed", "filtered"])
async def test_a_full_disk_loses_no_fate(simulation: Simulation, tmp_path: Path, kind: str) -> None:
    """It is written when there is room again, and before the process ends."""
    place = Place(simulation, tmp_path)
    retry = tl.Retry(attempts=5, delay_s=50, jitter=0)
    async with (
        place.bus() as bus,
        bus.subscribe("a", durable=True, name="x", retry=retry, where="payload != 9") as stream,
    ):
        await bus.publish("a", 9 if kind == "filtered" else 1)
        await bus.publish("a", 2)
        if kind == "filtered":
            message = next(journal_of(bus).reader.messages("a"))
        else:
            (message,) = await take(stream, 1, ack=False)
        if kind == "replayed":
            stream.reject(message, "no")
            await journal_of(bus).flush()
        disk = BadDisk(journal_of(bus))
        disk.full = True
        match kind:
            case "delivered":
                stream.ack(message)
            case "dead":
                stream.reject(message, "no")
            case "retry":
                stream.nack(message, "no")
            case "replayed":
                bus.dead_letters.replay(next(iter(bus.dead_letters)))
        await asyncio.sleep(5)
        assert disk.failed > 0 or kind == "filtered"
        disk.full = False
        await take(stream, 1)
    async with place.bus() as bus, bus.subscribe("a", durable=True, name="x", retry=retry) as stream:
        outcomes = {each.subscriber: each.fate for each in journal_of(bus).reader.outcomes(message)}
        match kind:
            case "delivered":
                assert outcomes == {"x": DELIVERED}
            case "filtered":
                assert outcomes == {"x": FILTERED}
            case "dead":
                assert outcomes == {"x": DEAD}
                assert [letter.message.id for letter in bus.dead_letters] == [message.id]
            case "retry":
                again = await take(stream, 1, timeout_s=100)
                assert [(each.id, each.attempts) for each in again] == [(message.id, 1)]
            case "replayed":
                assert list(bus.dead_letters) == []
                remaining = [(each.id, each.attempts) for each in await take(stream, 1, timeout_s=100)]
                assert remaining in ([(message.id, 0)], [])
