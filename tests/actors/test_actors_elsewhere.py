"""The same actors over a hub and with a journal: addresses work from one process to another."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.actors.people import Bill, Clerk, Cruncher, Placed, Till
from tests.actors.running import run
from tests.journal.journals import until
from trunkline.actors import Actor, ActorSystem, Strategy, SystemSettings
from trunkline.delivery.dead_letters import Cause


class Front(Actor):
    async def receive(self, order: Placed) -> Bill:
        bill: Bill = await self.context.request("bank.clerk", order, reply=Bill)
        return bill


def test_two_systems_on_a_hub(tmp_path: Path) -> None:
    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        log: list[Any] = []
        async with (
            tl.connect(place, name="one", embed=True) as here,
            tl.connect(place, name="two") as there,
            ActorSystem(here, "shop") as shop,
            ActorSystem(there, "bank") as bank,
        ):
            await here.flush()
            await there.flush()
            await bank.spawn(Clerk, log, name="clerk")
            front = await shop.spawn(Front, name="front")
            assert await front.ask(Placed("a1", 10.0), reply=Bill) == Bill("a1", 12.0)
            clerk = shop.ref("bank.clerk")
            for number in range(1000):
                await clerk.tell(number)
            assert await clerk.ask("done") == "done"
            assert log[2:-1] == list(range(1000))
            with pytest.raises(tl.RequestFailed, match="oh"):
                await clerk.ask({"fail": "oh"})
            assert await clerk.ask("again") == "again"
            await shop.ref("bank.nobody").tell(1)
            await until(lambda: bool(there.dead_letters.find(cause=Cause.UNKNOWN_ACTOR)))

    run(main())


def test_a_second_system_of_one_name_is_noticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"

        def noticed() -> list[str]:
            return [each.getMessage() for each in caplog.records if "another actor system" in each.getMessage()]

        async with tl.connect(place, name="one", embed=True) as one, tl.connect(place, name="two") as two:
            # Beside another, and after one of its name that has stopped, there is nothing to say.
            async with ActorSystem(one, "shop"), ActorSystem(one, "bank"):
                pass
            async with ActorSystem(one, "shop"), ActorSystem(two, "bank"), ActorSystem(one, "office") as office:
                await one.flush()
                await two.flush()
                assert office.is_running
                assert noticed() == []
                async with ActorSystem(two, "shop"):
                    await until(noticed)
        (text,) = noticed()
        assert "with the name shop has started on this broker (sender two)" in text

    run(main())


def test_with_a_journal(tmp_path: Path) -> None:
    async def main() -> None:
        log: list[Any] = []
        async with tl.connect("memory:", journal=tmp_path / "journal") as bus, ActorSystem(bus, "shop") as system:
            clerk = await system.spawn(Clerk, log, name="clerk")
            await asyncio.gather(*(clerk.tell(number) for number in range(100)))
            assert await clerk.ask("done") == "done"
            assert sorted(log[1:-1]) == list(range(100))
            assert bus.accounts()["shop.clerk"].balanced

    run(main())


def test_state_survives_the_program(tmp_path: Path) -> None:
    """With a journal, the state of an actor is available to the next program. Only the last state is kept."""
    totals: list[int] = []

    async def main() -> None:
        for _ in range(3):
            async with tl.connect("memory:", journal=tmp_path / "journal") as bus, ActorSystem(bus, "shop") as system:
                till = await system.spawn(Till, name="till")
                for name in ("a", "b"):
                    totals.append(await till.ask((name, 1)))

    run(main())
    assert totals == [1, 2, 3, 4, 5, 6]


# In its own process


def test_an_actor_in_a_process_of_its_own() -> None:
    async def main() -> None:
        log: list[Any] = []
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            await system.spawn(Clerk, log, name="clerk")
            cruncher = await system.spawn(Cruncher, 100, name="cruncher", process=True)
            pid, quotient, count = await cruncher.ask(7)
            assert (pid != os.getpid(), quotient, count) == (True, 14, 1)
            assert (await cruncher.ask(1))[0] == pid
            assert await cruncher.ask(Placed("a1", 5.0), reply=Bill) == Bill("a1", 10.0)
            await system.ref("shop.clerk").ask("done")
            assert {"order": "a1", "total": 5.0} in log
            with pytest.raises(tl.RequestFailed, match="nothing to divide by"):
                await cruncher.ask(0)
            # A new incarnation is a new process, with nothing of the old one.
            again, _, count = await cruncher.ask(2)
            assert (again != pid, count) == (True, 1)
            with pytest.raises(tl.RequestFailed, match="its process ended with -9"):
                await cruncher.ask(-1)
            assert (await cruncher.ask(2))[2] == 1
            with pytest.raises(tl.RequestFailed, match=r"context\.schedule"):
                await cruncher.ask(-2)
            letter = bus.dead_letters.find(subscriber="shop.cruncher")[0]
            assert "in receive" in letter.traceback

    run(main())


def test_a_process_ends_with_its_incarnation_whoever_failed() -> None:
    """One for all: the process of a sibling that did not fail is not left behind."""

    async def main() -> None:
        settings = SystemSettings(strategy=Strategy.ONE_FOR_ALL)
        async with tl.connect() as bus, ActorSystem(bus, "shop", settings) as system:
            clerk = await system.spawn(Clerk, [], name="clerk")
            cruncher = await system.spawn(Cruncher, 100, name="cruncher", process=True)
            pid, *_ = await cruncher.ask(1)
            await clerk.tell({"fail": "oh"})
            again = pid
            while again == pid:
                again, *_ = await cruncher.ask(1)
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)

    run(main())


def test_what_cannot_be_in_another_process_says_why() -> None:
    class Inside(Actor):
        async def receive(self, message: str) -> None: ...

    async def main() -> None:
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            with pytest.raises(tl.UsageError, match="Define it at the top of a module"):
                await system.spawn(Inside, process=True)
            with pytest.raises(tl.ActorProcessFailed, match="below zero"):
                await system.spawn(Cruncher, -1, process=True)
            assert system.actors() == []

    run(main())


def test_on_a_broker_that_records() -> None:
    async def main() -> None:
        broker = tl.RecordingBroker(tl.MemoryBroker())
        async with tl.connect(broker) as bus, ActorSystem(bus, "shop") as system:
            clerk = await system.spawn(Clerk, [], name="clerk")
            assert await clerk.ask("hello") == "hello"
            assert [message.topic for message in broker.published_to("_to.>")] == ["_to.shop.clerk"]
        await broker.aclose()

    run(main())
