"""Failing writes: the publisher gets an error, no subscriber sees the message, and work continues later."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.journal.journals import BadDisk, Place, journal_of, nothing_more, seqs, take, texts
from trunkline.errors import NotStored, PartlyRefused
from trunkline.testing import Simulation

slowly = pytest.mark.parametrize("slow", [False, True], ids=["at once", "slow"])
FULL = "the disk is full: free some space"

WAYS: dict[str, Any] = {
    "publish": lambda bus: bus.publish("a", b"bad"),
    "with fields": lambda bus: bus.publish("a", b"bad", headers={"k": "v"}),
    "large": lambda bus: bus.publish("a", b"x" * 10_000),
    "many": lambda bus: bus.publish_many("a", [b"bad", b"bad"]),
    "many with fields": lambda bus: bus.publish_many("a", [b"bad", b"bad"], priority=60),
    "post": lambda bus: bus.post(tl.Message(topic="a", payload=b"bad")),
    "one as many": lambda bus: bus.publish_many("a", [b"bad"]),
}


@pytest.mark.parametrize("way", WAYS)
@slowly
async def test_the_publisher_is_told_and_nobody_has_seen_it(
    simulation: Simulation, tmp_path: Path, way: str, slow: bool
) -> None:
    place = Place(simulation, tmp_path, slow=slow)
    async with (
        place.bus() as bus,
        bus.subscribe("a", name="x") as plain,
        bus.subscribe("a", durable=True, name="y") as durable,
    ):
        await bus.publish("a", b"before")
        disk = BadDisk(journal_of(bus))
        disk.full = True
        with pytest.raises((NotStored, PartlyRefused)) as caught:
            await WAYS[way](bus)
        if isinstance(caught.value, PartlyRefused):
            assert {getattr(error, "why", "") for _, error in caught.value.refused} == {FULL}
            assert len(caught.value.refused) == 2
        else:
            assert isinstance(caught.value, NotStored)
            assert caught.value.retryable
            assert caught.value.why == FULL
        disk.full = False
        await bus.publish("a", b"after")
        got = await take(plain, 2, ack=False)
        assert texts(got) == ["before", "after"]
        assert await take(durable, 2) == got
        await nothing_more(plain)
        await nothing_more(durable)
        assert seqs(got) == sorted(set(seqs(got)))
        refused = 2 if isinstance(caught.value, PartlyRefused) else 1
        stats = bus.stats()
        assert (stats.total_messages, stats.total_refused, stats.total_failed) == (2, refused, refused)
        assert texts(bus.history()) == ["before", "after"]
        for account in bus.accounts().values():
            assert account.accepted == 2
    with place.reader() as reader:
        assert texts(reader.messages()) == ["before", "after"]
        assert [reader.outcomes(message)[0].fate for message in reader.messages()] == [tl.Fate.DELIVERED] * 2


@slowly
async def test_some_fail_and_some_do_not(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    """Each publish without an error is in the journal, with its own number. Each publish with an error is not."""
    place = Place(simulation, tmp_path, slow=slow)
    async with (
        place.bus() as bus,
        bus.subscribe(">", name="x") as plain,
        bus.subscribe("a", durable=True, name="y") as durable,
    ):
        await bus.publish("a", b"warm")
        await bus.publish("b", b"warm")
        disk = BadDisk(journal_of(bus))
        well: list[str] = []
        badly: list[str] = []

        async def send(name: str) -> None:
            for number in range(20):
                disk.full = simulation.random.random() < 0.4
                text = f"{name}{number}"
                fields: Any = simulation.random.choice([{}, {"headers": {"k": "v"}}])
                try:
                    await bus.publish(simulation.random.choice("ab"), text.encode(), **fields)
                except NotStored:
                    badly.append(text)
                else:
                    well.append(text)

        async with asyncio.TaskGroup() as group:
            for name in "xyz":
                group.create_task(send(name))
        disk.full = False
        assert badly
        kept = [message for message in journal_of(bus).reader.messages() if message.payload != b"warm"]
        assert sorted(texts(kept)) == sorted(well)
        assert seqs(kept) == sorted(set(seqs(kept)))
        got = [message for message in await take(plain, len(well) + 2, ack=False) if message.payload != b"warm"]
        assert got == kept
        of_a = [message for message in kept if message.topic == "a"]
        assert (await take(durable, len(of_a) + 1))[1:] == of_a
        assert bus.stats().total_refused == len(badly)
    with place.reader() as reader:
        for message in reader.messages():
            told = {outcome.subscriber: outcome.fate for outcome in reader.outcomes(message)}
            assert told == dict.fromkeys(["x", "y"] if message.topic == "a" else ["x"], tl.Fate.DELIVERED)


async def test_what_was_refused_is_explained(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        disk = BadDisk(journal_of(bus))
        disk.full = True
        with pytest.raises(NotStored):
            await bus.publish("a", b"1", id="mine")
        (outcome,) = (await bus.explain("mine")).outcomes
        assert outcome.fate is tl.Fate.REFUSED
        assert "the disk is full" in outcome.reason
        disk.full = False


async def test_numbers_do_not_clash_after_a_restart(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    async with place.bus() as bus:
        await bus.publish("a", b"1")
        disk = BadDisk(journal_of(bus))
        disk.full = True
        with pytest.raises(NotStored):
            await bus.publish("a", b"bad")
        disk.full = False
        await bus.publish("a", b"2")
    async with place.bus() as bus:
        await bus.publish("a", b"3")
        async with bus.subscribe("a", durable=True, name="x", start="beginning") as stream:
            assert texts(await take(stream, 3)) == ["1", "2", "3"]
    with place.reader() as reader:
        assert len(set(seqs(reader.messages()))) == 3


@slowly
async def test_a_hole_that_a_failure_left_is_not_waited_at(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    """A durable subscription that is behind skips it."""
    async with (
        Place(simulation, tmp_path, slow=slow).bus() as bus,
        bus.subscribe("a", durable=True, name="x", capacity=1) as stream,
    ):
        disk = BadDisk(journal_of(bus))
        for number in range(10):
            disk.full = number % 3 == 1
            if disk.full:
                with pytest.raises(NotStored):
                    await bus.publish("a", str(number).encode())
            else:
                await bus.publish("a", str(number).encode())
        disk.full = True
        with pytest.raises(NotStored):
            await bus.publish("a", b"10")
        disk.full = False
        assert texts(await take(stream, 7)) == ["0", "2", "3", "5", "6", "8", "9"]
        await nothing_more(stream)
        await bus.publish("a", b"11")
        assert texts(await take(stream, 1)) == ["11"]


async def test_a_recorded_message_was_seen_and_is_counted_as_lost(
    simulation: Simulation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(simulation, tmp_path, slow=True, durable=(), recorded=(">",))
    async with place.bus() as bus, bus.subscribe("a", name="x") as stream:
        disk = BadDisk(journal_of(bus))
        disk.full = True
        await bus.publish("a", b"1")
        await asyncio.sleep(0.1)
        disk.full = False
        await bus.publish("a", b"2")
        assert texts(await take(stream, 2, ack=False)) == ["1", "2"]
        await journal_of(bus).flush()
        assert journal_of(bus).intake.lost == 1
        assert "1 message on a published, but not recorded" in caplog.text
        assert texts(journal_of(bus).reader.messages()) == ["2"]


async def test_a_durable_subscription_gets_what_was_not_recorded(simulation: Simulation, tmp_path: Path) -> None:
    """It was delivered before the disk failed: acknowledging it is not an error, and the next one arrives."""
    place = Place(simulation, tmp_path, durable=(), recorded=(">",))
    async with place.bus() as bus, bus.subscribe("a", durable=True, name="x") as stream:
        await bus.publish("a", b"0")
        await take(stream, 1)
        disk = BadDisk(journal_of(bus))
        disk.full = True
        await bus.publish("a", b"1")
        await asyncio.sleep(0.1)
        disk.full = False
        await bus.publish("a", b"2")
        got = texts(await take(stream, 1))
        if got == ["1"]:
            got = texts(await take(stream, 1))
        assert got == ["2"]
        await nothing_more(stream)


async def test_requests_fail_at_once(simulation: Simulation, tmp_path: Path) -> None:
    """Not after the time in which nobody can answer."""
    async with Place(simulation, tmp_path).bus() as bus:

        async def answer(message: tl.Message) -> str:
            return "yes"

        bus.handle("ask", answer)
        assert await bus.request("ask") == "yes"
        disk = BadDisk(journal_of(bus))
        disk.full = True
        with pytest.raises(NotStored):
            await bus.request("ask", timeout_s=100)
        assert bus.stats().open_requests == 0
        disk.full = False
        assert await bus.request("ask") == "yes"


@slowly
async def test_a_subscription_that_could_not_be_opened_can_be_later(
    simulation: Simulation, tmp_path: Path, slow: bool
) -> None:
    async with Place(simulation, tmp_path, slow=slow).bus() as bus:
        await bus.publish("a", b"1")
        disk = BadDisk(journal_of(bus))
        disk.full = True
        stream = bus.broker.subscribe("a", tl.Delivery(durable=True, name="x", start="beginning"))
        with pytest.raises(NotStored):
            await stream.opened()
        await stream.aclose()
        disk.full = False
        async with bus.subscribe("a", durable=True, name="x", start="beginning") as stream:
            assert texts(await take(stream, 1)) == ["1"]


async def test_a_subscription_that_could_not_be_opened_is_not_there(simulation: Simulation, tmp_path: Path) -> None:
    """A caller that got an error instead of a stream has nothing to close."""
    async with Place(simulation, tmp_path).bus() as bus:
        disk = BadDisk(journal_of(bus))
        disk.full = True
        with pytest.raises(NotStored):
            await bus.subscribe("a", durable=True, name="x").open()
        disk.full = False
        assert bus.subscribers("a") == []


@slowly
async def test_a_handler_begins_when_there_is_room(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    """No caller waits until a handler is opened, so none would retry."""
    got: list[bytes] = []

    async def work(message: tl.Message) -> None:
        got.append(message.payload)

    async with Place(simulation, tmp_path, slow=slow).bus() as bus:
        disk = BadDisk(journal_of(bus))
        disk.full = True
        bus.handle("a", work, durable=True, name="x")
        await asyncio.sleep(10)
        disk.full = False
        await bus.publish("a", b"1")
        await asyncio.sleep(10)
        assert got == [b"1"]


@slowly
async def test_a_message_is_explained_while_nothing_can_be_written(
    simulation: Simulation, tmp_path: Path, slow: bool
) -> None:
    """People ask when the disk is full. Fates that are not on disk are known in memory."""
    place = Place(simulation, tmp_path, slow=slow)
    async with (
        place.bus() as bus,
        bus.subscribe("a", name="x") as plain,
        bus.subscribe("a", durable=True, name="y") as durable,
    ):
        message_id = await bus.publish("a", b"before")
        await take(durable, 1)
        await bus.flush()
        disk = BadDisk(journal_of(bus))
        disk.full = True
        await take(plain, 1, ack=False)
        with pytest.raises(NotStored):
            await bus.publish("a", b"bad")
        explained = await bus.explain(message_id)
        assert {each.subscriber: each.fate for each in explained.outcomes} == {
            "x": tl.Fate.DELIVERED,
            "y": tl.Fate.DELIVERED,
        }
        disk.full = False
