"""Death watch: Terminated arrives when an actor has ended permanently, not before, in whichever process it runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.actors.people import Clerk, Cruncher, shop
from tests.actors.running import run
from tests.journal.journals import until
from trunkline.actors import Actor, ActorSystem, Lifetime, Restart, SystemSettings, Terminated, handles
from trunkline.testing import Simulation

pytestmark = pytest.mark.usefixtures("both_ways")

TEMPORARY = Restart(lifetime=Lifetime.TEMPORARY)


class Watcher(Actor):
    """Watches the actors that a message names."""

    def __init__(self, log: list[Terminated]) -> None:
        self.log = log

    async def receive(self, address: str) -> None:
        if address.startswith("not "):
            self.context.unwatch(address.removeprefix("not "))
        else:
            self.context.watch(address)

    @handles(Terminated)
    async def mourn(self, notice: Terminated) -> None:
        self.log.append(notice)


def by_address(log: list[Terminated]) -> list[Terminated]:
    return sorted(log, key=lambda notice: notice.address)


async def test_of_another_system_on_the_bus(simulation: Simulation) -> None:
    log: list[Terminated] = []
    async with shop(simulation) as (bus, system), ActorSystem(bus, "bank") as bank:
        watcher = await system.spawn(Watcher, log, name="watcher")
        first, second, third = [
            await bank.spawn(Clerk, [], name=name, restart=TEMPORARY) for name in ("first", "second", "third")
        ]
        for address in ("bank.first", "bank.second", "bank.third", "not bank.third"):
            await watcher.tell(address)
        await asyncio.sleep(300)
        # They live, and do for a long time.
        assert log == []
        await first.tell({"fail": "oh"})
        await bank.stop(second)
        await bank.stop(third)
        await asyncio.sleep(1)
        assert by_address(log) == [Terminated("bank.first", "ValueError: oh"), Terminated("bank.second")]


async def test_of_one_that_is_not_there(simulation: Simulation) -> None:
    log: list[Terminated] = []
    async with shop(simulation) as (bus, system), ActorSystem(bus, "bank"):
        watcher = await system.spawn(Watcher, log, name="watcher")
        for address in ("shop.nobody", "bank.nobody", "nowhere.nobody"):
            await watcher.tell(address)
        await asyncio.sleep(1)
        assert by_address(log) == [
            Terminated("bank.nobody"),
            Terminated("nowhere.nobody"),
            Terminated("shop.nobody"),
        ]


async def test_of_a_pool(simulation: Simulation) -> None:
    """It has ended when it is stopped, or when its last member has ended."""
    log: list[Terminated] = []
    async with shop(simulation) as (_, system):
        watcher = await system.spawn(Watcher, log, name="watcher")
        pool = await system.pool(Clerk, [], size=2, name="clerks", restart=TEMPORARY)
        await system.pool(Clerk, [], size=2, name="others")
        for address in ("shop.clerks", "shop.others", "shop.clerks.1"):
            await watcher.tell(address)
        await asyncio.sleep(60)
        assert log == []
        await system.resize("shop.others", 0)
        await pool.tell({"fail": "one"})
        await asyncio.sleep(1)
        assert log == [Terminated("shop.clerks.1", "ValueError: one")]
        await pool.tell({"fail": "two"})
        await system.stop("shop.others")
        await asyncio.sleep(1)
        assert sorted(notice.address for notice in log[1:]) == ["shop.clerks", "shop.others"]
        with pytest.raises(tl.UnknownActor):
            await system.stop(pool)


async def test_it_is_not_lost_to_a_full_mailbox(simulation: Simulation) -> None:
    log: list[Terminated] = []
    gate = asyncio.Event()

    class Busy(Watcher):
        async def receive(self, address: str) -> None:
            await super().receive(address)
            await gate.wait()

    async with shop(simulation) as (bus, system):
        watcher = await system.spawn(Busy, log, name="watcher", capacity=1)
        other = await system.spawn(Clerk, [], name="other")
        await watcher.tell("shop.other")
        await asyncio.sleep(1)
        await watcher.tell("shop.watcher")
        with pytest.raises(tl.InboxFull):
            await watcher.tell("no room")
        await system.stop(other)
        await asyncio.sleep(1)
        gate.set()
        await asyncio.sleep(1)
        assert log == [Terminated("shop.other")]
        assert bus.accounts()["shop.watcher"].balanced


async def test_a_watcher_that_ended_is_not_told(simulation: Simulation) -> None:
    """A later actor of the same name gets no notices that it did not ask for; a new incarnation does."""
    log: list[Terminated] = []
    async with shop(simulation) as (_, system):
        watcher = await system.spawn(Watcher, log, name="watcher")
        others = [await system.spawn(Clerk, [], name=name) for name in ("one", "two")]
        await watcher.tell("shop.one")
        await asyncio.sleep(1)
        await system.stop(watcher)
        watcher = await system.spawn(Watcher, log, name="watcher")
        await watcher.tell("shop.two")
        await watcher.tell(Terminated("no address at all", "x"), schema="unreadable.Payload")
        await asyncio.sleep(1)
        for other in others:
            await system.stop(other)
        await asyncio.sleep(1)
        assert log == [Terminated("shop.two")]


async def test_an_error_that_is_no_exception_leaves_no_zombie(simulation: Simulation) -> None:
    class Odd(BaseException):
        pass

    class Strange(Clerk):
        async def receive(self, message: Any) -> Any:
            if message == "odd":
                raise Odd("strange")
            return await super().receive(message)

    log: list[Any] = []
    notices: list[Terminated] = []
    async with shop(simulation) as (bus, system):
        watcher = await system.spawn(Watcher, notices, name="watcher")
        strange = await system.spawn(Strange, log, name="strange")
        once = await system.spawn(Strange, [], name="once", restart=TEMPORARY)
        await watcher.tell("shop.once")
        with pytest.raises(tl.RequestFailed, match="Odd: strange"):
            await strange.ask("odd")
        assert await strange.ask("well") == "well"
        assert log == ["starting", "failed: strange", "starting", "well"]
        await once.tell("odd")
        await asyncio.sleep(1)
        assert notices == [Terminated("shop.once", "Odd: strange")]
        assert all(account.balanced for account in bus.accounts().values())


async def test_whoever_waits_is_answered_when_an_actor_stops(simulation: Simulation) -> None:
    class Slow(Actor):
        async def receive(self, message: str) -> None:
            await asyncio.sleep(1000)

    async with shop(simulation) as (bus, system), bus.subscribe("acks") as acks:
        slow = await system.spawn(Slow, name="slow", capacity=2, overflow="block")
        asks = [asyncio.ensure_future(slow.ask(name, timeout_s=900)) for name in ("handled", "waits")]
        await bus.send("shop.slow", "told", requires_ack=True, reply_to="acks")
        asks.append(asyncio.ensure_future(slow.ask("no room", timeout_s=900)))
        await asyncio.sleep(1)
        began = simulation.now()
        await system.stop(slow)
        for answer in await asyncio.gather(*asks, return_exceptions=True):
            assert isinstance(answer, tl.RequestFailed)
            assert answer.error_type == "ActorStopped"
        assert (await acks.recv(timeout_s=10)).type is tl.MessageType.ERROR  # type: ignore[union-attr]
        assert simulation.now() - began < 1


async def test_hooks_of_those_that_end_while_they_fail_or_start(simulation: Simulation) -> None:
    """`failed` when it failed, then `stopped` if it is not restarted; both once, and after `starting`."""
    log: list[Any] = []
    started = asyncio.Event()

    class Slow(Clerk):
        async def starting(self) -> None:
            self.log.append("starting")
            await started.wait()
            self.log.append("started")

    async with shop(simulation) as (_, system):
        temporary = await system.spawn(Clerk, log, name="temporary", restart=TEMPORARY)
        await temporary.tell({"fail": "oh"})
        await asyncio.sleep(1)
        assert log == ["starting", "failed: oh", "stopped"]
        log.clear()
        pausing = await system.spawn(Clerk, log, name="pausing", restart=Restart(backoff_s=50, max_backoff_s=50))
        await pausing.tell({"fail": "oh"})
        await asyncio.sleep(1)
        await system.stop(pausing)
        assert log == ["starting", "failed: oh", "stopped"]
        log.clear()
        spawning = asyncio.ensure_future(system.spawn(Slow, log, name="slow"))
        await asyncio.sleep(1)
        await system.stop("shop.slow")
        started.set()
        with pytest.raises(tl.ActorStopped):
            await spawning
        assert log == ["starting", "started", "stopped"]


# Elsewhere


def test_over_a_hub(tmp_path: Path) -> None:
    """A notice arrives at once when an actor ends, and after a timeout when its process is killed."""

    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        log: list[Terminated] = []
        settings = SystemSettings(watch_s=1.5)
        there = tl.connect(place, name="two")
        async with (
            tl.connect(place, name="one", embed=True) as here,
            ActorSystem(here, "shop", settings) as system,
            there as far,
        ):
            bank = await ActorSystem(far, "bank").__aenter__()
            watcher = await system.spawn(Watcher, log, name="watcher")
            clerk = await bank.spawn(Clerk, [], name="clerk")
            await bank.spawn(Clerk, [], name="other")
            await far.flush()
            for address in ("bank.clerk", "bank.other", "bank.nobody"):
                await watcher.tell(address)
            await until(lambda: log == [Terminated("bank.nobody")])
            # Longer than without an answer.
            await asyncio.sleep(2.5)
            assert len(log) == 1
            await bank.stop(clerk)
            await until(lambda: log[1:] == [Terminated("bank.clerk")])
            # As if its process had ended: it sends nothing more.
            await bank._router.aclose()
            await until(lambda: log[2:] == [Terminated("bank.other", "its system has not answered for 1.5 s")])
            await bank.shutdown()

    run(main())


@pytest.mark.slow
def test_of_an_actor_in_a_process_of_its_own() -> None:
    """A process that is killed while it is idle is noticed as well."""

    async def main() -> None:
        log: list[Terminated] = []
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            watcher = await system.spawn(Watcher, log, name="watcher")
            cruncher = await system.spawn(Cruncher, 10, name="cruncher", process=True, restart=TEMPORARY)
            await watcher.tell("shop.cruncher")
            assert (await cruncher.ask(5))[1] == 2
            assert log == []
            stand_in: Any = system.registry["cruncher"].actor
            stand_in.kill()
            await until(lambda: log == [Terminated("shop.cruncher", "ActorProcessFailed: its process ended with -9")])

    run(main())
