"""Errors while messages from another process arrive at actors: an error affects one message, never the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import trunkline as tl
from tests.actors.people import Clerk
from tests.actors.running import run
from tests.journal.journals import until
from trunkline.actors import ActorSystem
from trunkline.actors.arrivals import Arrivals
from trunkline.actors.errors import ActorFailed
from trunkline.actors.ref import Ref
from trunkline.delivery.dead_letters import Cause
from trunkline.delivery.inbox import Inbox
from trunkline.hooks import Hook
from trunkline.message import Message, MessageType
from trunkline.topic import endpoint

POISON = b"poison"


@asynccontextmanager
async def intake(
    place: Path, system_of: type[ActorSystem] = ActorSystem
) -> AsyncIterator[tuple[Arrivals, ActorSystem, Ref, list[Message]]]:
    """An intake that fails on messages with poison, its target, and the messages that arrived."""
    url = f"unix://{place}/hub.sock"
    async with tl.connect(url, name="one", embed=True) as here, tl.connect(url, name="two") as there:
        system = system_of(there, "bank")
        system.loop = asyncio.get_running_loop()
        came: list[Message] = []

        def route(message: Message) -> tuple[Inbox, ...]:
            if message.payload == POISON:
                raise LookupError("nobody knows the way")
            came.append(message)
            return ()

        arrivals = Arrivals(system, route)
        await arrivals.open([f"{endpoint('bank')}.>"])
        await there.flush()
        try:
            yield arrivals, system, Ref(here, "bank.clerk"), came
        finally:
            await arrivals.aclose()


@pytest.mark.parametrize("own", [False, True])
def test_an_error_on_the_way_in_concerns_its_message_alone(
    tmp_path: Path, own: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Also if an actor has its own subscription."""

    async def main() -> None:
        async with intake(tmp_path) as (arrivals, system, clerk, came):
            if own:
                await arrivals.attend(clerk.topic)
                await system.bus.flush()
            await clerk.tell(b"before")
            await clerk.tell(POISON)
            with pytest.raises(tl.RequestFailed, match="nobody knows the way"):
                await clerk.ask(POISON)
            await clerk.tell(b"after")
            await until(lambda: len(came) == 2)
            assert [message.payload for message in came] == [b"before", b"after"]
            letters = system.bus.dead_letters.find(cause=Cause.HANDLER_FAILED)
            assert [letter.message.type for letter in letters] == [MessageType.PUBLISH, MessageType.REQUEST]
            for letter in letters:
                assert letter.subscriber == "bank.clerk"
                assert "LookupError: nobody knows the way" in letter.reason
                assert "in route" in letter.traceback

    run(main())
    assert "is a dead letter: LookupError: nobody knows the way" in caplog.text


def test_an_intake_that_cannot_go_on_ends_its_system_loudly(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Unburied(ActorSystem):
        def bury(self, *_: Any, **__: Any) -> None:
            raise OSError("no space left")

    async def main() -> None:
        async with intake(tmp_path, Unburied) as (_, system, clerk, _came):
            await clerk.tell(POISON)
            await until(lambda: system.failure is not None)
            assert isinstance(system.failure, ActorFailed)
            assert "its subscription to _to.bank.> ended: OSError: no space left" in str(system.failure)

    run(main())
    assert "actor system bank no longer receives messages on _to.bank.>" in caplog.text


class Picky(Hook):
    def open(self, message: Message) -> Message:
        if message.payload == POISON:
            raise ZeroDivisionError("a defect of the hook")
        return message


def test_a_hook_that_fails_to_open_one_message_does_not_end_the_intake(tmp_path: Path) -> None:
    async def main() -> None:
        place = f"unix://{tmp_path}/hub.sock"
        log: list[Any] = []
        async with (
            tl.connect(place, name="one", embed=True) as here,
            tl.connect(place, name="two", hooks=[Picky()]) as there,
            ActorSystem(there, "bank") as bank,
        ):
            await bank.spawn(Clerk, log, name="clerk")
            await there.flush()
            clerk = Ref(here, "bank.clerk")
            await clerk.tell(POISON)
            assert await clerk.ask("again") == "again"
            (letter,) = there.dead_letters.find(cause=Cause.INVALID_PAYLOAD)
            assert "the hook Picky cannot open it: ZeroDivisionError: a defect of the hook" in letter.reason

    run(main())
