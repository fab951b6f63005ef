"""An idle actor handles a message at once: one at a time, in order, and supervised as usual."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from tests.actors.people import shop
from trunkline.actors import Actor, Failed, Ref, idle
from trunkline.delivery.eager import MAX_DEPTH, MAX_IN_A_ROW
from trunkline.errors import RequestFailed, RequestTimeout
from trunkline.message import Fields
from trunkline.testing import Simulation

place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")


class Notes(Actor):
    """Records and answers each message. It waits for a while on text, and fails on a dict."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    async def receive(self, message: Any) -> Any:
        self.log.append(message)
        if isinstance(message, str):
            await asyncio.sleep(1.0)
            self.log.append(f"{message} done")
        if isinstance(message, dict):
            raise ValueError("a dict")
        return message


async def test_asking_an_idle_actor_takes_no_turn_of_the_loop(simulation: Simulation) -> None:
    async with shop(simulation) as (_, system):
        notes = await system.spawn(Notes, [], name="notes")
        await notes.ask(0)
        ticked = False

        def tick() -> None:
            nonlocal ticked
            ticked = True

        asyncio.get_running_loop().call_soon(tick)
        assert await notes.ask(1) == 1
        assert not ticked


@pytest.mark.usefixtures("both_ways")
async def test_what_is_told_is_handled_in_order_and_one_at_a_time(simulation: Simulation) -> None:
    log: list[Any] = []
    async with shop(simulation) as (_, system):
        notes = await system.spawn(Notes, log, name="notes")
        await notes.ask(0)
        for message in (1, "a", 2, [3], "b", 4):
            await notes.tell(message)
        assert await notes.ask(5) == 5
    assert log == [0, 1, "a", "a done", 2, [3], "b", "b done", 4, 5]


async def test_the_first_told_in_a_turn_is_handled_at_once_and_the_rest_together(simulation: Simulation) -> None:
    log: list[Any] = []
    async with shop(simulation) as (_, system):
        notes = await system.spawn(Notes, log, name="notes")
        await notes.ask(0)
        fields: list[Fields] = [{}, {"correlation_id": "c"}]
        for given in fields:
            await asyncio.sleep(0)
            log.clear()
            for value in range(3):
                await notes.tell(value, **given)
            assert len(log) == 1
            await asyncio.sleep(0.1)
            assert len(log) == 3


async def test_an_actor_is_handled_in_its_own_task_and_context(simulation: Simulation) -> None:
    seen: list[Any] = []

    class Where(Actor):
        async def receive(self, message: Any) -> None:
            seen.append((asyncio.current_task(), place.get()))

    async with shop(simulation) as (_, system):
        where = await system.spawn(Where, name="where")
        await where.ask(0)
        place.set("at the asker")
        await where.ask(1)
        await where.tell(2)
        assert [at for _, at in seen] == ["nowhere"] * 3
        assert len({task for task, _ in seen}) == 1
        assert asyncio.current_task() not in {task for task, _ in seen}
        assert seen[0][0].get_name() == "shop.where"


@pytest.mark.usefixtures("both_ways")
async def test_a_failure_at_once_is_supervised(simulation: Simulation) -> None:
    log: list[Any] = []
    async with shop(simulation) as (bus, system):
        notes = await system.spawn(Notes, log, name="notes")
        again = await system.spawn(Notes, log, name="again", failed=Failed.RETRY, attempts=2)
        for actor in (notes, again):
            await actor.ask(0)
            with pytest.raises(RequestFailed, match="a dict"):
                await actor.ask({})
            assert await actor.ask(1) == 1
            await actor.tell({})
            assert await actor.ask(2) == 2
        assert [actor.restarts for actor in system.actors()] == [2, 4]
        assert len(bus.dead_letters) == 4
    assert log == [0, {}, 1, {}, 2, 0, {}, {}, 1, {}, {}, 2]


@pytest.mark.usefixtures("both_ways")
async def test_actors_that_ask_each_other_and_themselves(simulation: Simulation) -> None:
    class Chain(Actor):
        def __init__(self, number: int) -> None:
            self.number = number

        async def receive(self, message: int) -> int:
            if self.number == 0:
                return 0
            return 1 + int(await self.context.request(f"shop.chain-{self.number - 1}", message))

    class Self(Actor):
        async def receive(self, message: Any) -> str:
            with pytest.raises(RequestTimeout):
                await self.context.request(self.context.me, "again", timeout_s=1.0)
            return "timed out"

    length = 3 * MAX_DEPTH
    async with shop(simulation) as (bus, system):
        chain = [await system.spawn(Chain, number, name=f"chain-{number}") for number in range(length)]
        for _ in range(3):
            assert await chain[-1].ask(0) == length - 1
        assert bus.broker.served.eager.depth == 0
        myself = await system.spawn(Self, name="self")
        assert await myself.ask("go", timeout_s=10) == "timed out"


async def test_two_actors_that_tell_each_other_for_ever_let_others_run(simulation: Simulation) -> None:
    class Player(Actor):
        hits = 0

        def __init__(self, other: str) -> None:
            self.other = other

        async def receive(self, ball: int) -> None:
            Player.hits += 1
            if ball:
                await self.context.send(self.other, ball - 1)

    async with shop(simulation) as (_, system):
        ping = await system.spawn(Player, "shop.pong", name="ping")
        await system.spawn(Player, "shop.ping", name="pong")
        await ping.tell(0)
        await ping.tell(1000)
        turns = 0
        while Player.hits < 1000:
            turns += 1
            await asyncio.sleep(0)
        assert turns > 1000 // (MAX_DEPTH * MAX_IN_A_ROW)


@pytest.mark.usefixtures("both_ways")
async def test_only_the_actors_that_were_busy_last_keep_their_tasks(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "MAX_IDLE", 3)
    log: list[Any] = []

    def tasks() -> set[str]:
        return {name for task in asyncio.all_tasks() if (name := task.get_name()).startswith("shop.")}

    async with shop(simulation) as (_, system):
        actors: list[Ref] = [await system.spawn(Notes, log, name=f"notes-{number}") for number in range(6)]
        assert tasks() == set()
        for actor in actors:
            await actor.ask(1)
        await asyncio.sleep(0.1)
        assert tasks() == {"shop.notes-3", "shop.notes-4", "shop.notes-5"}
        await actors[0].ask(2)
        await asyncio.sleep(0.1)
        assert tasks() == {"shop.notes-4", "shop.notes-5", "shop.notes-0"}
        await system.stop(actors[4])
        assert tasks() == {"shop.notes-5", "shop.notes-0"}
        for number, actor in enumerate(actors):
            if number != 4:
                assert await actor.ask(3) == 3


@pytest.mark.usefixtures("both_ways")
async def test_the_books_of_an_actor_balance_at_any_moment(simulation: Simulation) -> None:
    seen: list[Any] = []

    class Auditor(Actor):
        async def receive(self, message: Any) -> None:
            account = bus.accounts()["shop.auditor"]
            seen.append((account.balanced, account.in_flight))

    async with shop(simulation) as (bus, system):
        auditor = await system.spawn(Auditor, name="auditor")
        for number in range(5):
            await auditor.ask(number)
            await auditor.tell(number)
            await auditor.tell(b"bytes")
            await bus.quiet()
            await asyncio.sleep(0.1)
        assert all(balanced for balanced, _ in seen)
        assert len(seen) == 15
        account = bus.accounts()["shop.auditor"]
        assert (account.delivered, account.in_flight) == (15, 0)
        for message in bus.history(pattern="_to.shop.auditor"):
            (outcome,) = (await bus.explain(message.id)).outcomes
            assert outcome.fate == "delivered"
