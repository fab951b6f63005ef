"""Random schedules of crash, restart, stop and message: nothing is lost, and two incarnations never run at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

import trunkline as tl
from trunkline.actors import Actor, ActorSystem, Failed, Lifetime, Restart, Strategy, SystemSettings
from trunkline.testing import Simulation, simulate, world

FEW = 200
MANY = 5000


class Notes:
    """The actions of the actors in one schedule."""

    def __init__(self) -> None:
        self.handled: Counter[int] = Counter()
        self.at_work: Counter[str] = Counter()
        self.interrupted = 0


class Worker(Actor):
    def __init__(self, notes: Notes, simulation: Simulation) -> None:
        self.notes = notes
        self.simulation = simulation

    async def starting(self) -> None:
        if self.simulation.chance(0.5):
            await asyncio.sleep(self.simulation.random.random())
        if self.simulation.chance(0.05):
            raise RuntimeError("it does not start")

    async def receive(self, number: int) -> int:
        notes, address = self.notes, self.context.address
        assert not notes.at_work[address], "two incarnations at once"
        notes.at_work[address] += 1
        try:
            if self.simulation.chance(0.5):
                await asyncio.sleep(self.simulation.random.random() * 0.2)
            if self.simulation.chance(0.15):
                raise ValueError(number)
            notes.handled[number] += 1
            return number
        except asyncio.CancelledError:
            notes.interrupted += 1
            raise
        finally:
            notes.at_work[address] -= 1


async def schedule(simulation: Simulation, failed: Failed) -> None:
    chance = simulation.random
    notes = Notes()
    strategy = chance.choice(list(Strategy))
    restart = Restart(lifetime=chance.choice([Lifetime.PERMANENT, Lifetime.TRANSIENT]), times=1000, within_s=1.0)
    sent: list[int] = []
    refused: set[int] = set()
    asked: dict[int, asyncio.Task[Any]] = {}
    async with tl.connect(world=world(simulation)) as bus:
        system = ActorSystem(bus, "s", SystemSettings(strategy=strategy))
        async with system:
            refs = []
            for name in "abc":
                try:
                    options: dict[str, Any] = {"restart": restart, "failed": failed, "attempts": 2, "capacity": 50}
                    refs.append(await system.spawn(Worker, notes, simulation, name=name, **options))
                except RuntimeError:
                    continue
            for number in range(chance.randrange(20, 80)):
                if not refs:
                    break
                ref = chance.choice(refs)
                sent.append(number)
                try:
                    if chance.random() < 0.2:
                        asked[number] = asyncio.ensure_future(ref.try_ask(number, timeout_s=20))
                    else:
                        await ref.tell(number)
                except tl.Refused:
                    refused.add(number)
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() * 0.3)
                if chance.random() < 0.02:
                    refs.remove(ref)
                    await system.stop(ref)
            await asyncio.sleep(chance.choice([0.0, 1.0, 60.0]))
            left = await system.shutdown(chance.choice([0.0, 0.5, 100.0]))
        for number, answer in zip(asked, await asyncio.gather(*asked.values(), return_exceptions=True), strict=True):
            if isinstance(answer, tl.Refused):
                refused.add(number)
            elif not isinstance(answer, tl.RequestFailed):
                assert answer in (None, number)
        dead = Counter(letter.message.decode() for letter in bus.dead_letters)
        unfinished = Counter(each.message.decode() for each in left)
        assert all(account.balanced for account in bus.accounts().values())
        assert not any(account.in_flight for account in bus.accounts().values())
        assert max(notes.handled.values(), default=0) <= 1, "handled twice"
        if failed is Failed.DEAD_LETTER:
            known = set(notes.handled) | set(dead) | set(unfinished) | refused
            for message in bus.history(pattern="_to.>"):
                if message.decode() not in known:
                    # It waited in the mailbox of an actor that was stopped, or came after the end of all.
                    explained = await bus.explain(message.id)
                    assert explained.note or [each.fate for each in explained.outcomes] == [tl.Fate.DROPPED]
                    known.add(message.decode())
            assert set(sent) == known
        assert not set(notes.handled) & set(unfinished)


@pytest.mark.parametrize("failed", [Failed.DEAD_LETTER, Failed.RETRY])
def test_schedules(failed: Failed) -> None:
    for seed in range(FEW):
        simulate(lambda simulation: schedule(simulation, failed), seed=seed)


@pytest.mark.long
@pytest.mark.parametrize("failed", [Failed.DEAD_LETTER, Failed.RETRY])
def test_thousands_of_schedules(failed: Failed) -> None:
    for seed in range(FEW, MANY):
        simulate(lambda simulation: schedule(simulation, failed), seed=seed)
