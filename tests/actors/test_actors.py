"""Actors in virtual time: tell and ask, failures, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import trunkline as tl
from tests.actors.people import Bill, Cancelled, Clerk, Placed, Till, shop
from trunkline.actors import (
    Actor,
    ActorSystem,
    Failed,
    Lifetime,
    Restart,
    Routing,
    Strategy,
    SystemState,
    Terminated,
    handles,
)
from trunkline.actors.actor import plan_of
from trunkline.delivery.dead_letters import Cause
from trunkline.testing import Simulation, world

pytestmark = pytest.mark.usefixtures("both_ways")


async def test_told_and_asked(simulation: Simulation) -> None:
    log: list[Any] = []
    async with shop(simulation) as (bus, system):
        clerk = await system.spawn(Clerk, log, name="clerk")
        assert clerk.address == "shop.clerk"
        await clerk.tell("plain")
        await clerk.tell(Placed("a1", 10.0))
        await clerk.tell(Cancelled("a1"))
        bill = await clerk.ask(Placed("b2", 5.0), reply=Bill)
        assert bill == Bill("b2", 6.0)
        assert await clerk.ask(7) == 7
        assert await bus.request(tl.endpoint("shop.clerk"), [1, 2]) == [1, 2]
        await bus.send("shop.clerk", "from outside")
    assert log == [
        "starting",
        "plain",
        Placed("a1", 10.0),
        Cancelled("a1"),
        Placed("b2", 5.0),
        7,
        [1, 2],
        "from outside",
        "stopped",
    ]


async def test_an_actor_acknowledges_to_the_sender(simulation: Simulation) -> None:
    async with shop(simulation) as (bus, system), bus.subscribe("acks") as acks:
        await system.spawn(Clerk, [], name="clerk")
        await system.spawn(Clerk, [], name="careless", failed=Failed.DROP)
        for clerk in ("clerk", "careless"):
            for payload, wanted in (("well", tl.MessageType.ACK), ({"fail": "badly"}, tl.MessageType.ERROR)):
                message_id = await bus.send(f"shop.{clerk}", payload, requires_ack=True, reply_to="acks")
                answer = await acks.recv(timeout_s=60)
                assert answer is not None
                assert (answer.type, answer.request_id) == (wanted, message_id)
        await bus.send("shop.clerk", "well", requires_ack=True)
        await bus.send("shop.clerk", "well", requires_ack=True, reply_to="no topic")
        await asyncio.sleep(5)
        assert acks.depth == 0
        # It had failed once, and a mistake of its sender is not its own failure.
        assert [actor.restarts for actor in system.actors() if actor.address == "shop.clerk"] == [1]


async def test_hooks_reach_actors(simulation: Simulation) -> None:
    """Hooks also run for messages sent as bytes, and the circuit breaker learns from the results of actors."""
    around: list[object] = []

    class Around(tl.hooks.Hook):
        @contextlib.contextmanager
        def handling(self, message: tl.Message) -> Iterator[None]:
            around.append(message.decode())
            try:
                yield
            finally:
                around.append("left")

    class Fragile(Actor):
        async def receive(self, message: bytes) -> bytes:
            around.append("called")
            if message == b"bad":
                raise ValueError
            return message

    breaker = tl.hooks.CircuitBreaker(tl.hooks.Breaker(failures=2, open_s=10))
    hooks = [Around(), breaker]
    async with (
        tl.connect("memory:", world=world(simulation), hooks=hooks) as bus,
        ActorSystem(bus, "shop") as system,
    ):
        fragile = await system.spawn(Fragile, name="fragile")
        await fragile.tell(b"good")
        assert await fragile.ask(b"good") == b"good"
        assert around == [b"good", "called", "left"] * 2
        with pytest.raises(tl.RequestFailed):
            await fragile.ask(b"bad")
        await fragile.tell(b"good")
        await asyncio.sleep(5)
        # A success in between.
        for _ in range(2):
            await fragile.tell(b"bad")
            await asyncio.sleep(1)
        assert around == [b"good", "called", "left"] * 2 + [b"bad", "called", "left"] + [
            b"good", "called", "left",
        ] + [b"bad", "called", "left"] * 2  # fmt: skip
        with pytest.raises(tl.CircuitOpen, match=r"shop\.fragile"):
            await fragile.tell(b"good")
        await asyncio.sleep(10)
        assert await fragile.ask(b"good") == b"good"
        await fragile.tell(b"good")


async def test_a_failure_is_a_dead_letter_and_a_new_beginning(simulation: Simulation) -> None:
    log: list[Any] = []
    async with shop(simulation) as (bus, system):
        clerk = await system.spawn(Clerk, log, name="clerk")
        for payload in ("before", {"fail": "oh"}, "after"):
            await clerk.tell(payload)
        with pytest.raises(tl.RequestFailed, match="again"):
            await clerk.ask({"fail": "again"})
        await asyncio.sleep(10)
        assert log == ["starting", "before", "failed: oh", "starting", "after", "failed: again", "starting"]
        letters = list(bus.dead_letters)
        assert [letter.cause for letter in letters] == [Cause.HANDLER_FAILED] * 2
        assert "raise ValueError" in letters[0].traceback
        (health,) = system.actors()
        assert (health.restarts, health.handled, health.health) == (2, 2, "ok")


@pytest.mark.parametrize(("failed", "tried"), [(Failed.RETRY, 3), (Failed.DROP, 1), (Failed.DEAD_LETTER, 1)])
async def test_what_becomes_of_the_message(simulation: Simulation, failed: Failed, tried: int) -> None:
    tries: list[int] = []

    class Failing(Actor):
        async def receive(self, number: int) -> None:
            if number == 1:
                tries.append(number)
                raise ValueError("one")

    async with shop(simulation) as (bus, system):
        actor = await system.spawn(Failing, name="failing", failed=failed, attempts=3)
        for number in range(3):
            await actor.tell(number)
        await asyncio.sleep(10)
        assert len(tries) == tried
        assert len(bus.dead_letters) == (0 if failed is Failed.DROP else 1)
        account = bus.accounts()["shop.failing"]
        assert (account.accepted, account.delivered, account.in_flight) == (3, 2, 0)
        assert account.balanced


async def test_bytes_may_be_rejected(simulation: Simulation) -> None:
    class Picky(Actor):
        async def receive(self, payload: bytes) -> None:
            if payload == b"no":
                raise tl.Reject("never")
            if payload == b"oh":
                raise ValueError("oh")

    async with shop(simulation) as (bus, system):
        picky = await system.spawn(Picky, name="picky")
        for payload in (b"yes", b"no", b"yes", b"oh", b"yes"):
            await picky.tell(payload)
        await asyncio.sleep(5)
        assert [letter.cause for letter in bus.dead_letters] == [Cause.REJECTED, Cause.HANDLER_FAILED]
        account = bus.accounts()["shop.picky"]
        assert (account.delivered, account.dead, account.balanced) == (3, 2, True)
        assert system.actors()[0].restarts == 1


async def test_what_cannot_be_read_is_not_the_actors_fault(simulation: Simulation) -> None:
    log: list[Any] = []

    class Picky(Actor):
        async def receive(self, number: int) -> int:
            log.append(number)
            if number == 13:
                raise tl.Reject("never")
            return number

    async with shop(simulation) as (bus, system):
        picky = await system.spawn(Picky, name="picky")
        with pytest.raises(tl.RequestFailed):
            await picky.ask("no number")
        with pytest.raises(tl.RequestFailed):
            await picky.ask(13)
        assert await picky.ask(1) == 1
        assert [letter.cause for letter in bus.dead_letters] == [Cause.INVALID_PAYLOAD, Cause.REJECTED]
        assert system.actors()[0].restarts == 0
        assert bus.accounts()["shop.picky"].balanced


@pytest.mark.parametrize(
    ("strategy", "anew"),
    [
        (Strategy.ONE_FOR_ONE, [1]),
        (Strategy.ONE_FOR_ALL, [0, 1, 2]),
        (Strategy.REST_FOR_ONE, [1, 2]),
    ],
)
async def test_strategies(simulation: Simulation, strategy: Strategy, anew: list[int]) -> None:
    logs: list[list[Any]] = [[], [], []]
    async with shop(simulation, strategy=strategy) as (_, system):
        clerks = [await system.spawn(Clerk, logs[number], name=f"clerk{number}") for number in range(3)]
        await clerks[1].tell({"fail": "oh"})
        await asyncio.sleep(5)
        assert [number for number in range(3) if logs[number].count("starting") == 2] == anew
        for number, clerk in enumerate(clerks):
            assert await clerk.ask(number) == number


async def test_failures_at_the_same_time_make_one_incarnation(simulation: Simulation) -> None:
    """Two children fail at once, and starting takes a while: there is never more than one of each."""

    class Slow(Actor):
        async def starting(self) -> None:
            await asyncio.sleep(1)
            self.context.schedule(0.5, b"tick", every=True)

        async def receive(self, payload: bytes) -> None:
            if payload == b"fail":
                raise ValueError("oh")

    async with shop(simulation, strategy=Strategy.ONE_FOR_ALL) as (bus, system):
        refs = [await system.spawn(Slow, name=name) for name in "abc"]
        for round_ in range(3):
            await asyncio.gather(*(ref.tell(b"fail") for ref in refs[: round_ + 1]))
            await asyncio.sleep(simulation.random.random() * 3)
        await asyncio.sleep(30)
        assert {each.state for each in system.actors()} == {"running"}
        before = bus.stats().total_messages
        await asyncio.sleep(10)
        # Each ticks twice a second: no timer of an earlier incarnation is left.
        assert bus.stats().total_messages - before in range(57, 64)


async def test_too_many_failures_go_up(simulation: Simulation) -> None:
    """A child that fails too often fails its parent. The failure of the top-level actor ends the system."""
    begun: list[str] = []

    class Child(Actor):
        async def starting(self) -> None:
            begun.append("child")

        async def receive(self, message: str) -> None:
            raise ValueError(message)

    class Parent(Actor):
        async def starting(self) -> None:
            begun.append("parent")
            await self.context.spawn(Child, name="child", restart=Restart(times=1))

    async with shop(simulation) as (_, system):
        await system.spawn(Parent, name="parent", restart=Restart(times=1))
        child = system.ref("shop.parent.child")
        for _ in range(4):
            await child.tell("oh")
            await asyncio.sleep(10)
        assert begun == ["parent", "child", "child", "parent", "child", "child"]
        with pytest.raises(tl.ActorFailed, match=r"shop\.parent was restarted 1 time and failed again"):
            await system.wait()
        assert system.state is SystemState.STOPPED
        with pytest.raises(tl.SystemStopped):
            await system.spawn(Child)


async def test_lifetimes(simulation: Simulation) -> None:
    class Ending(Actor):
        async def receive(self, message: str) -> None:
            self.context.stop()

    async with shop(simulation) as (_, system):
        for lifetime, stays in ((Lifetime.PERMANENT, True), (Lifetime.TRANSIENT, False), (Lifetime.TEMPORARY, False)):
            actor = await system.spawn(Ending, name=lifetime.value, restart=Restart(lifetime=lifetime))
            await actor.tell("end")
            await asyncio.sleep(5)
            assert (actor.address in {each.address for each in system.actors()}) == stays


async def test_those_who_watch_are_told(simulation: Simulation) -> None:
    log: list[Any] = []

    class Watcher(Clerk):
        async def starting(self) -> None:
            self.context.watch("shop.other")
            self.context.watch("shop.nobody")

    async with shop(simulation) as (_, system):
        other = await system.spawn(Clerk, [], name="other", restart=Restart(lifetime=Lifetime.TEMPORARY))
        await system.spawn(Watcher, log, name="watcher")
        await other.tell({"fail": "oh"})
        await asyncio.sleep(5)
        assert Terminated("shop.nobody") in log
        assert Terminated("shop.other", "ValueError: oh") in log


async def test_nowhere_to_go(simulation: Simulation) -> None:
    async with shop(simulation) as (bus, system):
        await bus.send("shop.nobody", 1)
        await bus.send("shop", 2)
        clerk = await system.spawn(Clerk, [], name="clerk")
        await system.stop(clerk)
        await clerk.tell("too late")
        assert [(letter.subscriber, letter.cause) for letter in bus.dead_letters] == [
            ("shop.nobody", Cause.UNKNOWN_ACTOR),
            ("shop", Cause.NO_RECIPIENT),
            ("shop.clerk", Cause.UNKNOWN_ACTOR),
        ]
        with pytest.raises(tl.UnknownActor):
            await system.stop(clerk)
        with pytest.raises(tl.RequestFailed, match=r"there is no actor shop\.clerk"):
            await clerk.ask("anybody?")


async def test_a_system_that_ends_says_so(simulation: Simulation, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(5, "trunkline.actors")

    class First(Actor):
        async def receive(self, message: bytes) -> None: ...

        async def stopped(self) -> None:
            # The last that was started has been stopped before.
            await self.context.send("shop.second", "too late")

    async with tl.connect(world=world(simulation)) as bus:
        async with ActorSystem(bus, "shop") as system:
            first = await system.spawn(First, name="first")
            await system.spawn(Clerk, [], name="second")
            await first.tell(b"x")
        assert [letter.cause for letter in bus.dead_letters] == [Cause.NOT_RUNNING]
    assert "message router started" in caplog.text
    assert "message router stopped" in caplog.text
    assert "Ref('shop.first') has handled" in caplog.text


async def test_full_mailboxes_by_priority(simulation: Simulation) -> None:
    async with shop(simulation) as (bus, system):
        gate = asyncio.Event()
        seen: list[str] = []

        class Slow(Actor):
            async def receive(self, message: str) -> None:
                await gate.wait()
                seen.append(message)

        slow = await system.spawn(Slow, name="slow", capacity=2)
        await slow.tell("handled")
        await asyncio.sleep(0.1)
        await slow.tell("first")
        await slow.tell("second")
        with pytest.raises(tl.InboxFull):
            await slow.tell("normal")
        await slow.tell("low", priority=tl.Priority.LOW)
        urgent = asyncio.ensure_future(slow.tell("urgent", priority=tl.Priority.CRITICAL))
        await asyncio.sleep(1)
        assert not urgent.done()
        assert system.actors()[0].health == "full"
        gate.set()
        await urgent
        await asyncio.sleep(1)
        assert sorted(seen) == ["first", "handled", "second", "urgent"]
        assert [letter.cause for letter in bus.dead_letters] == [Cause.MAILBOX_FULL] * 2
        assert bus.accounts()["shop.slow"].balanced


async def test_shutdown_drains_and_reports(simulation: Simulation) -> None:
    seen: list[int] = []

    class Slow(Actor):
        async def receive(self, number: int) -> None:
            await asyncio.sleep(1)
            seen.append(number)

    async with tl.connect() as bus:
        system = ActorSystem(bus, "shop")
        async with system:
            slow = await system.spawn(Slow, name="slow")
            for number in range(5):
                await slow.tell(number)
            left = await system.shutdown(drain_s=2.5)
            assert seen == [0, 1]
            assert [each.message.decode() for each in left] == [2, 3, 4]
            assert system.state is SystemState.STOPPED
            assert await system.shutdown() == []


async def test_timers(simulation: Simulation) -> None:
    seen: list[tuple[float, Any]] = []

    class Clock(Actor):
        async def starting(self) -> None:
            self.context.schedule(5, "once")
            self.ticks = self.context.schedule(2, "tick", every=True)

        async def receive(self, message: str) -> None:
            seen.append((simulation.now(), message))
            if len(seen) == 4:
                self.ticks.cancel()
            if message == "fail":
                raise ValueError("oh")

    async with shop(simulation) as (_, system):
        clock = await system.spawn(Clock, name="clock")
        began = simulation.now()
        await asyncio.sleep(20)
        assert [(round(at - began), what) for at, what in seen] == [(2, "tick"), (4, "tick"), (5, "once"), (6, "tick")]
        await clock.tell("fail")
        await asyncio.sleep(1)
        # A new incarnation has new timers, and none of the old.
        before = len(seen)
        await asyncio.sleep(4.5)
        assert [what for _, what in seen[before:]] == ["tick", "tick", "once"][: len(seen) - before]


async def test_context_names_the_sender_and_the_conversation(simulation: Simulation) -> None:
    class Front(Actor):
        async def receive(self, message: str) -> Any:
            return await self.context.request("shop.back", message)

    class Back(Actor):
        async def receive(self, message: tl.Message) -> Any:
            sender = self.context.sender
            return [message.sender, sender.address if sender else None, message.correlation_id is not None]

    async with shop(simulation) as (_, system):
        front = await system.spawn(Front, name="front")
        await system.spawn(Back, name="back")
        assert await front.ask("hello") == ["shop.front", "shop.front", True]


async def test_an_actor_tells_itself_to_go_on(simulation: Simulation) -> None:
    class Counting(Actor):
        def __init__(self) -> None:
            self.seen: list[int] = []

        async def receive(self, number: int) -> list[int]:
            self.seen.append(number)
            if number:
                await self.context.me.tell(number - 1)
            return self.seen

    async with shop(simulation) as (_, system):
        one, other = [await system.spawn(Counting, name=name) for name in ("one", "other")]
        await one.tell(3)
        await asyncio.sleep(1)
        assert await one.ask(0) == [3, 2, 1, 0, 0]
        assert await other.ask(0) == [0]


def test_plain_functions_run_in_threads() -> None:
    class Blocking(Actor):
        def receive(self, message: str) -> str:
            return threading.current_thread().name

    async def main() -> str:
        async with tl.connect() as bus, ActorSystem(bus) as system:
            actor = await system.spawn(Blocking)
            return str(await actor.ask("where?"))

    assert asyncio.run(main()) != threading.main_thread().name


async def test_what_nobody_handles_is_a_dead_letter(simulation: Simulation) -> None:
    class Knowing(Actor):
        @handles(Placed)
        async def place(self, order: Placed) -> str:
            return order.order

        @handles(Cancelled)
        async def cancel(self, order: Cancelled) -> None: ...

    class One(Actor):
        @handles()
        async def place(self, order: Placed) -> str:
            return order.order

    async with shop(simulation) as (bus, system):
        knowing = await system.spawn(Knowing, name="knowing")
        with pytest.raises(tl.RequestFailed, match="Knowing has no handler for Bill"):
            await knowing.ask(Bill("x", 1.0))
        with pytest.raises(tl.RequestFailed, match="no handler for plain values"):
            await knowing.ask("text")
        assert await knowing.ask(Placed("a1")) == "a1"
        one = await system.spawn(One, name="one")
        assert await one.ask({"order": "b2"}) == "b2"
        assert [letter.cause for letter in bus.dead_letters] == [Cause.INVALID_PAYLOAD] * 2


async def test_state_survives_a_restart(simulation: Simulation) -> None:
    async with shop(simulation) as (_, system):
        till = await system.spawn(Till, name="till")
        assert [await till.ask(("a", 5)), await till.ask(("b", 2))] == [5, 7]
        with pytest.raises(tl.RequestFailed, match="broken into"):
            await till.ask(("a", -1))
        assert await till.ask(("a", 1)) == 8


def test_half_a_memory_is_none() -> None:
    class Half(Actor):
        def snapshot(self) -> int:
            return 1

    with pytest.raises(tl.UsageError, match="Half has no `restore`"):
        plan_of(Half)


@pytest.mark.parametrize("routing", [routing for routing in Routing if routing is not Routing.BROADCAST])
async def test_pools(simulation: Simulation, routing: Routing) -> None:
    class Worker(Actor):
        async def receive(self, number: int) -> str:
            await asyncio.sleep(0.1)
            return self.context.address

    async with shop(simulation) as (bus, system):
        pool = await system.pool(Worker, size=4, name="workers", routing=routing, key="correlation_id")

        async def answers(count: int) -> list[str]:
            asked = [pool.ask(number, reply=str, correlation_id=f"key {number % 10}") for number in range(count)]
            return list(await asyncio.gather(*asked))

        first = await answers(40)
        shares = Counter(first)
        if routing is Routing.CONSISTENT_HASH:
            for number in range(10):
                assert len(set(first[number::10])) == 1
            await system.resize(pool, 5)
            moved = sum(one != other for one, other in zip(first[:10], await answers(10), strict=True))
            assert moved <= 6
        else:
            assert set(shares.values()) == {10}
            await system.resize(pool, 2)
            assert set(await answers(20)) == {"shop.workers.1", "shop.workers.2"}
        assert await system.ref("shop.workers.1").ask(1) == "shop.workers.1"
        with pytest.raises(tl.DuplicateName):
            await system.pool(Worker, size=1, name="workers")
        assert all(account.balanced for account in bus.accounts().values())
        await system.resize(pool, 0)
        await pool.tell(1)
        assert [letter.cause for letter in bus.dead_letters] == [Cause.UNKNOWN_ACTOR]


async def test_what_makes_no_sense_is_refused(simulation: Simulation) -> None:
    class Twice(Actor):
        @handles(Placed)
        async def one(self, order: Placed) -> None: ...

        @handles(Placed)
        async def two(self, order: Placed) -> None: ...

    async with shop(simulation) as (_, system):
        with pytest.raises(tl.UsageError, match="two handlers for Placed"):
            await system.spawn(Twice)
        await system.spawn(Clerk, [], name="clerk")
        with pytest.raises(tl.DuplicateName):
            await system.spawn(Clerk, [], name="clerk")
        with pytest.raises(tl.InvalidSettings):
            await system.spawn(Clerk, [], capacitty=3)
