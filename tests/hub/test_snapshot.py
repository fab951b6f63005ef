"""SNAPSHOT: clients, subscribers, their state, and problems in words."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import trunkline as tl
from tests.hub.hubs import Place, until
from trunkline.dashboard.problems import problems
from trunkline.testing import Simulation, simulate
from trunkline.testing.world import world
from trunkline.wire.snapshot import HubSnapshot, SubscriberSnapshot


async def look(bus: tl.Bus, rows: int = 1000) -> HubSnapshot:
    assert isinstance(bus.broker, tl.HubBroker)
    return await bus.broker.snapshot(rows)


def one(snapshot: HubSnapshot, name: str) -> SubscriberSnapshot:
    (found,) = [each for each in snapshot.subscribers if each.name == name]
    return found


def test_clients_topics_and_subscribers_are_listed() -> None:
    async def main(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with place.bus("publisher") as publisher, place.bus("reader") as reader:
            async with reader.subscribe("orders.>", name="audit", capacity=50) as stream:
                for number in range(3):
                    await publisher.publish("orders.placed", {"number": number})
                await publisher.publish("other", 1)
                await publisher.flush()
                for _ in range(3):
                    await stream.recv(timeout_s=5)
                await until(lambda: stream.account().in_flight == 0, "all were taken")
                await asyncio.sleep(1)
                snapshot = await look(publisher)
            clients = {each.name: each for each in snapshot.clients}
            assert set(clients) == {"publisher", "reader"}
            assert (clients["publisher"].published, clients["reader"].delivered) == (4, 3)
            assert clients["reader"].since_ns <= snapshot.at_ns
            audit = one(snapshot, "audit")
            assert (audit.pattern, audit.client, audit.overflow, audit.capacity) == ("orders.>", "reader", "block", 50)
            assert (audit.accepted, audit.delivered, audit.waiting, audit.waiting_since_ns) == (3, 3, 0, 0)
            assert {each.topic: each.published for each in snapshot.topics} == {"orders.placed": 3, "other": 1}
            assert snapshot.published == 4
            assert problems(snapshot) == []
            few = await look(publisher, rows=1)
            assert (len(few.clients), few.clients_total, len(few.topics), few.topics_total) == (1, 2, 1, 2)
            assert few.topics[0].topic == "orders.placed"
        await place.stop()

    simulate(main)


def test_a_slow_subscriber_is_named_with_how_long_messages_wait() -> None:
    async def main(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with (
            place.bus("publisher") as publisher,
            place.bus("reader") as reader,
            reader.subscribe("a", name="slow", capacity=10) as stream,
        ):
            # It takes none: ten fill its inbox, the others wait at the hub.
            publishing = asyncio.create_task(publisher.publish_many("a", [b"x"] * 30))
            await until(lambda: stream.account().in_flight == 10, "the inbox is full")
            await asyncio.sleep(5)
            slow = one(await look(publisher), "slow")
            assert slow.waiting == 20
            found = problems(await look(publisher))
            assert [each.kind for each in found] == ["slow"]
            assert "the subscriber slow of reader (a) is slow: 20 messages waiting for up to 5 s" in found[0].text
            assert found[0].text.endswith("publishers wait for it")
            for _ in range(30):
                await stream.recv(timeout_s=5)
            await publishing
            await asyncio.sleep(1)
            assert one(await look(publisher), "slow").waiting_since_ns == 0
            assert problems(await look(publisher)) == []
        await place.stop()

    simulate(main)


def test_drops_and_dead_letters_are_problems() -> None:
    async def main(simulation: Simulation) -> None:
        place = Place(world(simulation))
        await place.start()
        async with (
            place.bus("publisher") as publisher,
            place.bus("reader") as reader,
            reader.subscribe("a", name="forgetful", capacity=5, overflow="drop_oldest"),
        ):
            await publisher.publish_many("a", [b"x"] * 20)
            await publisher.flush()
            await asyncio.sleep(2)
            found = problems(await look(publisher))
            assert [each.kind for each in found] == ["dropped"]
            assert "has dropped 15 messages of 20 (policy drop_oldest, room for 5)" in found[0].text
            assert found[0].next_step.endswith('or use overflow="block"')

            @reader.on("b", name="picky", retry=tl.Retry(attempts=1))
            async def refuse() -> None:
                raise ValueError("no")

            await reader.flush()
            await publisher.publish("b")
            await publisher.flush()
            await asyncio.sleep(2)
            dead = problems(await look(publisher))[1]
            assert dead.text == "the subscriber picky of reader (b) failed to handle 1 message of 1"
            assert "bus.replay_dead()" in dead.next_step
        await place.stop()

    simulate(main)


def test_who_blocks_and_loses_is_not_told_to_block() -> None:
    full = SubscriberSnapshot(name="full", pattern="a", overflow="block", capacity=5, accepted=59, dropped=54)
    (found,) = problems(
        HubSnapshot(at_ns=1, hub="h", since_ns=0, listening=[], published=59, last=59, subscribers=[full])
    )
    assert "overflow" not in found.next_step
    assert "timeout_s" in found.next_step


@pytest.mark.parametrize("group", [None, "pool"])
def test_a_durable_subscription_without_a_subscriber(tmp_path: Path, group: str | None) -> None:
    async def main(simulation: Simulation) -> None:
        place = Place(world(simulation), tmp_path)
        await place.start()
        async with place.bus("publisher") as publisher, place.bus("reader") as reader:
            name = group or "bill"
            async with reader.subscribe("orders", name="bill", group=group, durable=True) as stream:
                await publisher.publish("orders", 1)
                message = await stream.recv(timeout_s=5)
                assert message is not None
                stream.ack(message)
                await publisher.publish_many("other", [b"x"] * 100)
                await asyncio.sleep(1)
                connected = [each for each in (await look(publisher)).subscribers if each.durable]
                assert [(each.client, each.group, each.behind) for each in connected] == [("reader", group or "", 0)]
            await publisher.publish_many("other", [b"x"] * 100)
            await asyncio.sleep(1)
            snapshot = await look(publisher)
            assert (one(snapshot, name).connected, one(snapshot, name).behind, problems(snapshot)) == (False, 0, [])
            await publisher.publish("orders", 2)
            await publisher.publish("orders", 3)
            await publisher.publish_many("other", [b"x"] * 100)
            await asyncio.sleep(1)
            snapshot = await look(publisher)
            gone = one(snapshot, name)
            assert (gone.connected, gone.durable, gone.pattern, gone.behind) == (False, True, "orders", 2)
            (problem,) = problems(snapshot)
            assert problem.kind == "not connected"
            assert problem.text.endswith(f"{name} (orders) has no subscriber, and is 2 messages behind")
            assert f"trunkline forget {name}" in problem.next_step
        await place.stop()

    simulate(main)
