"""Routers: pools and groups, to one member or to all, and `explain` for messages to them."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import trunkline as tl
from tests.actors.people import Clerk, Echo, shop
from tests.actors.running import run
from tests.journal.journals import until
from trunkline.actors import Actor, ActorSystem, Routing
from trunkline.delivery.dead_letters import Cause
from trunkline.delivery.fates import Fate
from trunkline.testing import Simulation

pytestmark = pytest.mark.usefixtures("both_ways")


class Named(Actor):
    def __init__(self, seen: list[tuple[str, int]] | None = None) -> None:
        self.seen = [] if seen is None else seen

    async def receive(self, number: int) -> str:
        if number < 0:
            raise tl.Reject("negative")
        self.seen.append((self.context.address, number))
        return self.context.address


async def test_explain_names_the_member(simulation: Simulation) -> None:
    async with shop(simulation) as (bus, system):
        pool = await system.pool(Named, size=3, name="pool")
        ids = [await pool.tell(number) for number in range(9)]
        refused = await pool.tell(-1)
        direct = await system.ref("shop.pool.2").tell(7)
        await asyncio.sleep(1)
        members = []
        for message_id in ids:
            (outcome,) = (await bus.explain(message_id)).outcomes
            assert outcome.fate is Fate.DELIVERED
            members.append(outcome.subscriber)
        assert members == ["shop.pool.1", "shop.pool.2", "shop.pool.3"] * 3
        (outcome,) = (await bus.explain(refused)).outcomes
        assert (outcome.subscriber, outcome.fate) == ("shop.pool.1", Fate.DEAD)
        (outcome,) = (await bus.explain(direct)).outcomes
        assert (outcome.subscriber, outcome.fate) == ("shop.pool.2", Fate.DELIVERED)
        assert all(account.balanced for account in bus.accounts().values())


async def test_explain_while_it_is_handled(simulation: Simulation) -> None:
    class Slow(Actor):
        async def receive(self, number: int) -> None:
            await asyncio.sleep(10)

    async with shop(simulation) as (bus, system):
        slow = await system.spawn(Slow, name="slow")
        ids = [await slow.tell(number) for number in range(2)]
        await asyncio.sleep(1)
        reasons = [(await bus.explain(message_id)).outcomes[0].reason for message_id in ids]
        assert reasons == ["is being handled", "waits in the inbox"]


async def test_ranges_of_fates_are_never_inverted(simulation: Simulation) -> None:
    """Priorities change the order of numbers, and so do redelivered messages."""
    random = simulation.random

    class Slow(Actor):
        async def receive(self, message: bytes) -> None:
            await asyncio.sleep(random.choice((0, 0, 0.01)))

    async with shop(simulation) as (bus, system):
        slow = await system.spawn(Slow, name="slow")
        ids = []
        for _ in range(100):
            priority = random.choice((tl.Priority.LOW, tl.Priority.NORMAL, tl.Priority.NORMAL, tl.Priority.CRITICAL))
            ids.append(await slow.tell(b"x", priority=priority))
        await asyncio.sleep(20)
        books = system.registry["slow"].inbox.books
        assert books.spans
        assert all(entry.first <= entry.last for entry in (*books.spans, *books.rows))
        for message_id in ids:
            (outcome,) = (await bus.explain(message_id)).outcomes
            assert outcome.fate is Fate.DELIVERED


async def test_broadcast(simulation: Simulation) -> None:
    seen: list[tuple[str, int]] = []
    async with shop(simulation) as (bus, system):
        pool = await system.pool(Named, seen, size=3, name="pool", routing=Routing.BROADCAST)
        message_id = await pool.tell(1)
        await asyncio.sleep(1)
        assert sorted(seen) == [("shop.pool.1", 1), ("shop.pool.2", 1), ("shop.pool.3", 1)]
        outcomes = (await bus.explain(message_id)).outcomes
        assert sorted(outcome.subscriber for outcome in outcomes) == ["shop.pool.1", "shop.pool.2", "shop.pool.3"]
        assert (await pool.ask(2)).startswith("shop.pool.")
        await system.resize(pool, 1)
        await pool.tell(3)
        await asyncio.sleep(1)
        assert seen[6:] == [("shop.pool.1", 3)]
        assert all(account.balanced for account in bus.accounts().values())


@pytest.mark.parametrize("routing", list(Routing))
async def test_a_group_is_of_actors_that_are_there(simulation: Simulation, routing: Routing) -> None:
    """Members of this system and of others. A member that ends leaves the group."""
    seen: list[tuple[str, int]] = []
    async with shop(simulation) as (bus, system), ActorSystem(bus, "bank") as bank:
        one = await system.spawn(Named, seen, name="one")
        two = await system.spawn(Named, seen, name="two")
        far = await bank.spawn(Named, seen, name="far")
        group = await system.group([one, "shop.two", far], name="group", routing=routing, key="correlation_id")
        answers = [await group.ask(number, correlation_id=f"key {number}") for number in range(60)]
        await asyncio.sleep(1)
        if routing is Routing.BROADCAST:
            assert Counter(address for address, _ in seen) == {"shop.one": 60, "shop.two": 60, "bank.far": 60}
        else:
            assert set(answers) == {"shop.one", "shop.two", "bank.far"}
            assert len(seen) == 60
        await system.stop(one)
        await bank.stop(far)
        await asyncio.sleep(1)
        assert {await group.ask(number, correlation_id=f"key {number}") for number in range(9)} == {"shop.two"}
        with pytest.raises(tl.UsageError, match="is a group"):
            await system.resize(group, 3)
        await system.stop(two)
        with pytest.raises(tl.RequestFailed, match="no actor"):
            await group.ask(1)
        assert all(account.balanced for account in bus.accounts().values())


async def test_what_is_no_group(simulation: Simulation) -> None:
    async with shop(simulation) as (bus, system):
        await system.spawn(Named, name="one")
        with pytest.raises(tl.UnknownActor):
            await system.group(["shop.one", "shop.nobody"], name="group")
        await system.group(["shop.one"], name="group")
        with pytest.raises(tl.DuplicateName):
            await system.spawn(Named, name="group")
        with pytest.raises(tl.DuplicateName):
            await system.group(["shop.one"], name="one")
        await system.stop("shop.group")
        await bus.send("shop.group", 1)
        assert [letter.cause for letter in bus.dead_letters] == [Cause.UNKNOWN_ACTOR]
        # Its members are not its own.
        assert [health.address for health in system.actors()] == ["shop.one"]


async def test_a_key_that_fails_costs_one_message(simulation: Simulation) -> None:
    def key(message: tl.Message) -> object:
        return 1 // message.decode(int)

    async with shop(simulation) as (bus, system):
        pool = await system.pool(Echo, size=2, name="pool", routing=Routing.CONSISTENT_HASH, key=key)
        assert (await pool.ask(1))[1] == 1
        await pool.tell(0)
        with pytest.raises(tl.RequestFailed, match="ZeroDivisionError"):
            await pool.ask(0, timeout_s=600)
        assert (await pool.ask(1))[1] == 1
        assert [letter.reason for letter in bus.dead_letters.find()] == [
            "its key could not be read: ZeroDivisionError: integer division or modulo by zero"
        ] * 2


# Over a hub


class Gated(Actor):
    """Waits until it is released."""

    def __init__(self, gate: asyncio.Event, seen: list[int]) -> None:
        self.gate = gate
        self.seen = seen

    async def receive(self, number: int) -> int:
        await self.gate.wait()
        self.seen.append(number)
        return number


def test_one_full_mailbox_stops_nobody_else(tmp_path: Path) -> None:
    """Over a hub: messages for a full mailbox wait separately, and none is lost."""

    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        count = 3000
        async with (
            tl.connect(place, name="one", embed=True) as here,
            tl.connect(place, name="two") as there,
            ActorSystem(there, "bank") as bank,
        ):
            gate, seen = asyncio.Event(), list[int]()
            await bank.spawn(Gated, gate, seen, name="full", capacity=5, overflow="block")
            await bank.spawn(Clerk, [], name="clerk")
            await there.flush()
            full = tl.actors.Ref(here, "bank.full")
            for number in range(count):
                await full.tell(number)
            await here.flush()
            clerk = tl.actors.Ref(here, "bank.clerk")
            assert await clerk.ask("there?", timeout_s=30) == "there?"
            assert seen == []
            gate.set()
            await until(lambda: len(seen) == count)
            assert seen == list(range(count))
            account = there.accounts()["bank.full"]
            assert (account.delivered, account.balanced) == (count, True)

    run(main())


def test_who_sends_to_a_full_mailbox_waits_and_nobody_else(tmp_path: Path) -> None:
    """More than mailbox, credit and window hold: they stay at the hub, and only the sender to this actor waits."""

    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        settings = tl.Settings(backpressure=tl.Backpressure(max_pending=100, timeout_s=600))
        async with (
            tl.connect(place, name="one", embed=True, settings=settings) as here,
            tl.connect(place, name="two", settings=settings) as there,
            ActorSystem(there, "bank") as bank,
        ):
            gate, seen = asyncio.Event(), list[int]()
            await bank.spawn(Gated, gate, seen, name="full", capacity=5, overflow="block")
            await bank.spawn(Clerk, [], name="clerk")
            full, clerk = tl.actors.Ref(here, "bank.full"), tl.actors.Ref(here, "bank.clerk")
            told = 0

            async def flood() -> None:
                nonlocal told
                for number in range(1000):
                    await full.tell(number)
                    told += 1

            flooding = asyncio.ensure_future(flood())
            await until(lambda: told > 100)
            for number in range(20):
                assert await clerk.ask(number, timeout_s=60) == number
                assert await tl.actors.Ref(there, "bank.clerk").ask(number, timeout_s=60) == number
            assert not flooding.done()
            assert told < 500
            gate.set()
            await flooding
            await until(lambda: len(seen) == 1000)
            assert seen == list(range(1000))
            assert not there.dead_letters.find()
            account = there.accounts()["bank.full"]
            assert (account.delivered, account.balanced) == (1000, True)

    run(main())


def test_an_actor_ends_while_the_hub_holds_messages_for_it(tmp_path: Path) -> None:
    """They are dead letters of an unknown actor, and requests fail. The next actor of its name gets only its own."""

    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        settings = tl.Settings(backpressure=tl.Backpressure(max_pending=10, timeout_s=600))
        async with (
            tl.connect(place, name="one", embed=True) as here,
            tl.connect(place, name="two", settings=settings) as there,
            ActorSystem(there, "bank") as bank,
        ):
            gate, seen = asyncio.Event(), list[int]()
            for _ in range(2):
                full = await bank.spawn(Gated, gate, seen, name="full", capacity=2, overflow="block")
                far = tl.actors.Ref(here, "bank.full")
                asked = [asyncio.ensure_future(far.ask(number, timeout_s=100)) for number in range(50)]
                await until(lambda: there.accounts()["bank.full"].in_flight == 4)
                await bank.stop(full)
                answers = await asyncio.gather(*asked, return_exceptions=True)
                kinds = {answer.error_type for answer in answers if isinstance(answer, tl.RequestFailed)}
                assert (len(answers), kinds) == (50, {"ActorStopped", "UnknownActor"})
            gate.set()
            await bank.spawn(Gated, gate, seen, name="full", capacity=2, overflow="block")
            assert await tl.actors.Ref(here, "bank.full").ask(7, timeout_s=60) == 7
            assert seen == [7]

    run(main())


def test_broadcasts_are_not_for_actors_anywhere(tmp_path: Path) -> None:
    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        async with (
            tl.connect(place, name="one", embed=True) as here,
            tl.connect(place, name="two") as there,
            ActorSystem(there, "bank") as bank,
        ):
            await bank.spawn(Clerk, [], name="clerk", overflow="block")
            await here.broadcast("all of you")
            await here.flush()
            assert await tl.actors.Ref(here, "bank.clerk").ask("there?", timeout_s=60) == "there?"
            assert not there.dead_letters.find()

    run(main())


def test_a_flood_for_an_actor_that_does_nothing_stops_nobody_else(tmp_path: Path) -> None:
    """Urgent messages wait for room in a mailbox. Beyond the limit they are dead letters. Others are not affected."""

    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        settings = tl.Settings(backpressure=tl.Backpressure(max_pending=100))
        async with (
            tl.connect(place, name="one", embed=True) as here,
            tl.connect(place, name="two", settings=settings) as there,
            ActorSystem(there, "bank") as bank,
        ):
            gate, seen = asyncio.Event(), list[int]()
            await bank.spawn(Gated, gate, seen, name="full", capacity=5)
            await bank.spawn(Gated, gate, [], name="refusing", capacity=1)
            await bank.spawn(Clerk, [], name="clerk")
            await there.flush()
            full, clerk = tl.actors.Ref(here, "bank.full"), tl.actors.Ref(here, "bank.clerk")
            for number in range(1000):
                await full.tell(number, priority=tl.Priority.HIGH)
                if not number % 100:
                    assert await clerk.ask(number, timeout_s=30) == number
            with pytest.raises(tl.RequestFailed, match="Congested"):
                await full.ask(1000, timeout_s=60, priority=tl.Priority.HIGH)
            refusing = tl.actors.Ref(here, "bank.refusing")
            for number in range(3):
                await refusing.tell(number)
            with pytest.raises(tl.RequestFailed, match="InboxFull"):
                await refusing.ask(3, timeout_s=60)
            gate.set()
            await until(lambda: len(seen) == 106)
            assert seen == list(range(106))
            letters = there.dead_letters.find(subscriber="bank.full")
            assert len(letters) == 1000 + 1 - 106
            assert {letter.cause for letter in letters} == {Cause.MAILBOX_FULL}
            assert there.accounts()["bank.full"].balanced

    run(main())


def test_a_slow_actor_over_a_hub_loses_nothing(tmp_path: Path) -> None:
    """More than mailbox and credit hold together: the rest arrives at the actor's own pace."""

    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        settings = tl.Settings(backpressure=tl.Backpressure(max_pending=50))
        seen: list[int] = []

        class Slow(Actor):
            async def receive(self, number: int) -> None:
                await asyncio.sleep(0)
                seen.append(number)

        async with (
            tl.connect(place, name="one", embed=True) as here,
            tl.connect(place, name="two", settings=settings) as there,
            ActorSystem(there, "bank") as bank,
        ):
            await bank.spawn(Slow, name="slow", capacity=5, overflow="block")
            await there.flush()
            slow = tl.actors.Ref(here, "bank.slow")
            for number in range(3000):
                await slow.tell(number)
            await until(lambda: len(seen) == 3000)
            assert seen == list(range(3000))

    run(main())
