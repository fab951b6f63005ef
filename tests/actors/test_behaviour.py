"""How an actor handles its messages: stash and become, the receive timeout, timers by key and at a rate."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

import trunkline as tl
from tests.actors.people import Bill, Cancelled, Placed, shop
from trunkline.actors import Actor, ReceiveTimeout, handles
from trunkline.delivery.fates import Fate
from trunkline.testing import Simulation

pytestmark = pytest.mark.usefixtures("both_ways")


class Door(Actor):
    """Handles messages only while it is open, and stashes the others."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    async def receive(self, what: bytes) -> bytes | None:
        if what == b"open":
            self.context.become(self.opened)
            self.context.unstash()
        elif what == b"fail":
            raise ValueError
        else:
            self.context.stash()
        return what

    async def opened(self, what: bytes) -> bytes:
        if what == b"close":
            self.context.unbecome()
        else:
            self.log.append(what)
        return what


@pytest.mark.parametrize("asked", [True, False])
async def test_stash_and_become(simulation: Simulation, asked: bool) -> None:
    log: list[Any] = []
    async with shop(simulation) as (bus, system):
        door = await system.spawn(Door, log, name="door")
        answers = []
        for what in (b"1", b"2"):
            if asked:
                answers.append(asyncio.ensure_future(door.ask(what, reply=bytes, timeout_s=900)))
            else:
                await door.tell(what)
            await asyncio.sleep(50)
        waiting = await door.tell(b"3")
        await asyncio.sleep(1)
        assert log == []
        assert not any(answer.done() for answer in answers)
        account = bus.accounts()["shop.door"]
        assert (account.in_flight, account.balanced) == (3, True)
        (outcome,) = (await bus.explain(waiting)).outcomes
        assert (outcome.fate, outcome.reason) == (Fate.IN_FLIGHT, "was put aside by the actor")
        await door.tell(b"open")
        await door.tell(b"4")
        await asyncio.sleep(1)
        assert log == [b"1", b"2", b"3", b"4"]
        assert await asyncio.gather(*answers) == [b"1", b"2"][: len(answers)]
        await door.tell(b"close")
        await door.tell(b"5")
        await asyncio.sleep(1)
        assert len(log) == 4
        assert bus.accounts()["shop.door"].balanced


async def test_what_was_put_aside_outlives_the_incarnation(simulation: Simulation) -> None:
    """Stashed messages come first again, in order, and are not lost when the actor stops."""
    log: list[Any] = []
    async with shop(simulation) as (bus, system):
        door = await system.spawn(Door, log, name="door")
        for what in (b"1", b"2", b"fail", b"3", b"open"):
            await door.tell(what)
        await asyncio.sleep(30)
        assert log == [b"1", b"2", b"3"]
        for what in (b"close", b"4", b"5"):
            await door.tell(what)
        await asyncio.sleep(1)
        left = await system.stop(door)
        assert [each.message.decode() for each in left] == [b"4", b"5"]
        assert bus.accounts()[""].balanced


async def test_a_stash_is_bounded(simulation: Simulation) -> None:
    async with shop(simulation) as (bus, system):
        door = await system.spawn(Door, [], name="door", capacity=2)
        for what in (b"1", b"2"):
            await door.tell(what)
            await asyncio.sleep(1)
        with pytest.raises(tl.RequestFailed, match="StashFull"):
            await door.ask(b"3")
        assert bus.accounts()["shop.door"].balanced


async def test_become_is_by_class_too(simulation: Simulation) -> None:
    class Desk(Actor):
        @handles(Placed)
        async def place(self, order: Placed) -> str:
            self.context.become(self.bill, self.cancel, self.rest)
            return "placed"

        async def bill(self, bill: Bill) -> str:
            return "billed"

        async def cancel(self, order: Cancelled) -> str:
            self.context.unbecome()
            return "cancelled"

        async def rest(self, value: Any) -> str:
            return f"rest {value}"

        async def failed(self, error: BaseException, message: tl.Message | None) -> None: ...

    async with shop(simulation) as (_, system):
        desk = await system.spawn(Desk, name="desk")
        asked = [Placed("a"), Bill("a", 1.0), "plain", Cancelled("a"), Placed("b")]
        assert [await desk.ask(each) for each in asked] == ["placed", "billed", "rest plain", "cancelled", "placed"]


async def test_stash_outside_of_a_handler_is_refused(simulation: Simulation) -> None:
    class Early(Actor):
        async def starting(self) -> None:
            self.context.stash()

    class Never(Actor):
        async def receive(self, message: str) -> None:
            self.context.become()

    async with shop(simulation) as (_, system):
        with pytest.raises(tl.UsageError, match="call stash inside a handler"):
            await system.spawn(Early)
        never = await system.spawn(Never)
        with pytest.raises(tl.RequestFailed, match="become needs at least one method"):
            await never.ask("x")


async def test_receive_timeout(simulation: Simulation) -> None:
    """After each period without a message. Work that takes longer than that is not such a period."""
    quiet: list[float] = []

    class Quiet(Actor):
        async def starting(self) -> None:
            self.context.set_receive_timeout(10)

        @handles(ReceiveTimeout)
        async def nothing_came(self, timeout: ReceiveTimeout) -> None:
            quiet.append(round(simulation.now() - began))
            if len(quiet) == 3:
                self.context.set_receive_timeout(None)

        async def receive(self, pause_s: float) -> None:
            await asyncio.sleep(pause_s)

    async with shop(simulation) as (_, system):
        began = simulation.now()
        actor = await system.spawn(Quiet, name="quiet")
        for _ in range(4):
            await asyncio.sleep(6)
            await actor.tell(0.0)
        await asyncio.sleep(5)
        assert quiet == []
        await actor.tell(30.0)
        await asyncio.sleep(200)
        assert len(quiet) == 3
        assert 29 + 30 + 10 <= quiet[0] <= 29 + 30 + 20
        assert [later - earlier for earlier, later in pairwise(quiet)] == [10, 10]


class Clock(Actor):
    """Starts the timers that a message names."""

    def __init__(self, log: list[tuple[int, Any]], simulation: Simulation) -> None:
        self.log = log
        self.simulation = simulation
        self.began = simulation.now()

    async def receive(self, message: Any) -> Any:
        match message:
            case ["once", delay_s, key]:
                self.context.schedule(delay_s, f"once {delay_s}", key=key)
            case ["every", delay_s, key]:
                self.context.schedule(delay_s, f"every {delay_s}", every=True, key=key)
            case ["rate", period_s, key]:
                self.context.schedule_at_rate(period_s, f"rate {period_s}", key=key)
            case ["cancel", key]:
                return self.context.cancel_timer(key)
            case ["active", key]:
                return self.context.timer(key) is not None
            case ["block", seconds]:
                await asyncio.sleep(seconds)
            case ["fail"]:
                raise ValueError
            case _:
                self.log.append((round(self.simulation.now() - self.began), message))
        return None


async def test_timers_by_key(simulation: Simulation) -> None:
    """A new timer replaces the one with its key. A cancelled one sends nothing, not even from the mailbox."""
    log: list[tuple[int, Any]] = []
    async with shop(simulation) as (bus, system):
        clock = await system.spawn(Clock, log, simulation, name="clock")
        for message in (["once", 5, "a"], ["once", 7, "a"], ["every", 2, "b"]):
            await clock.tell(message)
        await asyncio.sleep(0.5)
        assert await clock.ask(["active", "a"])
        await asyncio.sleep(7)
        assert log == [(2, "every 2"), (4, "every 2"), (6, "every 2"), (7, "once 7")]
        assert not await clock.ask(["active", "a"])
        assert not await clock.ask(["cancel", "a"])
        # Two of them wait in the mailbox when it is cancelled before them.
        await clock.tell(["block", 5])
        await asyncio.sleep(4)
        await clock.tell(["cancel", "b"], priority=tl.Priority.HIGH)
        await asyncio.sleep(30)
        assert len(log) == 4
        account = bus.accounts()["shop.clock"]
        assert account.filtered >= 1
        assert account.balanced


async def test_fixed_delay_and_fixed_rate(simulation: Simulation) -> None:
    """A rate is kept although ticks are late. A delay is counted from each tick."""
    log: list[tuple[int, Any]] = []
    async with shop(simulation) as (_, system):
        clock = await system.spawn(Clock, log, simulation, name="clock")
        await clock.tell(["rate", 10, "r"])
        await asyncio.sleep(105)
        assert [at for at, _ in log] == list(range(10, 110, 10))
        with pytest.raises(tl.RequestFailed, match="above 0"):
            await clock.ask(["rate", 0, "r"])


async def test_timers_end_with_their_incarnation(simulation: Simulation) -> None:
    log: list[tuple[int, Any]] = []
    async with shop(simulation) as (_, system):
        clock = await system.spawn(Clock, log, simulation, name="clock")
        for message in (["every", 1, "a"], ["once", 3, "b"], ["block", 3.5], ["fail"]):
            await clock.tell(message)
        await asyncio.sleep(60)
        # What was in the mailbox when the incarnation ended was of its timers.
        assert log == []
