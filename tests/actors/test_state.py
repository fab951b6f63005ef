"""The state of an actor survives into the next program. An error while reading it is never taken for "no state"."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

import trunkline as tl
from tests.actors.people import Till
from tests.hub.hubs import Place as HubPlace
from tests.journal.journals import BadDisk, Place, QuickJournal, broker_of, journal_of, tend, until
from trunkline.actors import Actor, ActorSystem
from trunkline.hub.hub import Hub
from trunkline.journal import Journal, JournalBroker, JournalSettings, Reader
from trunkline.testing import Simulation, world

pytestmark = pytest.mark.usefixtures("both_ways")

T = TypeVar("T")
ROOT = Path(__file__).parent.parent.parent
MIB = 1024 * 1024
TOPIC = "_state.shop.till"


class Large(Actor):
    """Has a state of more than a megabyte."""

    def __init__(self) -> None:
        self.pages: list[bytes] = []

    async def receive(self, count: int) -> int:
        self.pages += [os.urandom(MIB) for _ in range(count)]
        return len(self.pages)

    def snapshot(self) -> list[bytes]:
        return self.pages

    def restore(self, state: list[bytes]) -> None:
        self.pages = state


class FarJournal(QuickJournal):
    """Each read of it takes a minute."""

    async def in_thread(self, function: Callable[[Reader], T]) -> T:
        await asyncio.sleep(60)
        return await super().in_thread(function)


async def add(bus: tl.Bus, kind: type[Actor] = Till, amount: object = ("a", 1), name: str = "till") -> int:
    """One run of a system: an actor gets one message."""
    async with ActorSystem(bus, "shop") as system:
        actor = await system.spawn(kind, name=name)
        answer: int = await actor.ask(amount)
        return answer


async def saved(bus: tl.Bus) -> int:
    """The state of the till in the journal."""
    found = await bus.last(TOPIC)
    return 0 if found is None else sum(found.decode().values())


# It is found


async def test_however_long_the_journal_takes(simulation: Simulation, tmp_path: Path) -> None:
    """A slow answer is an answer. A missing answer was once taken for "no state", and the state was overwritten."""
    place = Place(simulation, tmp_path)
    place.journal = lambda: FarJournal(place.directory, place.settings, simulation)  # type: ignore[method-assign]
    for expected in (1, 2, 3):
        async with place.bus() as bus:
            assert await add(bus) == expected
            tend(bus, everything=True)


async def test_behind_many_others_and_sealed(simulation: Simulation, tmp_path: Path) -> None:
    place = Place(simulation, tmp_path, slow=True)
    for expected in (1, 2, 3):
        async with place.bus() as bus:
            assert await add(bus) == expected
            for _ in range(4):
                await bus.publish_many("others", [bytes(1000)] * 250)
            tend(bus, everything=True)


async def test_two_systems_on_one_bus(simulation: Simulation, tmp_path: Path) -> None:
    """One after the other, and an actor that is stopped and spawned again."""
    async with Place(simulation, tmp_path, slow=True).bus() as bus:
        assert [await add(bus) for _ in range(3)] == [1, 2, 3]
        async with ActorSystem(bus, "shop") as system:
            for expected in (4, 5):
                till = await system.spawn(Till, name="till")
                assert await till.ask(("b", 1)) == expected
                await system.stop(till)
        assert await saved(bus) == 5


async def test_no_subscription_is_left(simulation: Simulation, tmp_path: Path) -> None:
    async with Place(simulation, tmp_path).bus() as bus:
        assert await add(bus) == 1
        assert journal_of(bus).reader.query("SELECT * FROM cursors") == []
        assert bus.subscribers(TOPIC) == []


def test_more_than_a_megabyte(tmp_path: Path) -> None:
    async def main() -> None:
        for expected in (3, 4):
            async with tl.connect("memory:", journal=tmp_path / "journal") as bus:
                assert await add(bus, Large, 3 if expected == 3 else 1) == expected
                await asyncio.to_thread(journal_of(bus).seal, everything=True)

    asyncio.run(main())


async def test_through_a_hub(simulation: Simulation, tmp_path: Path) -> None:
    """Another client, the same hub; another run of the hub; a state of several megabytes."""
    place = HubPlace(world(simulation), tmp_path / f"seed {simulation.seed}")
    for run in range(2):
        await place.start()
        for client in range(2):
            async with place.bus(f"client {client}") as bus:
                assert await add(bus) == 2 * run + client + 1
                if simulation.seed == 0:
                    assert await add(bus, Large, 2, "large") == 2 * (2 * run + client + 1)
        await place.stop()


KILLED = """
import asyncio, sys
import trunkline as tl
from tests.actors.people import Till
from tests.actors.test_state import saved
from trunkline.actors import ActorSystem

async def main():
    async with tl.connect("memory:", journal=sys.argv[1]) as bus, ActorSystem(bus, "shop") as system:
        till = await system.spawn(Till, name="till")
        total = await till.ask(("a", 1))
        while await saved(bus) != total:
            await asyncio.sleep(0.001)
        print(total, flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


def test_killed_in_between(tmp_path: Path) -> None:
    """The next process starts with the state that a killed process had saved."""
    for expected in (1, 2, 3):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path / "journal")], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == str(expected)
            process.send_signal(signal.SIGKILL)
            process.wait(60)


# It is not taken for none


async def test_a_damaged_state_is_no_new_beginning(simulation: Simulation, tmp_path: Path) -> None:
    """The actor does not start, and nothing is overwritten. The earlier state can be restored by hand."""
    place = Place(simulation, tmp_path)
    async with place.bus() as bus:
        assert [await add(bus), await add(bus)] == [1, 2]
        journal = journal_of(bus)
        change = "UPDATE batches SET body = zeroblob(length(body)) WHERE topic = ? AND first = ?"
        newest = await bus.last(TOPIC)
        assert newest is not None
        journal.writer.call(lambda database: database.execute(change, (TOPIC, newest.seq))).result()
        async with ActorSystem(bus, "shop") as system:
            for _ in range(2):
                with pytest.raises(tl.JournalDamaged) as damaged:
                    await system.spawn(Till, name="till")
            assert system.actors() == []
            before = await bus.last(TOPIC, before=damaged.value.first)
            assert before is not None
            await bus.post(before.replace(id=""))
            till = await system.spawn(Till, name="till")
            assert await till.ask(("a", 1)) == 2


async def test_a_hub_that_is_gone_is_no_new_beginning(simulation: Simulation, tmp_path: Path) -> None:
    place = HubPlace(world(simulation), tmp_path / f"seed {simulation.seed}")
    await place.start()
    async with place.bus() as bus:
        assert await add(bus) == 1
        async with ActorSystem(bus, "shop") as system:
            await place.stop()
            with pytest.raises(tl.HubUnavailable):
                await system.spawn(Till, name="till")
            assert system.actors() == []
            await place.start()
            await place.back(bus)
            till = await system.spawn(Till, name="till")
            assert await till.ask(("a", 1)) == 2
    await place.stop()


async def test_where_states_are_not_stored(simulation: Simulation, tmp_path: Path) -> None:
    """The journal keeps only other topics: spawning the actor raises an error, here and through a hub."""
    async with Place(simulation, tmp_path, durable=("orders.>",)).bus() as bus, ActorSystem(bus, "shop") as system:
        with pytest.raises(tl.TopicNotStored, match=r"'_state\.shop\.till' is not stored.*orders\.>"):
            await system.spawn(Till, name="till")
    settings = JournalSettings(durable=("orders.>",))
    folder = tmp_path / f"hub {simulation.seed}"
    journal = Journal(folder, settings, world=world(simulation), threaded=False)
    async with Hub(JournalBroker(journal, owns_journal=True)) as hub:
        address = await hub.listen("pair:states")
        async with (
            tl.connect(address, world=world(simulation)) as bus,
            ActorSystem(bus, "shop") as system,
        ):
            with pytest.raises(tl.TopicNotStored, match=r"'_state\.shop\.till' is not stored.*orders\.>"):
                await system.spawn(Till, name="till")


async def test_without_a_journal_it_is_remembered_in_the_process(simulation: Simulation) -> None:
    async with tl.connect("memory:", world=world(simulation)) as bus, ActorSystem(bus, "shop") as system:
        till = await system.spawn(Till, name="till")
        assert await till.ask(("a", 5)) == 5
        with pytest.raises(tl.RequestFailed):
            await till.ask(("a", -1))
        assert await till.ask(("a", 1)) == 6


async def test_a_state_that_cannot_be_saved_is_saved_later(
    simulation: Simulation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk is logged as an error. The state is saved when there is room again, at the latest at the end."""
    caplog.set_level(logging.ERROR)
    async with Place(simulation, tmp_path).bus() as bus:
        async with ActorSystem(bus, "shop") as system:
            till = await system.spawn(Till, name="till")
            # Straight into its mailbox: the journal stores what is sent to it, too.
            mailbox = next(inbox for inbox in broker_of(bus).served if inbox.name == till.address)
            await till.ask(("a", 1))
            disk = BadDisk(journal_of(bus))
            disk.full = True
            mailbox.offer(tl.Message(topic=till.topic, payload=("a", 1)))
            await mailbox.quiet()
            await until(lambda: "the state of shop.till was not saved" in caplog.text)
            disk.full = False
        assert await saved(bus) == 2
