"""Plain `def` handlers, and actors in their own processes, can do everything that other actors can."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import trunkline as tl
from tests.actors.people import Busybody, Clerk, Cruncher, Echo
from tests.actors.running import run
from tests.journal.journals import until
from trunkline.actors import Actor, ActorSystem, Directive, Terminated
from trunkline.delivery.dead_letters import Cause


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["thread", "process"])
def process(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_everything(process: bool) -> None:
    async def main() -> None:
        log: list[Any] = []
        async with (
            tl.connect() as bus,
            bus.subscribe("news") as news,
            ActorSystem(bus, "shop") as system,
        ):
            await system.spawn(Clerk, log, name="clerk")
            echo = await system.spawn(Echo, name="echo")
            busy = await system.spawn(Busybody, name="busy", process=process, word="good day")
            await until(lambda: "good day from shop.busy" in log)
            assert await busy.ask(["ask", "shop.echo", 5]) == ["shop.echo", 5]
            assert await busy.ask(["ask order", "a1"]) == 12.0
            assert await busy.ask(["try", "no.such"]) is None
            assert await busy.ask(["tell", "shop.clerk", "told"]) == 36
            await until(lambda: "told" in log)
            assert await busy.ask(["publish", "news", 7]) == 36
            message = await news.recv(timeout_s=60)
            assert message is not None
            assert (message.decode(), message.sender) == (7, "shop.busy")
            assert await busy.ask(["spawn", "kid"]) == ["shop.busy.kid", "child"]
            assert next(each.parent for each in system.actors() if each.address == "shop.busy.kid") == "shop.busy"
            assert await busy.ask(["schedule", "key"]) is False
            await busy.ask(["watch", "shop.echo"])
            await system.stop(echo)
            rang: list[Any] = []
            while "rang key" not in rang or ["ended", "shop.echo"] not in rang:
                rang = await busy.ask(["log"])
            assert "never" not in rang
            await busy.tell(["become"])
            assert await busy.ask("x") == ["other", "x"]
            assert await busy.ask(["log"]) == rang
            stashed = asyncio.ensure_future(busy.ask(["stash"]))
            await until(lambda: bool(system.registry["busy"].stashed))
            assert await busy.ask("y") == ["other", "y"]
            assert await stashed == "taken up"
            await busy.tell(["stop"])
            await until(lambda: "stopped" in log)
            await until(lambda: [health.address for health in system.actors()] == ["shop.clerk"])

    run(main())


def test_errors_and_their_kinds(process: bool) -> None:
    """A requester gets the class, the text and the traceback of the error, also from another process."""

    async def main() -> None:
        log: list[Any] = []
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            await system.spawn(Clerk, log, name="clerk")
            on_error: dict[type[BaseException], Directive] = {LookupError: Directive.RESUME}
            busy = await system.spawn(Busybody, name="busy", process=process, on_error=on_error)
            await busy.tell("kept")
            with pytest.raises(tl.RequestFailed) as caught:
                await busy.ask(["fail", "key"])
            assert (caught.value.error_type, caught.value.detail) == ("KeyError", "'missing'")
            assert 'raise KeyError("missing")' in caught.value.traceback
            assert "in receive" in "".join(caught.value.__notes__)
            # It was resumed: it is the same incarnation.
            assert await busy.ask(["log"]) == ["kept"]
            with pytest.raises(tl.RequestFailed, match="Reject: not this"):
                await busy.ask(["reject"])
            assert bus.dead_letters.find(cause=Cause.REJECTED)
            assert await busy.ask(["log"]) == ["kept"]
            for kind, name in (("odd", "Odd"), ("unpicklable", "Unpicklable"), ("unsendable", "EncodeError")):
                with pytest.raises(tl.RequestFailed) as caught:
                    await busy.ask(["fail", kind])
                assert caught.value.error_type == name
                assert await busy.ask(["log"]) == []
            assert "failed: Odd ['fail', 'odd']" in log
            with pytest.raises(tl.RequestFailed, match=r"context\.blocking\.publish"):
                await busy.ask(["in the loop"])
            assert all(account.balanced for account in bus.accounts().values())

    run(main())


@pytest.mark.slow
def test_what_a_process_cannot_read_is_not_its_fault() -> None:
    async def main() -> None:
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            cruncher = await system.spawn(Cruncher, 100, name="cruncher", process=True)
            first = await cruncher.ask(1)
            with pytest.raises(tl.RequestFailed):
                await cruncher.ask("no number")
            with pytest.raises(tl.RequestFailed, match=r"InvalidPayload: .* does not match int"):
                await cruncher.ask(Terminated("x"))
            assert [letter.cause for letter in bus.dead_letters] == [Cause.INVALID_PAYLOAD] * 2
            assert (await cruncher.ask(1))[:1] == first[:1]
            assert [(health.kind, health.restarts) for health in system.actors()] == [("Cruncher", 0)]

    run(main())


def test_threads_that_ask_each_other_do_not_wait_for_a_thread() -> None:
    """More of them than a loop has threads by default: none waits for a thread of another."""

    class Link(Actor):
        def receive(self, left: int) -> int:
            if not left:
                return 0
            return 1 + int(self.context.blocking.request(f"shop.link{left - 1}", left - 1))

    async def main() -> None:
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            links = [await system.spawn(Link, name=f"link{number}") for number in range(50)]
            assert await links[-1].ask(49, timeout_s=100) == 49

    run(main())


def test_blocking_calls_are_not_for_the_event_loop() -> None:
    class Wrong(Actor):
        async def receive(self, message: str) -> None:
            self.context.blocking.send("shop.wrong", 1)

    async def main() -> None:
        async with tl.connect() as bus, ActorSystem(bus, "shop") as system:
            wrong = await system.spawn(Wrong, name="wrong")
            with pytest.raises(tl.RequestFailed, match=r"context\.blocking is for plain `def` handlers"):
                await wrong.ask("x")

    run(main())
