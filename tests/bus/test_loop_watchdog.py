"""A handler that blocks the event loop is logged with its line. In real time: blocking code ignores virtual time."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

import trunkline as tl
from trunkline.bus.loop_watchdog import watch_loop

WATCHED = tl.Settings(warn_blocked_s=0.2)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "has blocked the event loop" in record.getMessage()]


def watchdogs() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "trunkline loop watchdog"]


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if line.endswith(f"# {text}"))
    return number


@pytest.mark.parametrize("way", ["plain", "guarded"])
def test_a_handler_that_blocks_is_named_once_with_its_line(way: str, caplog: pytest.LogCaptureFixture) -> None:
    def blocks(calls: int) -> None:
        """Until the watchdog has logged, or would have logged a second time."""
        deadline = time.monotonic() + (60 if calls == 1 else 1)
        while time.monotonic() < deadline and len(warnings(caplog)) < calls:
            time.sleep(0.01)

    place = f"{__file__}:{line_of('where it blocks')}"

    async def main() -> None:
        async with tl.connect("memory:", settings=WATCHED) as bus:
            calls = 0

            @bus.on("orders.*", name="bill", timeout_s=None if way == "plain" else 100)
            async def bill(order: int) -> None:
                nonlocal calls
                calls += 1
                blocks(calls)  # where it blocks

            await bus.publish("orders.placed", 1)
            await bus.quiet()
            (text,) = warnings(caplog)
            assert f"the handler bill has blocked the event loop for more than 0.2 s, at {place}:" in text
            assert "asyncio.to_thread" in text
            await bus.publish("orders.placed", 2)
            await bus.quiet()
            assert calls == 2
            assert len(warnings(caplog)) == 1, "each place is named once"

    asyncio.run(main())


def test_handlers_that_wait_and_handlers_in_threads_do_not_block(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with tl.connect("memory:", settings=WATCHED) as bus:

            @bus.on("a")
            async def waits(number: int) -> None:
                await asyncio.sleep(0.7)

            @bus.on("b")
            def works(number: int) -> None:
                time.sleep(0.7)

            await bus.publish("a", 1)
            await bus.publish("b", 1)
            await bus.quiet()
            assert watchdogs()

    asyncio.run(main())
    assert not warnings(caplog)


def test_one_thread_for_each_event_loop_while_a_bus_has_coroutines() -> None:
    async def nothing(number: int) -> None: ...

    def at_once(number: int) -> None: ...

    async def main() -> None:
        async with tl.connect("memory:") as one, tl.connect("memory:") as other:
            one.on("t")(at_once)
            assert not watchdogs()
            one.on("t")(nothing)
            other.on("t")(nothing)
            assert len(watchdogs()) == 1
            await one.aclose()
            assert len(watchdogs()) == 1
        assert not watchdogs()
        async with tl.connect("memory:", settings=tl.Settings(warn_blocked_s=None)) as off:
            off.on("t")(nothing)
            assert not watchdogs()

    asyncio.run(main())


def test_a_loop_that_is_closed_is_not_watched() -> None:
    async def main() -> None:
        assert watch_loop(0.2) is not None

    asyncio.run(main())
    deadline = time.monotonic() + 60
    while watchdogs() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not watchdogs()
