"""The persistence hook with a journal: numbers agree, fates are recorded, and later refusals as well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.journal.journals import BadDisk, Place, seqs, take, texts
from trunkline.errors import HookFailed, NotStored, PartlyRefused, RateLimited
from trunkline.hooks import Hook, Persist, Rate, RateLimit, Stage, each
from trunkline.journal import Journal
from trunkline.testing import Simulation, world

slowly = pytest.mark.parametrize("slow", [False, True], ids=["at once", "slow"])


@asynccontextmanager
async def persisted(place: Place, hooks: Iterable[Hook] = (), **options: Any) -> AsyncIterator[tuple[tl.Bus, Journal]]:
    """A bus in memory that stores orders."""
    journal = place.journal()
    persist = Persist(journal, "orders.>")
    async with tl.connect(
        hooks=[*hooks, persist], world=world(place.simulation), settings=tl.Settings(drain_s=0), **options
    ) as bus:
        yield bus, journal
    await journal.aclose()
    for name, account in bus.accounts().items():
        assert account.balanced, (name, account)


@slowly
async def test_numbers_agree(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    place = Place(simulation, tmp_path, slow=slow)
    async with (
        persisted(place) as (bus, journal),
        bus.subscribe(">", name="x") as stream,
    ):

        async def send(topic: str) -> None:
            for number in range(10):
                await bus.publish(topic, str(number).encode())
                await bus.publish_many(topic, [b"a", b"b"])

        async with asyncio.TaskGroup() as group:
            for topic in ("orders.eu", "orders.us", "else"):
                group.create_task(send(topic))
        got = await take(stream, 90, ack=False)
        assert len(set(seqs(got))) == 90, "one number each"
        kept = {message.id: message for message in journal.reader.messages()}
        assert kept == {message.id: message for message in got if message.topic.startswith("orders")}
        assert {message.seq for message in bus.history()} == set(seqs(got))
        for topic in ("orders.eu", "orders.us", "else"):
            mine = [message for message in got if message.topic == topic]
            assert seqs(mine) == sorted(seqs(mine)), "order is kept"


async def test_numbers_go_on_after_a_restart(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    seen: list[int] = []
    for _ in range(3):
        async with (
            persisted(place) as (bus, _),
            bus.subscribe(">") as stream,
        ):
            await bus.publish("orders.a", b"1")
            await bus.publish("else", b"2")
            seen += seqs(await take(stream, 2, ack=False))
    assert seen == sorted(set(seen))


@slowly
async def test_fates_are_recorded(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    place = Place(simulation, tmp_path, slow=slow)
    async with persisted(place) as (bus, _):

        async def fail(message: tl.Message) -> None:
            raise ValueError("no")

        bus.handle("orders.*", fail, name="fails", retry=tl.Retry(attempts=2, delay_s=0.1))
        async with (
            bus.subscribe("orders.>", name="all") as stream,
            bus.subscribe("orders.eu", name="picky", where="payload == 1") as picky,
            bus.subscribe("orders.*", name="leaves"),
        ):
            ids = [await bus.publish("orders.eu", number) for number in range(3)]
            await take(stream, 3, ack=False)
            await take(picky, 1, ack=False)
            await bus.quiet()
        nobody = await bus.publish("orders.x.y", 1)
    with place.reader() as reader:
        told = []
        for message_id in (*ids, nobody):
            message = reader.find(message_id)
            assert message is not None
            told.append({outcome.subscriber: outcome.fate for outcome in reader.outcomes(message)})
    usual = {"all": tl.Fate.DELIVERED, "fails": tl.Fate.DEAD, "leaves": tl.Fate.DROPPED}
    assert told == [
        {**usual, "picky": tl.Fate.FILTERED},
        {**usual, "picky": tl.Fate.DELIVERED},
        {**usual, "picky": tl.Fate.FILTERED},
        {},
    ]


async def test_it_is_on_disk_before_anybody_sees_it(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path, slow=True)
    async with (
        persisted(place) as (bus, _),
        bus.subscribe("orders.a") as stream,
    ):
        publishing = asyncio.create_task(bus.publish("orders.a", b"1"))
        (message,) = await take(stream, 1, ack=False)
        with place.reader() as reader:
            assert list(reader.messages()) == [message]
        await publishing


@slowly
async def test_what_cannot_be_written_is_not_published(simulation: Simulation, tmp_path: Path, slow: bool) -> None:
    place = Place(simulation, tmp_path, slow=slow)
    async with (
        persisted(place) as (bus, journal),
        bus.subscribe(">") as stream,
    ):
        await bus.publish("orders.a", b"1")
        disk = BadDisk(journal)
        disk.full = True
        with pytest.raises(NotStored):
            await bus.publish("orders.a", b"2")
        with pytest.raises((NotStored, PartlyRefused)):
            await bus.publish_many("orders.a", [b"3", b"4"])
        await bus.publish("else", b"5")
        disk.full = False
        await bus.publish("orders.a", b"6")
        got = await take(stream, 3, ack=False)
        assert texts(got) == ["1", "5", "6"]
        assert seqs(got) == sorted(set(seqs(got)))
        assert bus.stats().total_refused == 3
    with place.reader() as reader:
        assert texts(reader.messages()) == ["1", "6"]


def limit() -> Hook:
    return RateLimit(per_topic=Rate(per_s=1, burst=2))


def broken() -> Hook:
    class Later(Hook):
        stage = Stage.LIMIT

        async def __call__(self, batch: Any, forward: Any) -> None:
            raise OSError("broken")

    return Later()


def choosy() -> Hook:
    def refuse(message: tl.Message) -> tl.Message:
        if message.payload == b"no":
            raise ValueError("no")
        return message

    return each(refuse, stage=Stage.LIMIT)


@pytest.mark.parametrize("many", [False, True], ids=["one by one", "as a batch"])
async def test_what_a_later_hook_refused_is_recorded_as_refused(
    simulation: Simulation, tmp_path: Path, many: bool
) -> None:
    """It is in the journal, but was not delivered: its fate must show that, also after a restart."""
    place = Place(simulation, tmp_path)
    async with (
        persisted(place, [limit()], name="shop") as (bus, _),
        bus.subscribe("orders.a", name="x") as stream,
    ):
        if many:
            with pytest.raises(PartlyRefused) as partly:
                await bus.publish_many("orders.a", [b"0", b"1", b"2", b"3"])
            assert texts(message for message, _ in partly.value.refused) == ["2", "3"]
        else:
            for number in range(4):
                if number < 2:
                    await bus.publish("orders.a", str(number).encode())
                else:
                    with pytest.raises(RateLimited):
                        await bus.publish("orders.a", str(number).encode())
        assert texts(await take(stream, 2, ack=False)) == ["0", "1"]
    with place.reader() as reader:
        told = {
            bytes(message.payload): {outcome.subscriber: outcome.fate for outcome in reader.outcomes(message)}
            for message in reader.messages()
        }
    assert told == {
        b"0": {"x": tl.Fate.DELIVERED},
        b"1": {"x": tl.Fate.DELIVERED},
        b"2": {"shop": tl.Fate.REFUSED},
        b"3": {"shop": tl.Fate.REFUSED},
    }


@pytest.mark.parametrize("hook", [broken, choosy])
async def test_a_later_hook_that_fails(simulation: Simulation, tmp_path: Path, hook: Any) -> None:
    place = Place(simulation, tmp_path)
    async with persisted(place, [hook()], name="shop") as (bus, _):
        with pytest.raises(HookFailed):
            await bus.publish("orders.a", b"no")
    with place.reader() as reader:
        (message,) = reader.messages()
        assert [(each.subscriber, each.fate) for each in reader.outcomes(message)] == [("shop", tl.Fate.REFUSED)]


async def test_an_earlier_hook_refuses_before_it_is_written(simulation: Simulation, tmp_path: Path) -> None:
    def refuse(message: tl.Message) -> tl.Message:
        raise ValueError("no")

    place = Place(simulation, tmp_path)
    async with persisted(place, [each(refuse)]) as (bus, _):
        with pytest.raises(HookFailed):
            await bus.publish("orders.a", b"1")
    with place.reader() as reader:
        assert list(reader.messages()) == []


async def test_a_message_that_expired_on_its_way(simulation: Simulation, tmp_path: Path) -> None:
    """Written, and then too late to be published."""

    class Dawdle(Hook):
        stage = Stage.LIMIT

        async def __call__(self, batch: Any, forward: Any) -> None:
            await asyncio.sleep(10)
            await forward(batch)

    place = Place(simulation, tmp_path)
    async with (
        persisted(place, [Dawdle()], name="shop") as (bus, _),
        bus.subscribe("orders.a", name="x") as stream,
    ):
        with pytest.raises(tl.MessageExpired):
            await bus.publish("orders.a", b"1", ttl_s=5)
        await bus.publish("orders.a", b"2", ttl_s=500)
        assert texts(await take(stream, 1, ack=False)) == ["2"]
    with place.reader() as reader:
        late, well = reader.messages()
        assert [(each.subscriber, each.fate) for each in reader.outcomes(late)] == [("shop", tl.Fate.REFUSED)]
        assert [(each.subscriber, each.fate) for each in reader.outcomes(well)] == [("x", tl.Fate.DELIVERED)]


async def test_fates_of_other_topics_are_not_the_journals(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    async with (
        persisted(place) as (bus, _),
        bus.subscribe("else", name="x") as stream,
    ):
        for _ in range(3):
            await bus.publish("else", b"1")
        await take(stream, 2, ack=False)
    with place.reader() as reader:
        assert reader.query("SELECT subscriber, fate, first, last FROM fates") == []


async def test_dead_letters_and_orphans_are_written(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path)
    async with persisted(place) as (bus, _):

        async def fail(message: tl.Message) -> None:
            raise ValueError("no")

        bus.handle("orders.a", fail, name="x", retry=tl.Retry(attempts=1))
        await bus.publish("orders.a", b"1")
        await bus.post(tl.Message(type=tl.MessageType.RESPONSE, request_id="r", payload=b"early"))
        await bus.quiet()
    with place.reader() as reader:
        assert reader.query("SELECT subscriber, topic FROM dead_letters") == [("x", "orders.a")]
        assert reader.query("SELECT request_id FROM orphans") == [("r",)]
