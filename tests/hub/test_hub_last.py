"""The last message of a topic through a hub: rights, refusals, and reconnections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.hub.hubs import Place, connection_of, received, until
from trunkline.hub.access import Access
from trunkline.hub.hub import Hub
from trunkline.hub.last import MAX_WAITING
from trunkline.hub.settings import HubSettings
from trunkline.journal import Journal, JournalBroker, JournalSettings
from trunkline.testing import simulate, world
from trunkline.wire import control

MIB = 1024 * 1024


def play(
    act: Callable[[Hub, Callable[..., tl.Bus]], Awaitable[None]],
    folder: Path,
    *,
    access: Access | None = None,
    frame: int = 64 * MIB,
    **journal: Any,
) -> None:
    """Run it with a hub that has a journal, in virtual time."""

    async def all_of_it(simulation: Any) -> None:
        mine = world(simulation)
        stored = Journal(folder, JournalSettings(**journal), world=mine, threaded=False)
        broker = JournalBroker(stored, owns_journal=True)
        async with Hub(broker, settings=HubSettings(max_frame_bytes=frame), access=access) as hub:
            address = await hub.listen("pair:last")

            def bus(**options: Any) -> tl.Bus:
                return tl.connect(address, world=mine, **options)

            await act(hub, bus)

    simulate(all_of_it)


def test_a_large_message(tmp_path: Path) -> None:
    """Ten megabytes, with all header fields. A client sees its own publishes at once."""

    async def act(hub: Hub, bus: Callable[..., tl.Bus]) -> None:
        payload = bytes(range(256)) * (10 * MIB // 256)
        async with bus(name="one") as one, bus(name="two", connection=tl.ConnectionSettings(connect_s=6)) as two:
            found: tl.Message | None = None
            for number in range(3):
                await one.publish("t", payload, headers={"number": str(number)}, priority=75)
                for each in (one, two):
                    found = await each.last("t")
                    assert found is not None
                    assert (found.payload == payload, found.headers) == (True, {"number": str(number)})
                    assert (found.topic, found.sender, found.priority) == ("t", "one", 75)
            assert found is not None
            before = await two.last("t", before=found.seq)
            assert before is not None
            assert (before.seq, before.headers) == (found.seq - 1, {"number": "1"})

    play(act, tmp_path)


def test_one_that_does_not_fit_into_an_answer(tmp_path: Path) -> None:
    """The refusal names an alternative: a subscription delivers it."""

    async def act(hub: Hub, bus: Callable[..., tl.Bus]) -> None:
        async with bus() as mine:
            await mine.publish("t", bytes(3_400_000))
            with pytest.raises(tl.HubRefused, match=r'3,400,000 bytes.*4,194,304.*start="last"') as refused:
                await mine.last("t")
            assert refused.value.code == "too_large"
            async with mine.subscribe("t", start="last") as messages:
                assert len(await received(messages)) == 3_400_000
            narrow = tl.ConnectionSettings(max_frame_bytes=100_000)
            await mine.publish("t", bytes(90_000))
            assert await mine.last("t") is not None
            async with bus(name="narrow", connection=narrow) as other:
                with pytest.raises(tl.HubRefused, match="100,000"):
                    await other.last("t")

    play(act, tmp_path, frame=4 * MIB)


def test_who_may_not_subscribe_may_not_ask(tmp_path: Path) -> None:
    async def act(hub: Hub, bus: Callable[..., tl.Bus]) -> None:
        async with bus() as mine:
            await mine.publish("secret", 1)
            await mine.publish("open.a", 2)
            found = await mine.last("open.a")
            assert found is not None
            assert found.decode() == 2
            with pytest.raises(tl.NotAllowed, match="may not subscribe on secret"):
                await mine.last("secret")
            with pytest.raises(tl.NotAllowed, match="may not subscribe on secret"):
                await mine.subscribe("secret", start="last").open()

    rules = [{"who": "*", "may": ["publish"]}, {"who": "*", "may": ["subscribe"], "on": ["open.>"]}]
    play(act, tmp_path, access=Access.load(rules))


def test_errors_are_those_of_one_process(tmp_path: Path) -> None:
    """A message that is not stored, a damaged one, and an invalid topic."""

    async def act(hub: Hub, bus: Callable[..., tl.Bus]) -> None:
        async with bus() as mine:
            with pytest.raises(tl.TopicNotStored, match=r"'ticks' is not stored.*orders\.>") as refused:
                await mine.last("ticks")
            assert refused.value.stored == ("orders.>",)
            with pytest.raises(tl.InvalidTopic):
                await mine.last("orders.*")
            await mine.publish("orders.a", 1)
            await mine.publish("orders.a", 2)
            assert isinstance(hub.broker, JournalBroker)
            change = "UPDATE batches SET checksum = 0 WHERE first = 2"
            hub.broker.journal.writer.call(lambda database: database.execute(change)).result()
            with pytest.raises(tl.JournalDamaged) as damaged:
                await mine.last("orders.a")
            assert (damaged.value.first, damaged.value.last, damaged.value.where) == (2, 2, "orders.a")
            before = await mine.last("orders.a", before=damaged.value.first)
            assert before is not None
            assert before.decode() == 1

    play(act, tmp_path, durable=("orders.>",))


def test_strange_questions_have_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers out of range, and more open requests than a hub allows."""

    async def act(hub: Hub, bus: Callable[..., tl.Bus]) -> None:
        async with bus() as mine:
            await mine.publish("t", 1)
            for before, expected in ((2**70, 1), (-(2**70), None), (0, None), (2**63, 1), (1, None)):
                found = await mine.last("t", before=before)
                assert (None if found is None else found.decode()) == expected
            store, answer = hub.broker.require_store(), asyncio.Event()
            at_once = store.last

            async def late(topic: str, before: int | None = None) -> tl.Message | None:
                await answer.wait()
                return await at_once(topic, before)

            monkeypatch.setattr(store, "last", late)
            connection = connection_of(mine)
            asked = [
                asyncio.ensure_future(connection.ask(lambda n: control.Last(id=n, topic="t")))
                for _ in range(MAX_WAITING + 1)
            ]
            (refused,), waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            assert "are already waiting for an answer" in str(refused.exception())
            answer.set()
            assert all(isinstance(each, control.LastAnswer) for each in await asyncio.gather(*waiting))
            assert await mine.last("t") is not None

    play(act, tmp_path)


def test_a_hub_that_does_not_know_it_is_not_asked(tmp_path: Path) -> None:
    """An older hub would not answer, and would let a subscription start at the end: both are refused here."""

    async def act(hub: Hub, bus: Callable[..., tl.Bus]) -> None:
        broker = hub.broker
        broker.features = broker.features - {tl.Feature.STORED}
        async with bus() as mine:
            early = mine.subscribe("t", start="last")
            with pytest.raises(tl.Unsupported, match="the hub broker does not offer reading stored messages"):
                await early.open()
            with pytest.raises(tl.Unsupported, match="the hub broker does not offer reading stored messages"):
                await mine.last("t")

    play(act, tmp_path)


def test_a_subscription_goes_on_after_a_reconnection(tmp_path: Path) -> None:
    """Not from the last message again, but from its position, without a gap, also over a restart of the hub."""

    async def act(simulation: Any) -> None:
        place = Place(world(simulation), tmp_path / f"seed {simulation.seed}")
        await place.start()
        async with place.bus("publisher") as publisher, place.bus("taker") as taker:
            for number in range(3):
                await publisher.publish("t", number)
            async with taker.subscribe("t", start="last") as messages:
                assert await received(messages) == 2
                place.cut("taker")
                await publisher.publish("t", 3)
                await publisher.publish("t", 4)
                assert [await received(messages), await received(messages)] == [3, 4]
                await place.stop()
                await place.start()
                await place.back(publisher, taker)
                await publisher.publish("t", 5)
                assert await received(messages) == 5
                assert messages.account().dropped == 0
        await place.stop()

    for seed in range(5):
        simulate(act, seed=seed)


def test_leaving_it_leaves_nothing(tmp_path: Path) -> None:
    """Neither a cursor nor a subscriber stays at the hub. Messages that were not taken are recorded as dropped."""

    async def act(hub: Hub, bus: Callable[..., tl.Bus]) -> None:
        broker = hub.broker
        assert isinstance(broker, JournalBroker)
        async with bus() as mine:
            await mine.publish_many("t", list(range(3)))
            async with mine.subscribe("t", start="beginning", name="plain") as messages:
                assert await received(messages) == 0
                await until(lambda: messages.depth == 2, "the others are here")
            await until(lambda: not broker.subscribers("t"), "it has left")
            await mine.flush()
            await broker.journal.flush()
            query = "SELECT subscriber, fate, count FROM fates ORDER BY first"
            fates = broker.journal.reader.query(query)
            assert fates == [("plain", "delivered", 1), ("plain", "dropped", 1), ("plain", "dropped", 1)]
            assert broker.journal.reader.query("SELECT * FROM cursors") == []

    play(act, tmp_path)
