"""`explain` gives the same answer to publisher, subscriber and observer, with a journal or without."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.hubs import Place, until
from trunkline.delivery.books import LOST
from trunkline.delivery.fates import Account
from trunkline.journal import JournalBroker, Reader
from trunkline.testing import Simulation, simulate, world

JOURNALS = pytest.mark.parametrize("journal", [False, True], ids=["memory", "journal"])


SEALED = pytest.mark.parametrize("sealed", [False, True], ids=["unsealed", "sealed"])


def seal(place: Place) -> None:
    assert isinstance(place.hub.broker, JournalBroker)
    assert place.hub.broker.journal.tender.seal(everything=True)


def fates(explanation: tl.Explanation) -> dict[str, str]:
    return {outcome.subscriber: outcome.fate.value for outcome in explanation.outcomes}


def books(place: Place) -> Account:
    """Of the hub as a whole."""
    return sum(place.hub.broker.served.accounts().values(), Account())


@JOURNALS
def test_everybody_is_told_the_same(tmp_path: Path, journal: bool) -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path if journal else None)
        await place.start()
        async with (
            place.bus("publisher") as publisher,
            place.bus("reader") as reader,
            place.bus("stranger") as stranger,
        ):
            async with (
                reader.subscribe("orders.*", name="audit") as audit,
                reader.subscribe("orders.*", name="picky", where="payload != 2") as picky,
                reader.subscribe("orders.*", name="slow") as slow,
                reader.subscribe("orders.*", name="member", group="team") as member,
            ):
                ids = [await publisher.publish("orders.placed", number) for number in range(3)]
                unheard = await publisher.publish("nobody.here", 1)
                await publisher.flush()
                for _ in range(3):
                    await audit.recv()
                    await member.recv()
                for _ in range(2):
                    await picky.recv()
                await slow.recv()
                expected = {"audit": "delivered", "picky": "filtered", "slow": "in flight", "member": "delivered"}
                for bus in (publisher, reader, stranger):
                    explained = await bus.explain(ids[2])
                    assert fates(explained) == expected, bus.name
                    assert explained.message is not None
                    assert (explained.message.topic, explained.message.decode()) == ("orders.placed", 2)
                    assert fates(await bus.explain(ids[0])) == dict.fromkeys(expected, "delivered")
                    assert "had no subscribers" in str(await bus.explain(unheard))
                    assert "not known here" in str(await bus.explain("nonsense"))
            for bus in (publisher, reader, stranger):
                told = await bus.explain(ids[2])
                assert fates(told) == {**expected, "slow": "dropped"}
            account = books(place)
            assert account.balanced
            assert account.in_flight == 0
        await place.stop()

    simulate(play)


@JOURNALS
def test_what_a_subscriber_had_that_was_cut_off_for_good_is_lost_with_it(tmp_path: Path, journal: bool) -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path if journal else None)
        await place.start()
        async with place.bus("publisher") as publisher:
            reader = await place.bus("reader", backoff_s=1000.0).__aenter__()
            stream = await reader.subscribe("t", name="audit").__aenter__()
            ids = [await publisher.publish("t", number) for number in range(10)]
            await publisher.flush()
            for _ in range(4):
                await stream.recv()
            assert fates(await publisher.explain(ids[3])) == {"audit": "delivered"}
            place.cut("reader")
            await until(lambda: len(place.hub.sessions) == 1, "the hub has noticed")
            explained = [await publisher.explain(each) for each in ids]
            assert [fates(each)["audit"] for each in explained] == ["delivered"] * 4 + ["dropped"] * 6
            assert explained[9].outcomes[0].reason == LOST
            account = books(place)
            assert (account.delivered, account.dropped, account.in_flight) == (4, 6, 0)
            assert place.hub.counts["dropped"] == 6
            await reader.aclose()
        await place.stop()

    simulate(play)


@JOURNALS
def test_who_comes_again_says_better(tmp_path: Path, journal: bool) -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path if journal else None)
        await place.start()
        async with (
            place.bus("publisher") as publisher,
            place.bus("reader") as reader,
            reader.subscribe("t", name="audit") as stream,
        ):
            ids = [await publisher.publish("t", number) for number in range(10)]
            await publisher.flush()
            for _ in range(4):
                await stream.recv()
            place.cut("reader")
            await until(lambda: len(place.hub.sessions) == 1, "the hub has noticed")
            # Messages that were delivered, but not reported yet, are lost as far as the hub knows.
            assert set(fates(await publisher.explain(ids[9])).values()) == {"dropped"}
            await place.back(reader)
            ids += [await publisher.publish("t", number) for number in range(10, 12)]
            for _ in range(4):
                await stream.recv()
            await asyncio.sleep(1)
            told = [fates(await publisher.explain(each)) for each in ids]
            assert told == [{"audit": "delivered"}] * 8 + [{"audit": "in flight"}] * 4
            for _ in range(4):
                await stream.recv()
            assert [fates(await publisher.explain(each)) for each in ids] == [{"audit": "delivered"}] * 12
            account = books(place)
            assert (account.accepted, account.delivered, account.dropped) == (12, 12, 0)
        await place.stop()

    simulate(play)


def test_two_clients_may_give_their_subscribers_the_same_name() -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with (
            place.bus("publisher") as publisher,
            place.bus("one") as one,
            place.bus("other") as other,
            one.subscribe("t", name="audit") as first,
            other.subscribe("t", name="audit", where="False"),
        ):
            sent = await publisher.publish("t", 1)
            await first.recv()
            assert fates(await publisher.explain(sent)) == {"audit": "delivered", "audit#2": "filtered"}
        await place.stop()

    simulate(play)


def test_without_a_hub_it_says_what_is_known_here() -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with place.bus("publisher") as publisher, publisher.subscribe("t", name="audit") as audit:
            sent = await publisher.publish("t", 1)
            await audit.recv()
            await place.stop()
            explained = await publisher.explain(sent)
            assert fates(explained) == {"audit": "delivered"}
            assert "this is what is known in this process" in explained.note

    simulate(play)


def test_a_subscriber_that_says_nothing_is_not_waited_for_for_long() -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with (
            place.bus("publisher") as publisher,
            place.bus("reader") as reader,
            reader.subscribe("t", name="audit"),
        ):
            sent = await publisher.publish("t", 1)
            await publisher.flush()
            (session,) = (each for each in place.hub.sessions.values() if each.name == "reader")
            session.wire.pause()
            began = asyncio.get_running_loop().time()
            (outcome,) = (await publisher.explain(sent)).outcomes
            assert outcome.fate is tl.Fate.IN_FLIGHT
            assert "has not reported" in outcome.reason
            assert asyncio.get_running_loop().time() - began < 2
            session.wire.resume()
        await place.stop()

    simulate(play)


@SEALED
def test_what_was_lost_with_the_hub_is_on_record_after_its_restart(tmp_path: Path, sealed: bool) -> None:
    """The hub is killed with stored messages that it has not delivered, and some without a report."""
    ids: list[str] = []

    async def killed(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path / "journal")
        await place.start()
        async with place.bus("publisher") as publisher, place.bus("reader", backoff_s=1000.0) as reader:
            stream = await reader.subscribe("t", name="audit", capacity=10).__aenter__()
            ids.extend([await publisher.publish("t", number) for number in range(6)])
            for _ in range(2):
                await stream.recv()
            await asyncio.sleep(1)
            await place.hub.broker.flush()
            if sealed:
                seal(place)
            # As a crash would leave it: the last reports are not written.
            shutil.copytree(tmp_path / "journal", tmp_path / "crashed")
        await place.stop()

    async def again(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path / "crashed")
        await place.start()
        async with place.bus("stranger") as stranger:
            told = [(await stranger.explain(each)).outcomes for each in ids]
            assert [[(one.subscriber, one.fate.value) for one in each] for each in told] == [
                [("audit", "delivered")] if number < 2 else [("audit", "dropped")] for number in range(6)
            ]
            assert told[5][0].reason == "lost with the hub"
            # Once, and not again at the next start.
            await place.stop()
        with Reader(tmp_path / "crashed") as journal:
            assert journal.query("SELECT count(*) FROM attendance") == [(0,)]
            assert journal.query("SELECT sum(count) FROM fates WHERE reason = 'lost with the hub'") == [(4,)]

    simulate(killed)
    simulate(again)


@SEALED
def test_who_comes_again_after_a_crash_of_the_hub_says_better(tmp_path: Path, sealed: bool) -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path / "journal")
        await place.start()
        async with (
            place.bus("publisher") as publisher,
            place.bus("reader") as reader,
            reader.subscribe("t", name="audit") as stream,
        ):
            ids = [await publisher.publish("t", number) for number in range(6)]
            for _ in range(2):
                await stream.recv()
            await asyncio.sleep(1)
            if sealed:
                seal(place)
            shutil.copytree(tmp_path / "journal", tmp_path / "crashed")
            await place.stop()
            place._folder = tmp_path / "crashed"
            await place.start()
            await place.back(publisher, reader)
            await asyncio.sleep(1)
            told = [fates(await publisher.explain(each)) for each in ids]
            assert told == [{"audit": "delivered"}] * 2 + [{"audit": "in flight"}] * 4
            for _ in range(4):
                await stream.recv()
            assert [fates(await publisher.explain(each)) for each in ids] == [{"audit": "delivered"}] * 6
            assert books(place).balanced
        await place.stop()

    simulate(play)


def test_a_handler_at_work_has_not_handled_what_it_works_on() -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with place.bus("publisher") as publisher, place.bus("worker") as worker:
            begun, go_on = asyncio.Event(), asyncio.Event()

            @worker.on("orders.*", name="work", retry=tl.Retry(attempts=1))
            async def work(number: int) -> None:
                if number == 2:
                    raise ValueError("no")
                if number == 3:
                    begun.set()
                    await go_on.wait()

            await publisher.flush()
            ids = [await publisher.publish("orders.placed", number) for number in range(1, 5)]
            await begun.wait()
            for _ in range(2):
                told = [fates(await publisher.explain(each))["work"] for each in ids]
                assert told == ["delivered", "dead", "in flight", "in flight"]
            go_on.set()
            await until(lambda: books(place).in_flight == 0, "everything has its fate")
            account = books(place)
            assert (account.delivered, account.dead) == (3, 1)
            assert [fates(await worker.explain(each))["work"] for each in ids] == [
                "delivered",
                "dead",
                "delivered",
                "delivered",
            ]
        await place.stop()

    simulate(play)
