"""Eager steps: a request runs an idle handler at once, as the handler's own task. Nothing else changes."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from buses import on_bus

import trunkline as tl
from tests.transports.wires import LOOPS, Run, begin_what_lasts
from trunkline.delivery.eager import MAX_DEPTH, MAX_IN_A_ROW, EagerSteps
from trunkline.delivery.requests import Why
from trunkline.hooks.hook import Batch, Forward

place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")


class Turns:
    """Counts the iterations of the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._count)
        self.count = 0

    def _count(self) -> None:
        self.count += 1
        self._handle = self._loop.call_soon(self._count)

    def stop(self) -> None:
        self._handle.cancel()


async def warm(bus: tl.Bus, topic: str) -> None:
    """The first request on a topic has no route yet, and handlers start in the next iteration."""
    await bus.request(topic, b"first", reply=tl.Message)


async def turns_of(call: Callable[[], Awaitable[object]]) -> int:
    turns = Turns()
    await call()
    turns.stop()
    return turns.count


def test_an_idle_handler_answers_without_a_turn_of_the_loop() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("echo")
        async def echo(payload: bytes) -> bytes:
            return payload

        await warm(bus, "echo")
        assert await turns_of(lambda: bus.request("echo", b"x", reply=bytes)) == 0
        assert bus.stats().open_requests == 0

    on_bus(main)


@pytest.fixture(scope="session")
def pipe_of_uvloop() -> None:
    """The first loop of a process creates it, and it is kept."""
    begin_what_lasts()


@pytest.mark.parametrize("run", LOOPS.values(), ids=LOOPS)
@pytest.mark.usefixtures("pipe_of_uvloop")
def test_it_does_on_the_loops_that_people_use(run: Run) -> None:
    async def main() -> None:
        async with tl.connect() as bus:
            tasks: set[object] = set()

            @bus.on("echo")
            async def echo(payload: bytes) -> bytes:
                tasks.add(asyncio.current_task())
                if payload == b"wait":
                    await asyncio.sleep(0)
                return payload

            await warm(bus, "echo")
            assert await turns_of(lambda: bus.request("echo", b"x", reply=bytes)) == 0
            assert await turns_of(lambda: bus.request("echo", b"wait", reply=bytes)) > 0
            assert len(tasks) == 1
            assert asyncio.current_task() not in tasks

    run(main())


def test_with_eager_steps_switched_off_it_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EagerSteps, "enabled", False)

    async def main(bus: tl.Bus) -> None:
        @bus.on("echo")
        async def echo(payload: bytes) -> bytes:
            return payload

        await warm(bus, "echo")
        assert await turns_of(lambda: bus.request("echo", b"x", reply=bytes)) > 0

    on_bus(main)


def test_members_of_a_group_and_monitors_run_at_once_too() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[str] = []

        @bus.on(">")
        async def monitor(message: tl.Message) -> None:
            seen.append(message.topic)

        @bus.on("echo", group="echoes")
        async def one(payload: bytes) -> bytes:
            return b"one"

        @bus.on("echo", group="echoes")
        async def two(payload: bytes) -> bytes:
            return b"two"

        await warm(bus, "echo")
        answers: set[bytes] = set()

        async def ask() -> None:
            answers.add(await bus.request("echo", b"x", reply=bytes))

        assert await turns_of(ask) == 0
        assert await turns_of(ask) == 0
        assert answers == {b"one", b"two"}
        await bus.quiet()
        assert seen.count("echo") == 3

    on_bus(main)


def test_an_idle_handler_runs_when_the_hooks_are_done_with_the_request() -> None:
    order: list[str] = []

    async def hook(batch: Batch, forward: Forward) -> None:
        await forward(batch)
        order.append(f"hook {batch[0].topic[:6]}")

    async def main(bus: tl.Bus) -> None:
        @bus.on("echo")
        async def echo(payload: bytes) -> bytes:
            order.append("handler")
            return payload

        await warm(bus, "echo")
        order.clear()
        assert await turns_of(lambda: bus.request("echo", b"x", reply=bytes)) == 0
        assert order == ["hook echo", "handler", "hook _reply"]

    on_bus(main, hooks=[hook])


@pytest.mark.usefixtures("both_ways")
def test_a_hook_that_waits_after_the_request_does_not_hold_up_the_handler() -> None:
    async def hook(batch: Batch, forward: Forward) -> None:
        await forward(batch)
        if batch[0].type is tl.MessageType.REQUEST:
            await asyncio.sleep(5.0)

    async def main(bus: tl.Bus) -> None:
        loop = asyncio.get_running_loop()
        handled: list[float] = []

        @bus.on("echo")
        async def echo(payload: bytes) -> bytes:
            handled.append(loop.time())
            return payload

        await warm(bus, "echo")
        began = loop.time()
        assert await bus.request("echo", b"x", reply=bytes) == b"x"
        assert handled[1] == began
        assert loop.time() - began == pytest.approx(5.0)

    on_bus(main, hooks=[hook])


def test_the_handler_runs_as_its_own_task_in_its_own_context() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[tuple[asyncio.Task[Any] | None, str]] = []
        place.set("where the handler was registered")

        @bus.on("where")
        async def where() -> str:
            seen.append((asyncio.current_task(), place.get()))
            place.set("where the handler has been")
            return "here"

        await warm(bus, "where")
        place.set("at the asker")
        asker = asyncio.current_task()
        for _ in range(2):
            await bus.request("where")
            assert asyncio.current_task() is asker
            assert place.get() == "at the asker"
        tasks = {task for task, _ in seen}
        assert len(tasks) == 1
        assert asker not in tasks
        assert [at for _, at in seen] == [
            "where the handler was registered",
            "where the handler has been",
            "where the handler has been",
        ]

    on_bus(main)


def test_a_timeout_in_the_handler_is_the_handlers() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("slow")
        async def slow() -> str:
            try:
                async with asyncio.timeout(1.0):
                    await asyncio.sleep(10.0)
            except TimeoutError:
                return "out of time"
            return "in time"

        await asyncio.sleep(0)
        for _ in range(3):
            assert await bus.request("slow") == "out of time"
        # One around the asker ends the asker, not the handler.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await bus.request("slow")
        await bus.quiet()
        assert [orphan.why for orphan in bus.orphans] == [Why.LATE]

    on_bus(main)


def test_a_loop_of_requests_lets_others_run() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("echo")
        async def echo(payload: bytes) -> bytes:
            return payload

        await warm(bus, "echo")
        turns = Turns()
        requests = 20 * MAX_IN_A_ROW
        for _ in range(requests):
            await bus.request("echo", b"x")
        turns.stop()
        assert turns.count >= requests // MAX_IN_A_ROW

    on_bus(main)


def test_two_that_ask_in_a_loop_both_get_on() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("echo")
        async def echo(payload: bytes) -> bytes:
            return payload

        await warm(bus, "echo")
        done = {"a": 0, "b": 0}
        apart = 0

        async def ask(who: str) -> None:
            nonlocal apart
            while min(done.values()) < 200:
                await bus.request("echo", b"x")
                done[who] += 1
                apart = max(apart, abs(done["a"] - done["b"]))

        await asyncio.gather(ask("a"), ask("b"))
        assert apart <= 4 * MAX_IN_A_ROW

    on_bus(main)


def test_a_chain_of_handlers_is_not_run_deeper_than_is_safe() -> None:
    async def main(bus: tl.Bus) -> None:
        length = 5 * MAX_DEPTH
        deepest = 0
        steps = bus.broker.served.eager

        def link(number: int) -> None:
            async def ask_the_next() -> int:
                nonlocal deepest
                deepest = max(deepest, steps.depth)
                return 1 if number == length else 1 + await bus.request(f"link.{number + 1}", reply=int)

            bus.handle(f"link.{number}", ask_the_next)

        for number in range(1, length + 1):
            link(number)
        await asyncio.sleep(0)
        for _ in range(2):
            assert await bus.request("link.1", reply=int) == length
        assert deepest == MAX_DEPTH
        assert steps.depth == 0

    on_bus(main)


@pytest.mark.usefixtures("both_ways")
def test_a_handler_that_asks_itself_waits_for_itself() -> None:
    async def main(bus: tl.Bus) -> None:
        asked = 0

        @bus.on("self", retry=tl.Retry(attempts=1))
        async def ask_myself() -> str:
            nonlocal asked
            asked += 1
            if asked == 2:
                await bus.request("self", timeout_s=1.0)
            return "asked"

        await warm(bus, "self")
        with pytest.raises(tl.RequestFailed, match="no answer"):
            await bus.request("self")
        await bus.quiet()
        assert asked == 3
        assert [orphan.why for orphan in bus.orphans] == [Why.LATE]

    on_bus(main)


@pytest.mark.usefixtures("both_ways")
def test_two_workers_of_one_handler_may_ask_each_other() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("count", concurrency=3)
        async def count(number: int) -> int:
            return 0 if number == 0 else 1 + await bus.request("count", number - 1, reply=int)

        await asyncio.sleep(0)
        for _ in range(3):
            assert await bus.request("count", 2, reply=int) == 2

    on_bus(main)


@pytest.mark.usefixtures("both_ways")
def test_an_asker_that_is_cancelled_while_the_handler_waits_leaves_nothing() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("slow")
        async def slow() -> str:
            await asyncio.sleep(1.0)
            return "done"

        await asyncio.sleep(0)
        await bus.request("slow")
        asker = asyncio.create_task(bus.request("slow"))
        await asyncio.sleep(0.5)
        assert bus.stats().open_requests == 1
        assert bus.pending() == 1
        asker.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asker
        assert bus.stats().open_requests == 0
        await bus.quiet()
        assert bus.accounts()["slow"].delivered == 2
        assert [orphan.why for orphan in bus.orphans] == [Why.LATE]

    on_bus(main)


@pytest.mark.usefixtures("both_ways")
def test_an_asker_that_its_handler_cancels_is_cancelled() -> None:
    async def main(bus: tl.Bus) -> None:
        went_on = False

        @bus.on("cancel")
        async def cancel() -> str:
            asker.cancel()
            return "cancelled"

        async def ask() -> None:
            nonlocal went_on
            await bus.request("cancel")
            await asyncio.sleep(0)
            went_on = True

        asker: asyncio.Task[Any] = asyncio.create_task(asyncio.sleep(0))
        await warm(bus, "cancel")
        asker = asyncio.create_task(ask())
        with pytest.raises(asyncio.CancelledError):
            await asker
        assert not went_on
        await bus.quiet()

    on_bus(main)


@pytest.mark.usefixtures("both_ways")
def test_a_request_is_due_while_its_handler_waits() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("slow")
        async def slow() -> str:
            await asyncio.sleep(3.0)
            return "done"

        await asyncio.sleep(0)
        await bus.request("slow")
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(tl.RequestTimeout):
            await bus.request("slow", timeout_s=1.0)
        assert loop.time() - began == pytest.approx(1.0)
        await bus.quiet()
        assert [orphan.why for orphan in bus.orphans] == [Why.LATE]

    on_bus(main)


@pytest.mark.usefixtures("both_ways")
def test_what_fails_at_once_is_tried_again_and_answered() -> None:
    async def main(bus: tl.Bus) -> None:
        attempts: list[int] = []

        @bus.on("moody", retry=tl.Retry(attempts=3))
        async def moody(message: tl.Message) -> str:
            attempts.append(message.attempts)
            if message.attempts < 2:
                raise ValueError("not yet")
            return "now"

        await asyncio.sleep(0)
        for _ in range(2):
            assert await bus.request("moody") == "now"
        assert attempts == [0, 1, 2] * 2
        assert bus.accounts()["moody"].delivered == 2

    on_bus(main)


@pytest.mark.usefixtures("both_ways")
def test_the_asker_s_own_error_is_no_part_of_the_handler_s() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("fails", retry=tl.Retry(attempts=1))
        async def fails() -> str:
            raise ValueError("of the handler")

        await asyncio.sleep(0)
        for _ in range(2):
            try:
                raise KeyError("of the asker")
            except KeyError:
                with pytest.raises(tl.RequestFailed):
                    await bus.request("fails")
        assert all("of the asker" not in letter.traceback for letter in bus.dead_letters)
        assert len(bus.dead_letters) == 2

    on_bus(main)


@pytest.mark.usefixtures("both_ways")
def test_a_handler_that_closes_its_bus() -> None:
    async def main(bus: tl.Bus) -> None:
        @bus.on("close")
        async def close(payload: str) -> str:
            if payload == "now":
                asyncio.get_running_loop().call_later(1.0, lambda: None)
                closing.append(asyncio.create_task(bus.aclose()))
                await asyncio.sleep(0.5)
            return "closed"

        closing: list[asyncio.Task[Any]] = []
        await bus.request("close", "not yet")
        # It may finish what it is at, and its answer arrives.
        assert await bus.request("close", "now") == "closed"
        await asyncio.gather(*closing)
        with pytest.raises(tl.BusClosed):
            await bus.request("close", "again")

    on_bus(main)


@pytest.mark.usefixtures("both_ways")
def test_a_handler_that_is_ended_while_it_waits_gives_its_message_a_fate() -> None:
    async def main(bus: tl.Bus) -> None:
        async def slow() -> str:
            await asyncio.sleep(5.0)
            return "done"

        handler = bus.handle("slow", slow, name="slow")
        await asyncio.sleep(0)
        await bus.request("slow")
        asker = asyncio.create_task(bus.request("slow", timeout_s=2.0))
        await asyncio.sleep(1.0)
        await handler.aclose()
        with pytest.raises(tl.RequestTimeout):
            await asker
        (asked,) = bus.history(pattern="slow")[1:]
        (outcome,) = (await bus.explain(asked.id)).outcomes
        assert (outcome.subscriber, outcome.fate) == ("slow", tl.Fate.DROPPED)

    on_bus(main)


@pytest.mark.usefixtures("both_ways")
def test_what_is_being_handled_is_in_flight() -> None:
    async def main(bus: tl.Bus) -> None:
        seen: list[tuple[Any, ...]] = []

        @bus.on("look")
        async def look(message: tl.Message) -> str:
            for _ in range(2):
                account = bus.accounts()["look"]
                (outcome,) = (await bus.explain(message.id)).outcomes
                seen.append((bus.pending(), account.in_flight, account.balanced, outcome.fate, outcome.reason))
                await asyncio.sleep(0.1)
            return "seen"

        await asyncio.sleep(0)
        for _ in range(2):
            await bus.request("look")
        await bus.quiet()
        assert seen == [(1, 1, True, tl.Fate.IN_FLIGHT, "being handled, attempt 1")] * 4

    on_bus(main)


def test_both_ways_leave_the_same_books(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(bus: tl.Bus) -> list[Any]:
        @bus.on("sum")
        async def add(numbers: list[int]) -> int:
            if not numbers:
                raise ValueError("nothing to add")
            if len(numbers) == 1:
                return numbers[0]
            await bus.publish("adding", numbers)
            return numbers[0] + await bus.request("rest", numbers[1:], reply=int)

        @bus.on("rest", concurrency=2)
        async def rest(numbers: list[int]) -> int:
            if len(numbers) % 2:
                await asyncio.sleep(0.1)
            return sum(numbers)

        @bus.on("*")
        async def monitor(message: tl.Message) -> None:
            topics.append(message.topic)

        topics: list[str] = []
        answers: list[object] = []
        for numbers in ([1], [1, 2], [1, 2, 3], [], [4, 5, 6, 7], [8]):
            try:
                answers.append(await bus.request("sum", numbers, reply=int))
            except tl.RequestFailed as error:
                answers.append(str(error.detail))
        await bus.quiet()
        history = bus.history()
        fates = [
            (message.topic, sorted((each.subscriber, each.fate) for each in (await bus.explain(message.id)).outcomes))
            for message in history
        ]
        stats = bus.stats()
        counted = (stats.total_messages, stats.unrouted, stats.orphans, dict(stats.per_topic), dict(stats.per_sender))
        kinds = [(message.topic, message.type, message.payload, message.seq) for message in history]
        letters = [
            (letter.message.seq, letter.cause, letter.reason, len(letter.attempts)) for letter in bus.dead_letters
        ]
        return [answers, sorted(topics), kinds, fates, bus.accounts(), letters, counted]

    eager = on_bus(main)
    monkeypatch.setattr(EagerSteps, "enabled", False)
    assert eager == on_bus(main)
