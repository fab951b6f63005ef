"""Time limits of executions: extended for waiting readers and for cleanup; partial results or an error by choice."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import trunkline as tl
from tests.jupyter.real import DEADLINE_S
from tests.jupyter.scenes import of, play, say_done
from tests.jupyter.scripted import ScriptedLink
from trunkline.jupyter import BlockingKernel, Execution, Kernel, start_kernel_blocking


def test_more_time_holds_for_those_who_wait_already() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, _: Execution) -> None:
        execution = await kernel.execute("code", timeout_s=10)
        waiting = asyncio.ensure_future(execution.result())
        await asyncio.sleep(5)
        execution.extend(1000)
        await asyncio.sleep(600)
        assert not waiting.done()
        say_done(kernel, link, execution)
        assert (await waiting).complete

    play(scene)


def test_more_time_holds_against_the_cleanup() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, _: Execution) -> None:
        execution = await kernel.execute("code", timeout_s=10)
        other = await kernel.execute("code", timeout_s=1000)
        execution.extend(1000)
        await asyncio.sleep(900)
        assert kernel.stats().stale_requests == 1, "the first execution of the scene has its own 300 s"
        link.say("iopub", "stream", {"name": "stdout", "text": "late, and taken"}, of(kernel, execution))
        assert execution.partial().stdout == "late, and taken"
        await asyncio.sleep(200)
        assert kernel.stats().stale_requests == 3
        assert not (await execution.result()).complete
        assert not (await other.result()).complete

    play(scene)


def test_less_time_than_there_is_changes_nothing() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        execution.extend(1)
        await asyncio.sleep(200)
        assert kernel.stats().active_requests == 1
        say_done(kernel, link, execution)
        assert (await execution.result()).complete

    play(scene)


def test_a_timeout_gives_what_came_or_raises() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        link.say("iopub", "stream", {"name": "stdout", "text": "so far"}, of(kernel, execution))
        assert (await execution.result(timeout_s=1)).stdout == "so far"
        with pytest.raises(tl.ExecutionTimeout, match=r"not complete after 1\.0 s") as raised:
            await execution.result(timeout_s=1, raise_on_timeout=True)
        assert raised.value.result.stdout == "so far"
        with pytest.raises(tl.ExecutionTimeout):
            await kernel.run("code", timeout_s=2, raise_on_timeout=True)
        say_done(kernel, link, execution)
        assert (await execution.result(raise_on_timeout=True)).complete

    play(scene)


def test_input_that_blocks_blocks_nobody_else() -> None:
    asked, typed = threading.Event(), threading.Event()

    def slowly(prompt: str, password: bool) -> str:
        asked.set()
        typed.wait(DEADLINE_S)
        return "typed"

    kernel: BlockingKernel
    with start_kernel_blocking() as kernel:
        execution = kernel.execute("print(input('who? '))", on_input=slowly)
        assert asked.wait(DEADLINE_S)
        # The loop of the kernel's client is free meanwhile.
        began = time.monotonic()
        assert kernel.stats().active_requests >= 1
        assert time.monotonic() - began < DEADLINE_S / 2
        typed.set()
        assert execution.result(timeout_s=DEADLINE_S).stdout == "typed\n"
