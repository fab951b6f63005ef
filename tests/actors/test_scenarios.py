"""Features that users of other actor libraries rely on: futures, stopping, references, hooks, supervision."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import trunkline as tl
from tests.actors.people import Clerk, Placed, shop
from trunkline.actors import Actor, ActorSystem, Failed, Lifetime, Ref, Restart, Terminated, handles
from trunkline.delivery.dead_letters import Cause
from trunkline.testing import Simulation

pytestmark = pytest.mark.usefixtures("both_ways")


class Echo(Actor):
    async def receive(self, message: Any) -> Any:
        match message:
            case ["sleep", seconds]:
                await asyncio.sleep(seconds)
            case ["raise", text]:
                raise ValueError(text)
            case "stop":
                self.context.stop()
            case "me":
                return self.context.address
        return message


# Asking


async def test_each_gets_its_own_answer(simulation: Simulation) -> None:
    async with shop(simulation) as (_, system):
        echo = await system.spawn(Echo)
        assert await asyncio.gather(*(echo.ask(number) for number in range(100))) == list(range(100))


async def test_an_answer_is_a_future_that_may_be_read_twice(simulation: Simulation) -> None:
    async with shop(simulation) as (_, system):
        echo = await system.spawn(Echo)
        future = asyncio.ensure_future(echo.ask("hello"))
        assert (await future, await future) == ("hello", "hello")
        failed = asyncio.ensure_future(echo.ask(["raise", "oh"]))
        for _ in range(2):
            with pytest.raises(tl.RequestFailed, match="oh"):
                await failed


async def test_a_late_answer_is_nobody_elses(simulation: Simulation) -> None:
    async with shop(simulation) as (bus, system):
        echo = await system.spawn(Echo)
        with pytest.raises(tl.RequestTimeout):
            await echo.ask(["sleep", 10], timeout_s=1)
        assert await echo.try_ask(["sleep", 10], timeout_s=1) is None
        assert await echo.ask("next") == "next"
        assert len(bus.orphans) == 2


async def test_whoever_is_cancelled_while_asking_harms_nobody(simulation: Simulation) -> None:
    async with shop(simulation) as (_, system):
        echo = await system.spawn(Echo)
        asking = asyncio.ensure_future(echo.ask(["sleep", 10]))
        await asyncio.sleep(1)
        asking.cancel()
        assert await echo.ask("next") == "next"
        assert system.actors()[0].handled == 2


async def test_an_actor_that_asks_itself_waits_in_vain(simulation: Simulation) -> None:
    class Selfish(Actor):
        async def receive(self, message: str) -> Any:
            if message == "inner":
                return "never in time"
            return await self.context.try_request(self.context.me, "inner", timeout_s=5)

    async with shop(simulation) as (_, system):
        selfish = await system.spawn(Selfish)
        assert await selfish.ask("outer") is None


async def test_what_is_sent_is_a_copy(simulation: Simulation) -> None:
    class Changing(Actor):
        async def receive(self, message: list[int]) -> list[int]:
            message.append(4)
            return message

    async with shop(simulation) as (_, system):
        changing = await system.spawn(Changing)
        mine = [1, 2, 3]
        assert await changing.ask(mine) == [1, 2, 3, 4]
        assert mine == [1, 2, 3]


# References


async def test_references(simulation: Simulation) -> None:
    """References are equal if their addresses are. They lead to the actor that has the address now."""
    async with shop(simulation) as (bus, system), ActorSystem(bus, "bank") as bank:
        echo = await system.spawn(Echo, name="echo")
        same = bank.ref("shop.echo")
        assert (same, hash(same), str(same)) == (echo, hash(echo), "Ref('shop.echo')")
        assert len({echo, same, system.ref("shop.other")}) == 2
        assert echo != "shop.echo"
        assert await same.ask("me") == "shop.echo"
        await system.stop(echo)
        await system.spawn(Echo, name="echo")
        assert await same.ask("me") == "shop.echo"


async def test_a_reference_can_be_sent_as_an_address(simulation: Simulation) -> None:
    class Forwarding(Actor):
        async def receive(self, order: tuple[str, str]) -> Any:
            to, what = order
            return await Ref(self.context.me._bus, to).ask(what)

    async with shop(simulation) as (_, system):
        echo = await system.spawn(Echo, name="echo")
        forwarding = await system.spawn(Forwarding)
        assert await forwarding.ask((echo.address, "me")) == "shop.echo"


# Stopping


async def test_what_was_told_before_is_handled_before(simulation: Simulation) -> None:
    log: list[Any] = []
    async with shop(simulation) as (bus, system):
        clerk = await system.spawn(Clerk, log, name="clerk")
        for number in range(5):
            await clerk.tell(number)
        assert await system.stop(clerk, drain_s=10) == []
        assert log == ["starting", 0, 1, 2, 3, 4, "stopped"]
        await clerk.tell("too late")
        assert [letter.cause for letter in bus.dead_letters] == [Cause.UNKNOWN_ACTOR]
        with pytest.raises(tl.RequestFailed, match="UnknownActor"):
            await clerk.ask("too late")
        with pytest.raises(tl.UnknownActor):
            await system.stop(clerk)


@pytest.mark.parametrize("where", ["starting", "receive", "failed", "task", "idle task"])
async def test_an_actor_stops_itself(simulation: Simulation, where: str) -> None:
    """Wherever it stops itself, it ends permanently, once, and its hook is called."""
    stopped: list[str] = []

    class Ending(Actor):
        async def starting(self) -> None:
            self.task: asyncio.Task[None] | None = None
            if where == "starting":
                self.context.stop()
            elif where == "idle task":
                self.task = asyncio.get_running_loop().create_task(self.end_later())

        async def end_later(self) -> None:
            await asyncio.sleep(1)
            self.context.stop()

        async def receive(self, message: str) -> None:
            if where == "receive":
                self.context.stop()
            elif where == "task":
                self.task = asyncio.get_running_loop().create_task(self.end_later())
            elif where == "failed":
                raise ValueError

        async def failed(self, error: BaseException, message: tl.Message | None) -> None:
            self.context.stop()

        async def stopped(self) -> None:
            stopped.append(self.context.address)

    restart = Restart(lifetime=Lifetime.TEMPORARY if where == "failed" else Lifetime.TRANSIENT)
    async with shop(simulation) as (_, system):
        ending = await system.spawn(Ending, name="ending", restart=restart)
        if where not in ("starting", "idle task"):
            await ending.tell("now")
        await asyncio.sleep(5)
        assert (system.actors(), stopped) == ([], ["shop.ending"])


async def test_an_actor_stops_another_and_itself_by_the_system(simulation: Simulation) -> None:
    log: list[Any] = []

    class Stopping(Actor):
        async def receive(self, address: str) -> str:
            await system.stop(address)
            return "done"

    async with shop(simulation) as (_, system):
        await system.spawn(Clerk, log, name="clerk")
        stopping = await system.spawn(Stopping, name="stopping")
        assert await stopping.ask("shop.clerk") == "done"
        assert log == ["starting", "stopped"]
        await stopping.tell("shop.stopping")
        await asyncio.sleep(1)
        assert system.actors() == []


async def test_all_stop_with_their_system_the_last_first(simulation: Simulation) -> None:
    order: list[str] = []

    class Member(Actor):
        def __init__(self, children: int) -> None:
            self.children = children

        async def starting(self) -> None:
            for number in range(self.children):
                await self.context.spawn(Member, 0, name=f"child{number}")

        async def stopped(self) -> None:
            order.append(self.context.address.removeprefix("shop."))

    async with shop(simulation) as (_, system):
        await system.spawn(Member, 2, name="a")
        await system.spawn(Member, 1, name="b")
    assert order == ["b.child0", "b", "a.child1", "a.child0", "a"]


# Hooks


async def test_hooks_that_raise_are_logged(simulation: Simulation, caplog: pytest.LogCaptureFixture) -> None:
    class Bad(Actor):
        async def receive(self, message: str) -> str:
            if message == "fail":
                raise ValueError("first")
            return message

        async def failed(self, error: BaseException, message: tl.Message | None) -> None:
            raise KeyboardInterruptLike("in failed")

        async def stopped(self) -> None:
            raise OSError("in stopped")

    class KeyboardInterruptLike(BaseException):
        pass

    caplog.clear()
    async with shop(simulation) as (_, system):
        bad = await system.spawn(Bad, name="bad")
        await bad.tell("fail")
        assert await bad.ask("well") == "well"
        await system.stop(bad)
    assert caplog.text.count("a hook of Ref('shop.bad') raised") == 2


async def test_starting_that_fails_later_is_a_failure(simulation: Simulation) -> None:
    """At `spawn` it raises. In a later incarnation it is tried again, and the mailbox waits."""
    starts: list[int] = []

    class Flaky(Actor):
        async def starting(self) -> None:
            starts.append(len(starts))
            if len(starts) in (2, 3):
                raise OSError("not yet")

        async def receive(self, message: str) -> str:
            if message == "fail":
                raise ValueError
            return message

    async with shop(simulation) as (_, system):
        flaky = await system.spawn(Flaky, name="flaky")
        await flaky.tell("fail")
        assert await flaky.ask("waits") == "waits"
        assert (len(starts), system.actors()[0].restarts) == (4, 3)


# Supervision


async def test_a_restart_keeps_the_mailbox_and_nothing_else(simulation: Simulation) -> None:
    class Counting(Actor):
        made = 0

        def __init__(self) -> None:
            type(self).made += 1
            self.count = 0

        async def receive(self, message: str) -> int:
            self.count += 1
            if message == "fail":
                raise ValueError
            return self.count

    Counting.made = 0
    async with shop(simulation) as (_, system):
        counting = await system.spawn(Counting)
        await counting.ask("a")
        await counting.ask("b")
        answers = [counting.ask(message) for message in ("fail", "c", "d")]
        failure, *rest = await asyncio.gather(*answers, return_exceptions=True)
        assert isinstance(failure, tl.RequestFailed) or tl.RequestFailed in map(type, rest)
        assert await counting.ask("e") in (1, 2, 3)
        assert Counting.made == 2


async def test_children_end_with_the_incarnation_of_their_parent(simulation: Simulation) -> None:
    log: list[Any] = []
    notices: list[Terminated] = []

    class Parent(Actor):
        async def starting(self) -> None:
            self.child = await self.context.spawn(Clerk, log, name="child")
            self.context.watch(self.child)

        async def receive(self, message: str) -> None:
            if message == "fail":
                raise ValueError
            await self.child.tell({"fail": message})

        @handles(Terminated)
        async def mourn(self, notice: Terminated) -> None:
            notices.append(notice)

    async with shop(simulation) as (_, system):
        parent = await system.spawn(Parent, name="parent")
        await parent.tell("child's own")
        await asyncio.sleep(5)
        # Its parent starts it again and gets no notice, because it has not ended permanently.
        assert (log, notices) == (["starting", "failed: child's own", "starting"], [])
        log.clear()
        await parent.tell("fail")
        await asyncio.sleep(5)
        assert log == ["stopped", "starting"]
        assert await system.ref("shop.parent.child").ask(Placed("a")) is not None


async def test_limits_are_by_time(simulation: Simulation) -> None:
    """More failures than allowed, but not within the period, end nothing."""
    async with shop(simulation) as (_, system):
        echo = await system.spawn(Echo, name="echo", restart=Restart(times=2, within_s=10))
        for _ in range(10):
            await echo.tell(["raise", "oh"])
            await asyncio.sleep(6)
        assert await echo.ask("there?") == "there?"


async def test_a_message_that_always_fails_does_not_block_the_rest(simulation: Simulation) -> None:
    async with shop(simulation) as (bus, system):
        echo = await system.spawn(Echo, name="echo", failed=Failed.RETRY, attempts=3)
        await echo.tell(["raise", "poison"])
        assert await echo.ask("next") == "next"
        (letter,) = bus.dead_letters
        assert letter.cause is Cause.HANDLER_FAILED
        assert system.actors()[0].restarts == 3
