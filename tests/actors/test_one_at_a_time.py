"""An actor handles one message at a time, even if a handler cannot be interrupted."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

import trunkline as tl
from tests.actors.people import Clerk, Sleepy
from tests.actors.running import run
from tests.journal.journals import until
from trunkline.actors import Actor, ActorSystem, Directive, Strategy, SystemSettings
from trunkline.delivery.dead_letters import Cause

WAIT_S = 60.0


class Gate:
    """The number of running handlers, and when they may return."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.inside = 0
        self.most = 0
        self.entered = 0
        self._lock = threading.Lock()

    def pass_through(self) -> None:
        with self._lock:
            self.inside += 1
            self.entered += 1
            self.most = max(self.most, self.inside)
        assert self.open.wait(WAIT_S)
        with self._lock:
            self.inside -= 1


class Blocking(Actor):
    def __init__(self, gate: Gate, log: list[Any]) -> None:
        self.gate = gate
        self.log = log

    async def starting(self) -> None:
        self.log.append("starting")

    def receive(self, what: str) -> str:
        if what == "wait":
            self.gate.pass_through()
        if what == "fail":
            raise ValueError("late")
        return what

    async def failed(self, error: BaseException, message: tl.Message | None) -> None:
        self.log.append(f"failed with {self.gate.inside} inside")

    async def stopped(self) -> None:
        self.log.append("stopped")


def state_of(system: ActorSystem) -> str:
    return system.actors()[0].state


def test_a_handler_that_takes_too_long_keeps_its_actor() -> None:
    """A requester gets an error in time. The next incarnation starts when the thread has ended."""

    async def main() -> None:
        gate, log = Gate(), list[Any]()
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            actor = await system.spawn(Blocking, gate, log, name="blocking", timeout_s=0.05, stuck_s=0.1)
            for _ in range(3):
                await actor.tell("wait")
            later = asyncio.ensure_future(actor.ask("hello", timeout_s=WAIT_S))
            await until(lambda: state_of(system) == "stuck")
            assert (gate.most, log) == (1, ["starting"])
            # The mailbox is as it was: nothing was handled meanwhile.
            assert system.actors()[0].mailbox == 3
            gate.open.set()
            assert await later == "hello"
            assert (gate.most, gate.entered) == (1, 3)
            assert log[:3] == ["starting", "failed with 0 inside", "starting"]
            letters = bus.dead_letters.find(cause=Cause.HANDLER_TIMEOUT)
            assert 1 <= len(letters) <= 3

    run(main())


def test_being_stuck_is_said(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        gate = Gate()
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            actor = await system.spawn(Blocking, gate, [], name="blocking", timeout_s=0.05, stuck_s=0.1)
            await actor.tell("wait")
            await until(lambda: state_of(system) == "stuck")
            assert "shop.blocking') is stuck: its handler still runs after 0.1 s" in caplog.text
            gate.open.set()
            await until(lambda: state_of(system) == "running")
            assert "is no longer stuck" in caplog.text

    run(main())


def test_stop_waits_for_a_handler_in_a_thread() -> None:
    """Its current message is handled and answered, and nothing is left behind."""

    async def main() -> None:
        gate, log = Gate(), list[Any]()
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            actor = await system.spawn(Blocking, gate, log, name="blocking", stuck_s=WAIT_S)
            answer = asyncio.ensure_future(actor.ask("wait", timeout_s=WAIT_S))
            await until(lambda: gate.inside == 1)
            await actor.tell("other")
            stopping = asyncio.ensure_future(system.stop(actor))
            await asyncio.sleep(0)
            assert log == ["starting"]
            gate.open.set()
            left = await stopping
            assert [each.message.decode() for each in left] == ["other"]
            assert await answer == "wait"
            assert (log, gate.inside) == (["starting", "stopped"], 0)

    run(main())


def test_stop_says_that_it_did_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        gate, log = Gate(), list[Any]()
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            actor = await system.spawn(Blocking, gate, log, name="blocking", stuck_s=0.05)
            answer = asyncio.ensure_future(actor.ask("wait", timeout_s=WAIT_S))
            await until(lambda: gate.inside == 1)
            left = await system.stop(actor)
            assert [each.outcome.reason for each in left] == [
                "its actor was stopped, but its handler still runs: it had 0.05 s to end"
            ]
            assert "is left running" in caplog.text
            # Not beside the handler.
            assert log == ["starting"]
            with pytest.raises(tl.RequestFailed, match="ActorStopped"):
                await answer
            gate.open.set()
            await until(lambda: gate.inside == 0)

    run(main())


def test_a_sibling_in_a_thread_ends_what_it_does() -> None:
    """One for all: the sibling of a failed actor restarts when its thread has ended, and its hook is called."""

    async def main() -> None:
        gate, log = Gate(), list[Any]()
        settings = SystemSettings(strategy=Strategy.ONE_FOR_ALL)
        async with tl.connect() as bus, ActorSystem(bus, "shop", settings) as system:
            clerk = await system.spawn(Clerk, [], name="clerk")
            actor = await system.spawn(Blocking, gate, log, name="blocking", stuck_s=WAIT_S)
            answer = asyncio.ensure_future(actor.ask("wait", timeout_s=WAIT_S))
            await until(lambda: gate.inside == 1)
            await clerk.tell({"fail": "oh"})
            await until(lambda: system.actors()[1].state == "restarting")
            assert log == ["starting"]
            gate.open.set()
            assert await answer == "wait"
            await until(lambda: system.actors()[1].state == "running")
            assert log == ["starting", "failed with 0 inside", "starting"]

    run(main())


def test_resuming_waits_for_the_thread() -> None:
    async def main() -> None:
        gate, log = Gate(), list[Any]()
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            actor = await system.spawn(
                Blocking, gate, log, name="blocking", timeout_s=0.05, on_error={tl.HandlerTimeout: Directive.RESUME}
            )
            with pytest.raises(tl.RequestFailed, match="HandlerTimeout"):
                await actor.ask("wait", timeout_s=WAIT_S)
            later = asyncio.ensure_future(actor.ask("hello", timeout_s=WAIT_S))
            await asyncio.sleep(0.1)
            assert not later.done()
            gate.open.set()
            assert await later == "hello"
            assert (log, system.actors()[0].restarts) == (["starting"], 0)

    run(main())


def test_an_error_of_a_thread_that_is_stopped_concerns_its_message_only() -> None:
    async def main() -> None:
        gate, log = Gate(), list[Any]()

        class Late(Blocking):
            def receive(self, what: str) -> str:
                self.gate.pass_through()
                raise ValueError("late")

        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            actor = await system.spawn(Late, gate, log, name="late", stuck_s=WAIT_S)
            answer = asyncio.ensure_future(actor.ask("wait", timeout_s=WAIT_S))
            await until(lambda: gate.inside == 1)
            stopping = asyncio.ensure_future(system.stop(actor))
            await asyncio.sleep(0)
            gate.open.set()
            assert await stopping == []
            with pytest.raises(tl.RequestFailed, match="ValueError: late"):
                await answer
            assert (log, system.actors()) == (["starting", "stopped"], [])
            assert bus.accounts()[""].balanced

    run(main())


def test_an_async_handler_that_does_not_end_is_stuck(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        done = asyncio.Event()

        class Stubborn(Actor):
            async def receive(self, what: str) -> None:
                while not done.is_set():
                    try:
                        await done.wait()
                    except asyncio.CancelledError:
                        continue

        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            actor = await system.spawn(Stubborn, name="stubborn", stuck_s=0.05)
            await actor.tell("wait")
            await until(lambda: system.registry["stubborn"].current is not None)
            stopping = asyncio.ensure_future(system.stop(actor))
            await until(lambda: "is stuck" in caplog.text)
            done.set()
            await stopping

    run(main())


# In its own process


@pytest.mark.slow
def test_a_busy_process_is_not_replaced_for_being_busy() -> None:
    """It exceeds its limit: the requester gets an error, and its process finishes before the next one starts."""

    async def main() -> None:
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            sleepy = await system.spawn(Sleepy, name="sleepy", process=True, timeout_s=0.2, stuck_s=WAIT_S)
            pid = await sleepy.ask(0.0, timeout_s=WAIT_S)
            with pytest.raises(tl.RequestFailed, match="HandlerTimeout"):
                await sleepy.ask(7.0, timeout_s=WAIT_S)
            assert (state_of(system), system.actors()[0].restarts) == ("restarting", 0)
            began = asyncio.get_running_loop().time()
            again = await sleepy.ask(0.0, timeout_s=WAIT_S)
            # Longer than a process that has nothing to do is given to end.
            assert asyncio.get_running_loop().time() - began > 5.5
            assert again != pid

    run(main())


@pytest.mark.slow
def test_a_process_that_is_stuck_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            sleepy = await system.spawn(Sleepy, name="sleepy", process=True, timeout_s=0.5, stuck_s=0.2)
            pid = await sleepy.ask(0.0, timeout_s=WAIT_S)
            with pytest.raises(tl.RequestFailed, match="HandlerTimeout"):
                await sleepy.ask(1000.0, timeout_s=WAIT_S)
            assert await sleepy.ask(0.0, timeout_s=WAIT_S) != pid
            assert "is stuck" in caplog.text

    caplog.set_level(logging.INFO)
    run(main())
