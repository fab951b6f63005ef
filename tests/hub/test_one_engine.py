"""A bus in the hub's own process and clients elsewhere are subscribers and publishers of one engine."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.hubs import Place, received, until
from trunkline.delivery.fates import Account, Fate
from trunkline.journal import JournalBroker
from trunkline.testing import Simulation, simulate, world


@pytest.mark.parametrize("kept", [False, True])
def test_a_bus_in_the_hub_and_its_clients_hear_each_other(tmp_path: Path, kept: bool) -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path if kept else None)
        hub = await place.start()
        async with (
            tl.Bus(hub.broker, name="inside") as inside,
            place.bus("outside") as outside,
            inside.subscribe("t.>", name="here") as here,
            outside.subscribe("t.>", name="there") as there,
        ):
            await inside.publish("t.a", "from inside")
            await inside.publish_many("t.a", ["one", "two"])
            assert [await received(there) for _ in range(3)] == ["from inside", "one", "two"]
            await outside.publish("t.b", "from outside")
            await outside.publish_many("t.b", ["three", "four"])
            assert [await received(here) for _ in range(6)] == [
                "from inside", "one", "two", "from outside", "three", "four",
            ]  # fmt: skip
            assert [await received(there) for _ in range(3)] == ["from outside", "three", "four"]
            assert sorted(hub.broker.subscribers("t.a")) == ["here", "there"]

            @inside.on("double")
            async def double(number: int) -> int:
                return 2 * number

            @outside.on("triple")
            async def triple(number: int) -> int:
                return 3 * number

            await outside.flush()
            assert await outside.request("double", 2) == 4
            assert await inside.request("triple", 2) == 6
            # Every message has one fate for each of the two subscribers, on each bus.
            await asyncio.sleep(1)
            for publisher in (inside, outside):
                published = [message.id for message in publisher.history() if message.topic in ("t.a", "t.b")]
                assert len(published) == 3
                for asked in (inside, outside):
                    for message_id in published:
                        told = await asked.explain(message_id)
                        fates = {outcome.subscriber: outcome.fate for outcome in told.outcomes}
                        assert fates == {"here": Fate.DELIVERED, "there": Fate.DELIVERED}, told
            assert sum(hub.broker.served.accounts().values(), Account()).balanced
        await place.stop()

    simulate(play)


@pytest.mark.parametrize("kept", [False, True])
def test_a_publisher_in_the_hub_waits_for_a_slow_client(tmp_path: Path, kept: bool) -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path if kept else None)
        hub = await place.start()
        async with (
            tl.Bus(hub.broker, name="inside") as inside,
            place.bus("outside") as outside,
            outside.subscribe("t", capacity=3) as there,
        ):
            ended: list[int] = []

            async def publish() -> None:
                for number in range(20):
                    await inside.publish("t", number)
                    ended.append(number)

            task = asyncio.create_task(publish())
            await asyncio.sleep(5)
            # Three are in the inbox elsewhere, and one waits here.
            assert ended == [0, 1, 2]
            assert [await received(there) for _ in range(20)] == list(range(20))
            await task
            assert there.account().dropped == 0
        await place.stop()

    simulate(play)


def test_a_cancelled_publisher_in_the_hub_leaves_nothing_waiting() -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        hub = await place.start()
        async with (
            tl.Bus(hub.broker, name="inside") as inside,
            place.bus("outside") as outside,
            outside.subscribe("t", capacity=1, name="slow") as there,
        ):
            await inside.publish("t", 0)
            task = asyncio.create_task(inside.publish("t", 1))
            await asyncio.sleep(1)
            assert not task.done()
            task.cancel()
            await asyncio.wait([task])
            waiting = inside.history()[-1]
            (outcome,) = (await inside.explain(waiting.id)).outcomes
            assert (outcome.subscriber, outcome.fate) == ("slow", Fate.DROPPED)
            await inside.publish_many("t", [])
            assert await received(there) == 0
            await inside.publish("t", 2)
            assert await received(there) == 2
            await until(lambda: hub.broker.served.accounts()["slow"].in_flight == 0, "all of it is reported on")
            assert hub.broker.served.accounts()["slow"] == Account(accepted=3, delivered=2, dropped=1)
        await place.stop()

    simulate(play)


def test_a_client_that_rejects_refuses_a_publisher_in_the_hub() -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation))
        hub = await place.start()
        async with (
            tl.Bus(hub.broker, name="inside") as inside,
            place.bus("outside") as outside,
            outside.subscribe("t", capacity=2, overflow=tl.Overflow.REJECT, name="strict"),
        ):
            await inside.publish("t", 0)
            await inside.publish("t", 1)
            with pytest.raises(tl.InboxFull, match="strict"):
                await inside.publish("t", 2)
        await place.stop()

    simulate(play)


@pytest.mark.parametrize("seed", range(5))
def test_a_batch_that_is_sent_again_meets_its_original_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A commit may take longer than a reconnection: the batch is stored once, and confirmed on the new connection."""

    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path)
        hub = await place.start()
        assert isinstance(hub.broker, JournalBroker)
        journal = hub.broker.journal
        commit = journal.writer.put
        # The disk takes five seconds for each commit.
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(journal.writer, "put", lambda jobs: loop.call_later(5.0, commit, jobs))

        async with (
            place.bus("publisher") as publisher,
            place.bus("subscriber") as subscriber,
            subscriber.subscribe("orders.>") as messages,
        ):
            publishes = [asyncio.create_task(publisher.publish("orders.new", number)) for number in range(3)]
            await asyncio.sleep(1)
            place.cut("publisher")
            await asyncio.wait_for(asyncio.gather(*publishes), 60)
            await asyncio.sleep(20)
            assert sorted(message.decode() for message in taken(messages)) == [0, 1, 2]
            stored = journal.reader.query("SELECT sum(last - first + 1) FROM batches WHERE topic = 'orders.new'")
            assert stored == [(3,)]
            monkeypatch.undo()
        await place.stop()

    simulate(play, seed=seed)


def taken(messages: tl.Stream) -> list[tl.Message]:
    found = []
    while messages.depth:
        found.append(messages.try_recv())
    return found


def test_a_cancelled_publish_does_not_withdraw_the_batch_it_shares(tmp_path: Path) -> None:
    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path)
        hub = await place.start()
        async with (
            place.bus("publisher") as publisher,
            place.bus("subscriber") as subscriber,
            subscriber.subscribe("orders.>", capacity=1, name="slow") as messages,
        ):
            await publisher.publish("orders.new", 0)
            # Published in one turn, these two share a batch, and it waits for room.
            one = asyncio.create_task(publisher.publish("orders.new", 1))
            other = asyncio.create_task(publisher.publish("orders.new", 2))
            await asyncio.sleep(1)
            assert not one.done()
            one.cancel()
            await asyncio.sleep(1)
            assert await received(messages) == 0
            found = {await received(messages)}
            if not other.done():
                found.add(await received(messages))
            await other
            while messages.depth:
                found.add(messages.try_recv().decode())
            assert 2 in found
            assert hub.broker.served.accounts()["slow"].dropped <= 1
        await place.stop()

    simulate(play)


def test_a_late_confirmation_is_no_backpressure_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit takes longer than the timeout: the message is stored and delivered once."""

    async def play(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path)
        hub = await place.start()
        assert isinstance(hub.broker, JournalBroker)
        journal = hub.broker.journal
        commit = journal.writer.put
        loop = asyncio.get_running_loop()
        settings = tl.Settings(backpressure=tl.Backpressure(timeout_s=2.0))
        async with (
            tl.connect(place.address, name="publisher", settings=settings, world=place.world) as publisher,
            place.bus("subscriber") as subscriber,
            subscriber.subscribe("orders.>") as messages,
        ):
            await publisher.publish("orders.new", 0)
            monkeypatch.setattr(journal.writer, "put", lambda jobs: loop.call_later(4.0, commit, jobs))
            await publisher.publish("orders.new", 1)
            assert [await received(messages) for _ in range(2)] == [0, 1]
            await asyncio.sleep(10)
            assert messages.depth == 0
            monkeypatch.undo()
        await place.stop()

    simulate(play)


async def test_what_a_bus_tells_is_of_its_own_process(simulation: Simulation) -> None:
    place = Place(world(simulation))
    await place.start()
    async with place.bus("one") as one, place.bus("another") as other, one.subscribe("here", name="mine"):
        await one.publish("there")
        assert one.subscribers("there") == []
        assert one.subscribers("here") == ["mine"]
        # Nothing is known of a topic before it was published on.
        assert other.subscribers("here") == []
        async with other.subscribe("there", name="theirs", overflow="reject", capacity=1):
            with pytest.raises(tl.PartlyRefused, match="2 of 3"):
                await one.publish_many("there", range(3), priority=60)
            assert (one.stats().total_failed, other.stats().total_failed) == (2, 0)
            await until(lambda: one.subscribers("there") == ["somebody elsewhere"], "the hub knows a subscriber")
            await one.publish("here")
            assert dict(one.stats().per_topic) == {"there": 4, "here": 1}
            assert dict(other.stats().per_topic) == {}
            await one.flush()
            assert dict(one.stats().per_topic) == {"there": 4, "here": 1}
            assert (list(one.accounts()), list(other.accounts())) == (["mine"], ["theirs"])
            assert one.stats().subscribers == 1
        await until(lambda: one.subscribers("there") == [], "the hub knows that it left")
    await place.stop()


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("group", [None, "workers"])
async def test_who_waits_for_an_acknowledgement_is_told_once(
    simulation: Simulation, inside: bool, group: str | None
) -> None:
    """Also if a bus in the hub's process could report it as well."""
    place = Place(world(simulation))
    hub = await place.start()
    breaker = tl.hooks.CircuitBreaker(tl.hooks.Breaker(failures=2))
    async with contextlib.AsyncExitStack() as stack:
        if inside:
            await stack.enter_async_context(tl.Bus(hub.broker, name="inside"))
        worker = await stack.enter_async_context(place.bus("worker"))
        asker = await stack.enter_async_context(
            tl.connect(place.address, name="asker", world=place.world, hooks=[breaker])
        )

        @worker.on("fails", retry=tl.Retry(attempts=1), group=group)
        async def fails() -> None:
            raise ValueError("broken")

        @worker.on("well", group=group)
        async def well() -> None: ...

        told = await stack.enter_async_context(asker.subscribe("told"))
        notices = await stack.enter_async_context(asker.subscribe("_dead.>"))
        taken = await stack.enter_async_context(worker.subscribe("taken", group=group))
        await worker.flush()
        ids = {
            await asker.publish(topic, requires_ack=True, reply_to="told"): topic
            for topic in ("fails", "well", "taken")
        }
        message = await taken.recv()
        assert message is not None
        assert taken.ack(message)
        await asyncio.sleep(5)
        answers = [told.try_recv() for _ in range(told.depth)]
        assert sorted((ids[answer.request_id or ""], answer.type.name) for answer in answers) == [
            ("fails", "ERROR"),
            ("taken", "ACK"),
            ("well", "ACK"),
        ]
        assert notices.depth == 1
        # The circuit of a responder elsewhere opens by its answers.
        for error in (tl.RequestFailed, tl.RequestFailed, tl.CircuitOpen):
            with pytest.raises(error):
                await asker.request("fails")
    await place.stop()
