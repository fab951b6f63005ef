"""Runs to actors: payloads of a burst are handled without building the messages, without a visible difference."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import trunkline as tl
from trunkline.actors import Actor, ActorSystem, Strategy
from trunkline.bus import bus as bus_module
from trunkline.delivery.dead_letters import Cause
from trunkline.testing import Simulation, world

COUNT = 100

pytestmark = pytest.mark.parametrize("in_runs", [True, False])


@pytest.fixture(autouse=True)
def early_runs(monkeypatch: pytest.MonkeyPatch, in_runs: bool) -> None:
    """Runs begin with fewer messages, or not at all: the results are the same."""
    monkeypatch.setattr(bus_module, "WATCH", 7 if in_runs else (1 << 30) - 1)


def connect(simulation: Simulation) -> tl.Bus:
    return tl.connect("memory:", world=world(simulation))


class Recorder(Actor):
    """Waits with its first message until the others are in the mailbox, then records each and calls `act` with it."""

    def __init__(self, log: list[int], begin: asyncio.Event, act: Callable[[Recorder, int], Any] | None = None) -> None:
        self.log = log
        self.begin = begin
        self.act = act

    async def receive(self, payload: bytes) -> None:
        await self.begin.wait()
        number = int(payload)
        if self.act is not None and (waiting := self.act(self, number)) is not None:
            await waiting
        self.log.append(number)

    async def later(self, payload: bytes) -> None:
        self.log.append(1000 + int(payload))


async def told(system: ActorSystem, actor: Any, begin: asyncio.Event, in_runs: bool) -> list[str]:
    ids = [await actor.tell(b"%d" % number) for number in range(COUNT)]
    inbox = system.find("recorder").inbox
    assert (inbox.run is not None or inbox.unopened is not None) is in_runs, "messages wait as columns"
    begin.set()
    return ids


async def settled(system: ActorSystem) -> None:
    await system.find("recorder").inbox.quiet()
    account = system.find("recorder").inbox.account()
    assert account.accepted == account.delivered + account.dead


async def test_messages_are_the_current_ones_in_order(simulation: Simulation, in_runs: bool) -> None:
    seen: list[tuple[str, bytes]] = []
    fates: list[tl.Explanation] = []

    async def look(actor: Recorder, number: int) -> None:
        message = actor.context.message
        assert message is not None
        assert message is actor.context.message
        seen.append((message.id, message.payload))
        if number in (50, 51):
            fates.append(await bus.explain(message.id))
            fates.append(await bus.explain(ids[70]))

    log: list[int] = []
    begin = asyncio.Event()
    async with connect(simulation) as bus, ActorSystem(bus) as system:
        actor = await system.spawn(Recorder, log, begin, look, name="recorder")
        ids = await told(system, actor, begin, in_runs)
        await settled(system)
        assert log == list(range(COUNT))
        assert seen == [(ids[number], b"%d" % number) for number in range(COUNT)]
        reasons = [[outcome.reason for outcome in fate.outcomes] for fate in fates]
        assert reasons == [["is being handled"], ["waits in the inbox"]] * 2
        assert [message.id for message in bus.history(COUNT)] == ids


async def test_a_failure_concerns_its_message_only(simulation: Simulation, in_runs: bool) -> None:
    def fail(_: Recorder, number: int) -> None:
        if number in (40, 99):
            raise ValueError(number)
        if number in (60, 61):
            raise tl.Reject("not this")

    log: list[int] = []
    begin = asyncio.Event()
    async with connect(simulation) as bus, ActorSystem(bus) as system:
        actor = await system.spawn(Recorder, log, begin, fail, name="recorder")
        ids = await told(system, actor, begin, in_runs)
        await settled(system)
        assert log == [number for number in range(COUNT) if number not in (40, 60, 61, 99)]
        letters = [(letter.message.id, letter.message.payload, letter.cause) for letter in bus.dead_letters]
        assert letters == [
            (ids[40], b"40", Cause.HANDLER_FAILED),
            (ids[60], b"60", Cause.REJECTED),
            (ids[61], b"61", Cause.REJECTED),
            (ids[99], b"99", Cause.HANDLER_FAILED),
        ]
        for number in (39, 40, 41, 60, 62, 99):
            fate = (await bus.explain(ids[number])).outcomes[0].fate
            assert (fate is tl.Fate.DEAD) is (number in (40, 60, 99))


async def test_a_change_takes_effect_with_the_next_message(simulation: Simulation, in_runs: bool) -> None:
    def change(actor: Recorder, number: int) -> None:
        if number in (30, 31):
            actor.context.stash()
        if number == 40:
            actor.act = change_again
            actor.context.unstash()

    def change_again(actor: Recorder, number: int) -> None:
        if number == 44:
            # A message that is rejected is not stashed, and the next one is not stashed in its place.
            actor.context.stash()
            raise tl.Reject("not this")
        if number == 50:
            actor.act = None
            actor.context.become(actor.later)

    log: list[int] = []
    begin = asyncio.Event()
    async with connect(simulation) as bus, ActorSystem(bus) as system:
        actor = await system.spawn(Recorder, log, begin, change, name="recorder")
        await told(system, actor, begin, in_runs)
        await settled(system)
        assert log == [*range(41), 30, 31, *range(41, 44), *range(45, 51), *range(1051, 1000 + COUNT)]
        assert [letter.message.payload for letter in bus.dead_letters] == [b"44"]


async def test_messages_of_high_priority_overtake(simulation: Simulation, in_runs: bool) -> None:
    async def send(actor: Recorder, number: int) -> None:
        if number == 20:
            await actor.context.me.tell(b"500", priority=tl.Priority.HIGH)
            await actor.context.me.tell(b"501")

    log: list[int] = []
    begin = asyncio.Event()
    async with connect(simulation) as bus, ActorSystem(bus) as system:
        actor = await system.spawn(Recorder, log, begin, send, name="recorder")
        await told(system, actor, begin, in_runs)
        await settled(system)
        assert log == [*range(21), 500, *range(21, COUNT), 501]


async def test_a_sender_waits_for_room_no_longer_than_for_one_message(simulation: Simulation, in_runs: bool) -> None:
    async def work(_: Recorder, number: int) -> None:
        await asyncio.sleep(1.0)

    log: list[int] = []
    begin = asyncio.Event()
    async with connect(simulation) as bus, ActorSystem(bus) as system:
        actor = await system.spawn(
            Recorder, log, begin, work, name="recorder", capacity=COUNT - 1, overflow="block", timeout_s=None
        )
        await told(system, actor, begin, in_runs)
        loop = asyncio.get_running_loop()
        for number in range(COUNT, COUNT + 10):
            began = loop.time()
            await actor.tell(b"%d" % number)
            assert loop.time() - began <= 1.2
            assert system.find("recorder").inbox.depth <= COUNT - 1
        await settled(system)
        assert log == list(range(COUNT + 10))


async def test_an_interrupted_message_returns_to_the_front(simulation: Simulation, in_runs: bool) -> None:
    """Also if the message before it was a request, which was handled and answered."""
    interrupted: list[int] = []

    async def hold(_: Recorder, number: int) -> None:
        if number in (1, 60) and number not in interrupted:
            interrupted.append(number)
            await failing.tell(b"")
            await asyncio.Event().wait()

    class Failing(Actor):
        async def receive(self, payload: bytes) -> None:
            raise ValueError("restarts all")

    class Boss(Actor):
        async def starting(self) -> None:
            await self.context.spawn(Recorder, log, begin, hold, name="recorder")
            await self.context.spawn(Failing, name="failing")

        async def receive(self, payload: bytes) -> None: ...

    log: list[int] = []
    begin = asyncio.Event()
    async with connect(simulation) as bus, ActorSystem(bus) as system:
        await system.spawn(Boss, name="boss", strategy=Strategy.ONE_FOR_ALL)
        recorder, failing = (system.ref(system.address(f"boss.{name}")) for name in ("recorder", "failing"))
        begin.set()
        await recorder.ask(b"0")
        for number in range(1, COUNT):
            await recorder.tell(b"%d" % number)
        cell = system.find("boss.recorder")
        await cell.inbox.quiet()
        assert log == list(range(COUNT))
        assert interrupted == [1, 60]
        account = cell.inbox.account()
        assert account.accepted == account.delivered == COUNT
