"""Errors that event loops and futures treat specially are ordinary failures of an actor."""

from __future__ import annotations

import asyncio
import logging

import pytest

import trunkline as tl
from tests.actors.running import run
from tests.journal.journals import until
from trunkline.actors import Actor, ActorSystem, Restart
from trunkline.delivery.dead_letters import Cause

ERRORS: dict[str, type[BaseException]] = {
    error.__name__: error for error in (GeneratorExit, StopIteration, StopAsyncIteration, asyncio.CancelledError)
}


class InLoop(Actor):
    async def receive(self, what: str) -> str:
        if what in ERRORS:
            raise ERRORS[what]
        return what


class InThread(Actor):
    def receive(self, what: str) -> str:
        if what in ERRORS:
            raise ERRORS[what]
        return what


@pytest.mark.parametrize("kind", [InLoop, InThread])
def test_odd_errors_are_failures(kind: type[Actor]) -> None:
    """A requester gets the error at once, and a new incarnation continues."""

    async def main() -> None:
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            actor = await system.spawn(kind, name="odd", restart=Restart(backoff_s=0.001, max_backoff_s=0.001))
            for number, name in enumerate(ERRORS):
                with pytest.raises(tl.RequestFailed):
                    await actor.ask(name, timeout_s=100)
                assert await actor.ask("fine", timeout_s=100) == "fine"
                assert system.actors()[0].restarts == number + 1
            assert [letter.cause for letter in bus.dead_letters] == [Cause.HANDLER_FAILED] * len(ERRORS)
            assert bus.accounts()["shop.odd"].balanced

    run(main())


def test_a_hook_that_does_not_end_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(Actor):
        async def receive(self, what: str) -> str:
            return what

        async def stopped(self) -> None:
            await may_end.wait()

    may_end = asyncio.Event()

    async def main() -> None:
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            slow = await system.spawn(Slow, name="slow", stuck_s=0.01)
            ending = asyncio.ensure_future(system.stop(slow))
            await until(lambda: "Slow.stopped has not returned yet" in caplog.text)
            may_end.set()
            await ending

    caplog.set_level(logging.ERROR)
    run(main())
