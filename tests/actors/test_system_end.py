"""How a system ends, and the fates of messages that are sent to it then, or that find no room."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.actors.people import Clerk, shop
from tests.actors.running import run
from tests.journal.journals import until
from trunkline.actors import Actor, ActorSystem, SystemState
from trunkline.delivery.dead_letters import Cause
from trunkline.delivery.fates import Fate
from trunkline.testing import Simulation, world

pytestmark = pytest.mark.usefixtures("both_ways")


async def test_the_order_of_the_end(simulation: Simulation, caplog: pytest.LogCaptureFixture) -> None:
    """During shutdown the router accepts only messages of its own actors. They finish, and stop in reverse order."""
    log: list[Any] = []
    caplog.set_level(logging.INFO, "trunkline.actors")

    class Front(Actor):
        async def receive(self, number: int) -> None:
            await asyncio.sleep(1)
            # By its own reference and by its context: both belong to this system.
            await system.ref("shop.back").tell(number)
            await self.context.send("shop.back", -number)

        async def stopped(self) -> None:
            log.append(("front stopped", system.state))

    class Back(Actor):
        async def receive(self, number: int) -> None:
            log.append(number)

        async def stopped(self) -> None:
            log.append(("back stopped", system.state))

    async with tl.connect(world=world(simulation)) as bus:
        async with ActorSystem(bus, "shop") as system:
            front = await system.spawn(Front, name="front")
            await system.spawn(Back, name="back")
            for number in (1, 2):
                await front.tell(number)
            ending = asyncio.ensure_future(system.shutdown())
            await asyncio.sleep(0.5)
            assert system.state is SystemState.SHUTTING_DOWN
            too_late = await front.tell(3)
            with pytest.raises(tl.RequestFailed, match=r"SystemStopped.*shutting down"):
                await front.ask(4, timeout_s=900)
            with pytest.raises(tl.SystemStopped):
                await system.spawn(Back)
            assert await ending == []
        assert log == [
            1,
            -1,
            2,
            -2,
            ("back stopped", SystemState.SHUTTING_DOWN),
            ("front stopped", SystemState.SHUTTING_DOWN),
        ]
        (first, second) = bus.dead_letters.find(cause=Cause.NOT_RUNNING)
        assert (first.message.id, first.reason) == (too_late, "its system is shutting down")
        assert second.message.type is tl.MessageType.REQUEST
        assert caplog.text.index("message router started") < caplog.text.index("message router stopped")


async def test_after_the_end(simulation: Simulation, caplog: pytest.LogCaptureFixture) -> None:
    """A warning, and a failed ask at once; until another system has that name."""
    async with tl.connect(world=world(simulation)) as bus:
        async with ActorSystem(bus, "shop") as system:
            clerk = await system.spawn(Clerk, [], name="clerk")
        began = simulation.now()
        caplog.clear()
        await clerk.tell("anybody?")
        assert "to shop.clerk is dropped: its system has stopped" in caplog.text
        with pytest.raises(tl.RequestFailed, match="the actor system 'shop' is stopped") as caught:
            await clerk.ask("anybody?", timeout_s=900)
        assert caught.value.error_type == "SystemStopped"
        assert simulation.now() - began < 1
        for _ in range(3):
            async with ActorSystem(bus, "shop") as system:
                await system.spawn(Clerk, [], name="clerk")
                assert await clerk.ask("there?") == "there?"
        caplog.clear()
        with pytest.raises(tl.RequestFailed, match="is stopped"):
            await clerk.ask("anybody?", timeout_s=900)
        assert caplog.text.count("its system has stopped") == 1


class Slow(Actor):
    def __init__(self, gate: asyncio.Event) -> None:
        self.gate = gate
        self.seen: list[int] = []

    async def receive(self, number: int) -> None:
        await self.gate.wait()
        self.seen.append(number)


@pytest.mark.parametrize(
    ("overflow", "lost", "refused"),
    [("drop_oldest", [1, 2], False), ("drop_newest", [3, 4], False), ("reject", [3, 4], True), (None, [3, 4], True)],
)
async def test_what_finds_no_room_is_a_dead_letter(
    simulation: Simulation, caplog: pytest.LogCaptureFixture, overflow: str | None, lost: list[int], refused: bool
) -> None:
    caplog.clear()
    async with shop(simulation) as (bus, system):
        gate = asyncio.Event()
        options: dict[str, Any] = {} if overflow is None else {"overflow": overflow}
        slow = await system.spawn(Slow, gate, name="slow", capacity=2, **options)
        failures = 0
        for number in range(5):
            try:
                await slow.tell(number)
            except tl.InboxFull:
                failures += 1
            await asyncio.sleep(0.1)
        letters = bus.dead_letters.find(cause=Cause.MAILBOX_FULL)
        assert [letter.message.decode() for letter in letters] == lost
        assert failures == (2 if refused else 0)
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "the mailbox of shop.slow has lost 1 message," in errors[0].getMessage()
        for letter in letters:
            (outcome,) = (await bus.explain(letter.message.id)).outcomes
            assert outcome.fate is Fate.DEAD
        gate.set()
        await asyncio.sleep(1)
        assert bus.accounts()["shop.slow"].balanced
        bus.dead_letters.replay(letters[0])
        await asyncio.sleep(1)
        actor: Any = system.registry["slow"].actor
        assert actor.seen[-1] == lost[0]
        assert bus.accounts()["shop.slow"].balanced


async def test_who_waits_too_long_at_a_full_mailbox(simulation: Simulation, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    settings = tl.Settings(backpressure=tl.Backpressure(timeout_s=20, max_pending=2))
    async with tl.connect(world=world(simulation), settings=settings) as bus, ActorSystem(bus, "shop") as system:
        gate = asyncio.Event()
        slow = await system.spawn(Slow, gate, name="slow", capacity=1, overflow="block")
        for number in range(2):
            await slow.tell(number)
            await asyncio.sleep(0.1)
        late = [asyncio.ensure_future(slow.tell(number)) for number in (2, 3)]
        await asyncio.sleep(0.1)
        with pytest.raises(tl.Congested):
            await slow.tell(4)
        for answer in await asyncio.gather(*late, return_exceptions=True):
            assert isinstance(answer, tl.BackpressureTimeout)
        impatient = asyncio.ensure_future(slow.tell(5))
        await asyncio.sleep(0.1)
        impatient.cancel()
        await asyncio.gather(impatient, return_exceptions=True)
        # Who has given up itself knows; the others are dead letters.
        letters = bus.dead_letters.find(cause=Cause.MAILBOX_FULL)
        assert sorted(letter.message.decode() for letter in letters) == [2, 3, 4]
        for letter in letters:
            (outcome,) = (await bus.explain(letter.message.id)).outcomes
            assert (outcome.fate, outcome.reason) == (Fate.DEAD, letter.reason)
        assert any(record.levelno == logging.ERROR for record in caplog.records)
        gate.set()
        await asyncio.sleep(1)
        assert bus.accounts()["shop.slow"].balanced


async def test_a_system_that_ends_cancels_nothing_of_others(simulation: Simulation) -> None:
    async with shop(simulation) as (bus, system), ActorSystem(bus, "bank") as bank:
        clerk = await bank.spawn(Clerk, [], name="clerk")
        await system.spawn(Clerk, [], name="clerk")
        await system.shutdown()
        assert await clerk.ask("there?") == "there?"


# Over a hub


def test_after_the_end_over_a_hub(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in one process: messages during the end are dead letters. Later requests fail at once, until a successor."""

    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        async with tl.connect(place, name="one", embed=True) as here, tl.connect(place, name="two") as there:
            far = tl.actors.Ref(here, "bank.clerk")
            gate = asyncio.Event()
            async with ActorSystem(there, "bank") as bank:
                await bank.spawn(Clerk, [], name="clerk")
                await bank.spawn(Slow, gate, name="slow")
                assert await far.ask("there?", timeout_s=60) == "there?"
                await tl.actors.Ref(here, "bank.slow").tell(1)
                await until(lambda: bank.registry["slow"].current is not None)
                ending = asyncio.ensure_future(bank.shutdown(60))
                await until(lambda: bank.state is SystemState.SHUTTING_DOWN)
                await far.tell("too late")
                with pytest.raises(tl.RequestFailed, match=r"SystemStopped.*shutting down"):
                    await far.ask("too late", timeout_s=600)
                gate.set()
                assert await ending == []
                letters = there.dead_letters.find(cause=Cause.NOT_RUNNING)
                assert [letter.reason for letter in letters] == ["its system is shutting down"] * 2
            caplog.clear()
            with pytest.raises(tl.RequestError, match=r"SystemStopped|No responders"):
                await far.ask("anybody?", timeout_s=600)
            await until(lambda: "to bank.clerk is dropped: its system has stopped" in caplog.text)
            # Another process has the name: the one in which it has stopped keeps quiet.
            async with tl.connect(place, name="three") as third, ActorSystem(third, "bank") as bank:
                await bank.spawn(Clerk, [], name="clerk")
                for number in range(20):
                    assert await far.ask(number, timeout_s=60) == number
            with pytest.raises(tl.RequestError, match=r"SystemStopped|No responders"):
                await far.ask("anybody?", timeout_s=600)

    run(main())


def test_an_ask_to_a_process_that_has_ended_fails_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        async with tl.connect(place, name="one", embed=True) as here, ActorSystem(here, "shop") as shop:
            front = await shop.spawn(Asking, name="front")
            async with tl.connect(place, name="two") as there, ActorSystem(there, "bank") as bank:
                await bank.spawn(Clerk, [], name="clerk")
                assert await front.ask("bank.clerk", timeout_s=60) == "there?"
            with pytest.raises(tl.NoResponders):
                await shop.ref("bank.clerk").ask("anybody?", timeout_s=600)
            with pytest.raises(tl.RequestFailed, match="No responders"):
                await front.ask("bank.clerk", timeout_s=600)
            with pytest.raises(tl.NoResponders):
                await here.request(to="nobody", timeout_s=600)

    run(main())


def test_what_finds_no_room_over_a_hub(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Victims of drop_oldest, and messages that waited too long, are dead letters and are logged as errors."""

    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        settings = tl.Settings(backpressure=tl.Backpressure(timeout_s=0.2, max_pending=10))
        async with (
            tl.connect(place, name="one", embed=True) as here,
            tl.connect(place, name="two", settings=settings) as there,
            ActorSystem(there, "bank") as bank,
        ):
            gate = asyncio.Event()
            for overflow in ("drop_oldest", "block"):
                await bank.spawn(Slow, gate, name=overflow, capacity=2, overflow=overflow)
                far = tl.actors.Ref(here, f"bank.{overflow}")
                await far.tell(0)
                await until(lambda: bank.registry[overflow].current is not None)  # noqa: B023
                for number in range(1, 5):
                    await far.tell(number)
                if overflow == "block":
                    with pytest.raises(tl.RequestFailed, match="BackpressureTimeout"):
                        await far.ask(5, timeout_s=60)
                else:
                    await far.tell(5)
            await until(lambda: len(there.dead_letters.find(cause=Cause.MAILBOX_FULL)) >= 6)
            letters = there.dead_letters.find(cause=Cause.MAILBOX_FULL)
            lost = sorted((letter.subscriber, letter.message.decode()) for letter in letters)
            assert lost == [("bank.block", n) for n in (3, 4, 5)] + [("bank.drop_oldest", n) for n in (1, 2, 3)]
            for letter in letters:
                outcomes = (await there.explain(letter.message.id)).outcomes
                assert Fate.DEAD in {outcome.fate for outcome in outcomes}
            errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
            for overflow in ("drop_oldest", "block"):
                assert any(f"the mailbox of bank.{overflow} has lost" in error for error in errors)
            gate.set()
            await until(lambda: not any(cell.busy for cell in bank.registry.values()))
            for overflow in ("drop_oldest", "block"):
                assert there.accounts()[f"bank.{overflow}"].balanced

    run(main())


class Asking(Actor):
    async def receive(self, address: str) -> Any:
        return await self.context.request(address, "there?", timeout_s=600)


@pytest.mark.parametrize("name", ["", "a b", "a.*", ">", ".a", "a..b"])
async def test_names_are_words_of_topics(name: str) -> None:
    """Also for systems and pools: an actor that cannot be reached is not started."""
    async with tl.connect() as bus:
        with pytest.raises(tl.InvalidTopic):
            await ActorSystem(bus, name).__aenter__()
        async with ActorSystem(bus, "shop") as system:
            with pytest.raises(tl.InvalidTopic):
                await system.spawn(Clerk, [], name=name)
            with pytest.raises(tl.InvalidTopic):
                await system.pool(Clerk, [], size=1, name=name)
            assert system.actors() == []


async def test_one_system_of_a_name_at_a_time() -> None:
    async with tl.connect() as bus:
        for _ in range(2):
            async with ActorSystem(bus, "shop") as system:
                clerk = await system.spawn(Clerk, [], name="clerk")
                with pytest.raises(tl.DuplicateName, match="an actor system named 'shop' already exists"):
                    await ActorSystem(bus, "shop").__aenter__()
                assert await clerk.ask("still there") == "still there"
