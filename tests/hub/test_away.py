"""Messages that are published while a plain subscriber is disconnected: the hub says that they were dropped for it."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.hubs import Place, until
from tests.hub.test_hub_explain import JOURNALS, books, fates
from trunkline.delivery.books import AWAY, Books
from trunkline.delivery.fates import Fate
from trunkline.delivery.ranges import Ranges
from trunkline.journal import Reader
from trunkline.testing import Simulation, simulate, world


async def publish(bus: tl.Bus, topic: str, count: int = 5) -> list[str]:
    ids = [await bus.publish(topic, number) for number in range(count)]
    await bus.flush()
    return ids


async def take(stream: tl.Stream, count: int) -> list[tl.Message]:
    return [message for _ in range(count) if (message := await stream.recv()) is not None]


async def explained(bus: tl.Bus, ids: list[str], name: str = "audit") -> list[tuple[str, str]]:
    found = []
    for each in ids:
        (outcome,) = (one for one in (await bus.explain(each)).outcomes if one.subscriber == name)
        found.append((outcome.fate.value, outcome.reason))
    return found


@JOURNALS
@pytest.mark.parametrize("away_s", [0.0, 0.4, 5.0])
def test_messages_published_while_a_subscriber_is_away(tmp_path: Path, journal: bool, away_s: float) -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path / str(simulation.seed) if journal else None)
        await place.start()
        async with (
            place.bus("publisher") as publisher,
            place.bus("reader") as reader,
            place.bus("other") as other,
            reader.subscribe("t.*", name="audit") as stream,
            other.subscribe(">", name="all") as everything,
        ):
            before = await publish(publisher, "t.a")
            assert [each.id for each in await take(stream, 5)] == before
            await publisher.explain(before[0])  # the fates are reported
            place.cut("reader")
            await until(lambda: len(place.hub.sessions) == 2, "the hub has noticed")
            away = await publish(publisher, "t.a", 3)
            await publish(publisher, "u")
            away += await publish(publisher, "t.b", 2)
            await asyncio.sleep(away_s)
            await place.back(reader)
            after = await publish(publisher, "t.a")
            assert [each.id for each in await take(stream, 5)] == after
            for _ in range(20):
                await everything.recv()
            await asyncio.sleep(1)
            assert await explained(publisher, before + after) == [("delivered", "")] * 10
            assert await explained(publisher, away) == [("dropped", AWAY)] * 5
            assert await explained(publisher, away, "all") == [("delivered", "")] * 5
            account = books(place)
            assert account.balanced
            assert (account.accepted, account.delivered, account.dropped) == (35, 30, 5)
            assert reader.stats().account.dropped == 3, "it has seen the gap on the topic on which more followed"
        await place.stop()
        if journal:
            with Reader(tmp_path / str(simulation.seed)) as stored:
                rows = stored.query("SELECT first, last, count, reason FROM fates WHERE fate = 'dropped'")
            assert rows == [(6, 15, 5, AWAY)]

    simulate(play)


@pytest.mark.parametrize("killed", [True, False])
def test_messages_published_after_a_restart_before_a_subscriber_is_back(tmp_path: Path, killed: bool) -> None:
    async def play(simulation: Simulation) -> None:
        folder = tmp_path / str(simulation.seed)
        place = Place(world(simulation), folder)
        await place.start()
        async with place.bus("publisher") as publisher, place.bus("reader", backoff_s=30.0) as reader:
            async with reader.subscribe("t", name="audit") as stream, reader.subscribe("u", name="gone"):
                await publish(publisher, "t")
                for _ in range(5):
                    await stream.recv()
                await asyncio.sleep(1)
                if killed:
                    shutil.copytree(folder, tmp_path / f"{simulation.seed} killed")
                    place._folder = tmp_path / f"{simulation.seed} killed"
                await place.stop()
                await place.start()
                await place.back(publisher)
                away = await publish(publisher, "t", 4)
                await place.back(reader)
                after = await publish(publisher, "t")
                assert [each.id for each in await take(stream, 5)] == after
                assert await explained(publisher, away) == [("dropped", AWAY)] * 4
                assert await explained(publisher, after) == [("delivered", "")] * 5
            again = await publish(publisher, "t", 1)
            assert fates(await publisher.explain(again[0])) == {}
        await place.stop()
        with Reader(place._folder or folder) as stored:
            assert stored.query("SELECT count, reason FROM fates WHERE fate = 'dropped'") == [(4, AWAY)]

    simulate(play)


def test_a_message_that_was_routed_after_all_is_not_missed() -> None:
    books = Books()
    books.away(1, 10, 0)
    assert books.fate_of(4) == (Fate.DROPPED, AWAY, 0)
    assert not books.has(4, 4), "it was not sent"
    books.accepted += 1
    books.hand(4, 4, 0)
    assert books.report(4, 4, Fate.DELIVERED, "", 1)
    numbers = Ranges()
    numbers.add(1, 10)
    assert list(books.without_fate(numbers)) == [(1, 3), (5, 10)]
    assert [books.fate_of(each)[0] for each in (3, 4, 5)] == [Fate.DROPPED, Fate.DELIVERED, Fate.DROPPED]  # type: ignore[index]
