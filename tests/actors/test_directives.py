"""The reaction to a failure depends on its kind; and the limits of the default reaction."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import trunkline as tl
from tests.actors.people import Clerk, shop
from tests.actors.test_death_watch import Watcher
from trunkline.actors import Actor, Directive, Failed, Restart, Strategy, SystemState, Terminated
from trunkline.delivery.dead_letters import Cause
from trunkline.testing import Simulation

pytestmark = pytest.mark.usefixtures("both_ways")


class Counting(Actor):
    def __init__(self, log: list[str] | None = None) -> None:
        self.count = 0
        self.log = [] if log is None else log

    async def starting(self) -> None:
        self.log.append("starting")

    async def receive(self, kind: str) -> int:
        self.count += 1
        if kind != "count":
            raise {"value": ValueError, "key": KeyError, "lookup": LookupError, "os": OSError}[kind](kind)
        return self.count

    async def failed(self, error: BaseException, message: tl.Message | None) -> None:
        self.log.append(f"failed: {type(error).__name__} {None if message is None else message.decode()}")

    async def stopped(self) -> None:
        self.log.append("stopped")


async def fail(actor: tl.actors.Ref, kind: str) -> None:
    with pytest.raises(tl.RequestFailed):
        await actor.ask(kind)


async def test_by_kind(simulation: Simulation) -> None:
    """The nearest class counts: RESUME keeps the state, RESTART does not, STOP ends the actor."""
    log: list[str] = []
    notices: list[Terminated] = []
    on_error = {LookupError: Directive.STOP, KeyError: Directive.RESUME, ValueError: "resume"}
    async with shop(simulation) as (bus, system):
        actor = await system.spawn(Counting, log, name="counting", on_error=on_error)
        watcher = await system.spawn(Watcher, notices, name="watcher")
        await watcher.tell(actor.address)
        await fail(actor, "value")
        await fail(actor, "key")
        assert await actor.ask("count") == 3
        assert (log, system.actors()[0].restarts) == (["starting"], 0)
        await fail(actor, "os")
        assert await actor.ask("count") == 1
        assert log == ["starting", "failed: OSError os", "starting"]
        await fail(actor, "lookup")
        await asyncio.sleep(1)
        assert log[3:] == ["failed: LookupError lookup", "stopped"]
        assert notices == [Terminated("shop.counting", "LookupError: lookup")]
        assert [letter.cause for letter in bus.dead_letters] == [Cause.HANDLER_FAILED] * 4
        assert system.state is SystemState.RUNNING


async def test_what_is_resumed_may_be_tried_again(simulation: Simulation) -> None:
    tries: list[int] = []

    class Trying(Actor):
        async def receive(self, message: bytes) -> int:
            tries.append(len(tries))
            if len(tries) < 3:
                raise OSError("not yet")
            return len(tries)

    async with shop(simulation) as (bus, system):
        actor = await system.spawn(
            Trying, name="trying", failed=Failed.RETRY, attempts=5, on_error={OSError: Directive.RESUME}
        )
        assert await actor.ask(b"now", reply=int) == 3
        assert bus.accounts()["shop.trying"].balanced


async def test_a_failure_that_goes_up_is_judged_there_by_what_it_was(simulation: Simulation) -> None:
    """ESCALATE: the parent fails. Its own directives apply to the error of the child."""
    log: list[str] = []

    class Parent(Actor):
        async def starting(self) -> None:
            log.append("parent")
            await self.context.spawn(Counting, name="child", on_error={OSError: Directive.ESCALATE})

        async def receive(self, message: str) -> str:
            return message

        async def failed(self, error: BaseException, message: tl.Message | None) -> None:
            log.append(str(error))

    async with shop(simulation) as (_, system):
        parent = await system.spawn(Parent, name="parent", on_error={OSError: Directive.STOP})
        await fail(system.ref("shop.parent.child"), "os")
        await asyncio.sleep(1)
        assert log == ["parent", "shop.parent.child failed: OSError: os"]
        with pytest.raises(tl.RequestFailed, match="no actor"):
            await parent.ask("anybody?")


async def test_escalation_of_an_uppermost_actor_ends_the_system(simulation: Simulation) -> None:
    async with shop(simulation) as (_, system):
        actor = await system.spawn(Counting, name="counting", on_error={OSError: Directive.ESCALATE})
        await fail(actor, "os")
        with pytest.raises(tl.ActorFailed, match=r"shop\.counting failed: OSError: os"):
            await system.wait()


async def test_by_default_failed_asks_end_nothing(simulation: Simulation) -> None:
    """Neither the system nor other actors nor the actor itself."""
    async with shop(simulation) as (_, system):
        actor = await system.spawn(Counting, name="counting")
        clerk = await system.spawn(Clerk, [], name="clerk")
        for _ in range(20):
            await fail(actor, "value")
        assert await actor.ask("count") == 1
        assert await clerk.ask("there?") == "there?"
        assert (system.state, system.actors()[0].restarts) == (SystemState.RUNNING, 20)


async def test_pauses_are_not_the_same_for_all(simulation: Simulation) -> None:
    """Actors that fail together do not restart at the same moment."""
    began: list[float] = []

    class Noting(Counting):
        async def starting(self) -> None:
            began.append(simulation.now())

    async with shop(simulation) as (_, system):
        actors = [await system.spawn(Noting, restart=Restart(backoff_s=10, max_backoff_s=10)) for _ in range(10)]
        first = simulation.now()
        await asyncio.gather(*(actor.tell("value") for actor in actors))
        await asyncio.sleep(60)
        pauses = [at - first for at in began[10:]]
        assert len({round(pause, 3) for pause in pauses}) > 5
        assert 8 <= min(pauses) <= max(pauses) <= 12


@pytest.mark.parametrize("strategy", [Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE])
async def test_siblings_get_their_hooks(simulation: Simulation, strategy: Strategy) -> None:
    logs: list[list[str]] = [[], []]
    async with shop(simulation, strategy=strategy) as (_, system):
        actors = [await system.spawn(Counting, log) for log in logs]
        await fail(actors[0], "os")
        await asyncio.sleep(5)
        assert logs == [
            ["starting", "failed: OSError os", "starting"],
            ["starting", "failed: OSError None", "starting"],
        ]


async def test_what_is_said_about_no_exception_is_refused(simulation: Simulation) -> None:
    async with shop(simulation) as (_, system):
        for nonsense in ({"ValueError": "resume"}, {int: "resume"}, {ValueError: "ignore"}):
            with pytest.raises(tl.InvalidSettings):
                await system.spawn(Counting, on_error=nonsense)


async def test_constructors_have_keywords(simulation: Simulation) -> None:
    """At `spawn`, and in `kwargs` if an option has the same name; repeated for each incarnation."""

    class Shop(Actor):
        def __init__(self, town: str, *, floor: int = 0, capacity: int = 1) -> None:
            self.made_of = [town, floor, capacity]

        async def receive(self, message: str) -> Any:
            if message == "fail":
                raise ValueError
            return self.made_of

    class Anything(Actor):
        def __init__(self, **words: int) -> None:
            self.words = words

        async def receive(self, message: str) -> Any:
            return self.words

    async with shop(simulation) as (_, system):
        one = await system.spawn(Shop, "Apia", name="one", floor=3, capacity=50)
        other = await system.spawn(Shop, name="other", town="Lufilufi", kwargs={"capacity": 7})
        third = await system.spawn(Anything, name="third", a=1, capacity=30)
        pool = await system.pool(Shop, "Apia", size=1, name="pool", floor=9)
        assert await one.ask("?") == ["Apia", 3, 1]
        assert await other.ask("?") == ["Lufilufi", 0, 7]
        assert await third.ask("?") == {"a": 1}
        assert await pool.ask("?") == ["Apia", 9, 1]
        await fail(other, "fail")
        assert await other.ask("?") == ["Lufilufi", 0, 7]
        assert [health.capacity for health in system.actors()][:3] == [50, 10_000, 30]
        with pytest.raises(tl.InvalidSettings, match="capacitty"):
            await system.spawn(Shop, "Apia", capacitty=3)
        with pytest.raises(tl.UsageError, match="'floor' twice"):
            await system.spawn(Shop, "Apia", floor=1, kwargs={"floor": 2})


async def test_a_child_that_was_started_by_one_that_did_not_start_is_gone(simulation: Simulation) -> None:
    class Parent(Actor):
        async def starting(self) -> None:
            await self.context.spawn(Counting, name="child")
            raise ValueError("no")

    async with shop(simulation) as (_, system):
        with pytest.raises(ValueError, match="no"):
            await system.spawn(Parent, name="parent")
        assert system.actors() == []
