"""Ctrl-C ends a program soon, without a traceback. Waiting durable work is redelivered after a restart."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import trunkline as tl

PROGRAM = """
import asyncio
import signal
import trunkline as tl

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever starts the tests may ignore it


async def main():
    async with tl.connect("memory:", journal="journal", settings=tl.Settings(drain_s=120)) as bus:
        started = asyncio.Event()

        @bus.on("work", name="worker", durable=True, start="beginning")
        async def work(number: int) -> None:
            started.set()
            await asyncio.Event().wait()

        await bus.publish("work", 1)
        await started.wait()
        print("works", flush=True)
        await asyncio.Event().wait()


tl.run(main())
"""


@pytest.mark.slow
def test_ctrl_c_while_durable_work_waits(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "works\n"
        pressed = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert errors == "closed with 1 message unfinished: see the result of aclose()\n"
    # It does not wait for the handler, which would take the two minutes of drain_s.
    assert time.monotonic() - pressed < 60

    async def again() -> None:
        async with (
            tl.connect("memory:", journal=tmp_path / "journal") as bus,
            bus.subscribe("work", name="worker", durable=True) as work,
        ):
            message = await work.recv(timeout_s=60)
            assert message is not None
            assert message.decode() == 1
            work.ack(message)

    asyncio.run(again())


def test_a_block_that_is_cancelled_still_waits_for_work_that_would_be_lost() -> None:
    handled = list[int]()

    async def main(started: asyncio.Event) -> None:
        async with tl.connect("memory:") as bus:

            @bus.on("work")
            async def work(number: int) -> None:
                await asyncio.sleep(0.01)
                handled.append(number)

            await bus.publish("work", 1)
            started.set()
            await asyncio.Event().wait()

    async def cancelled() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(main(started))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert handled == [1]


BLOCKING = """
import signal
import sys
import threading
import trunkline as tl

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever starts the tests may ignore it
durable = sys.argv[1] == "durable"

with tl.connect_blocking("memory:", journal="journal", settings=tl.Settings(drain_s=120)) as bus:

    def work(number: int) -> None:
        print("works", flush=True)
        threading.Event().wait(600)

    bus.handle("work", work, **({"name": "worker", "durable": True, "start": "beginning"} if durable else {}))
    bus.publish("work", 1)
    threading.Event().wait(600)
"""


def blocking(tmp_path: Path, kind: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", BLOCKING, kind], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "works\n"
    return process


@pytest.mark.slow
def test_ctrl_c_does_not_wait_for_a_function_in_a_thread_whose_message_comes_again(tmp_path: Path) -> None:
    process = blocking(tmp_path, "durable")
    try:
        process.send_signal(signal.SIGINT)
        # The function, and drain_s, take minutes.
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert errors.startswith("closed with 1 message unfinished: see the result of aclose()\nTraceback ")
    assert errors.endswith("\nKeyboardInterrupt\n")
    with (
        tl.connect_blocking("memory:", journal=tmp_path / "journal") as bus,
        bus.subscribe("work", name="worker", durable=True) as again,
    ):
        message = again.recv(timeout_s=60)
        assert message is not None
        assert message.decode() == 1
        again.ack(message)


@pytest.mark.slow
def test_ctrl_c_says_what_is_waited_for_and_a_second_one_ends_that(tmp_path: Path) -> None:
    process = blocking(tmp_path, "plain")
    try:
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.readline() == (
            "waiting up to 120 s for handlers to finish: work. Press Ctrl-C again to stop now\n"
        )
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert errors.startswith("closed with 1 message unfinished: see the result of aclose()\nTraceback ")
    assert errors.endswith("\nKeyboardInterrupt\n")


def test_a_function_in_a_thread_is_waited_for_when_nobody_interrupts() -> None:
    handled = list[int]()
    begun, go_on = threading.Event(), threading.Event()

    async def main() -> None:
        async with tl.connect("memory:", settings=tl.Settings(drain_s=0)) as bus:

            @bus.on("work")
            def work(number: int) -> None:
                begun.set()
                go_on.wait(60)
                handled.append(number)

            await bus.publish("work", 1)
            await asyncio.to_thread(begun.wait, 60)
        go_on.set()

    asyncio.run(main())
    assert handled == [1]


def test_an_error_of_a_program_without_uvloop_is_the_only_one_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    async def main() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as error:
        tl.run(main())
    assert error.value.__context__ is None
