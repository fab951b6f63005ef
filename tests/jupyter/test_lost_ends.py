"""Executions whose reply or idle status is lost: noticed within seconds, not after their time limit."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import nbformat
import pytest

import trunkline as tl
from tests.jupyter.real import run
from tests.jupyter.scenes import of, play, say_done
from tests.jupyter.scripted import ScriptedLink, kernel_of
from trunkline.jupyter import Execution, Kernel, run_notebook, start_kernel
from trunkline.jupyter.wire import KernelMessage
from trunkline.testing import Simulation, simulate


def questions(link: ScriptedLink) -> list[KernelMessage]:
    """The requests to the kernel after the execution."""
    place = max(place for place, message in enumerate(link.sent) if message.msg_type == "execute_request")
    return [message for message in link.sent[place:] if message.msg_type == "kernel_info_request"]


def lossy(
    main: Callable[[Kernel, ScriptedLink, Simulation], Coroutine[Any, Any, None]],
    lost: Callable[[str, dict[str, Any], dict[str, Any]], bool],
) -> None:
    """A kernel that answers, on a wire that loses some of its messages: by type, content and parent."""

    class LossyLink(ScriptedLink):
        def say(self, socket: str, msg_type: str, content: dict[str, Any], parent: dict[str, Any]) -> None:
            if not lost(msg_type, content, parent):
                super().say(socket, msg_type, content, parent)

    async def play_lossy(simulation: Simulation) -> None:
        plain = kernel_of(simulation)[1]
        kernel, link = kernel_of(simulation, LossyLink(plain.world, plain.chance))
        await kernel.open()
        await main(kernel, link, simulation)
        await kernel.aclose()

    simulate(play_lossy)


def idle_of_executions(msg_type: str, content: dict[str, Any], parent: dict[str, Any]) -> bool:
    return content.get("execution_state") == "idle" and parent["msg_type"] == "execute_request"


def replies_of_executions(msg_type: str, content: dict[str, Any], parent: dict[str, Any]) -> bool:
    return msg_type == "execute_reply"


def test_a_lost_idle_is_noticed_and_named(caplog: pytest.LogCaptureFixture) -> None:
    async def main(kernel: Kernel, link: ScriptedLink, simulation: Simulation) -> None:
        began = simulation.now()
        execution = await kernel.execute("print('hello')")
        result = await execution.result()
        assert simulation.now() - began < 2
        assert (result.complete, result.lost, result.missing) == (False, True, ("the idle status",))
        assert (result.status, result.stdout, result.text) == ("ok", "hello\n", "2")
        assert kernel.stats().active_requests == 0
        with pytest.raises(tl.ExecutionFailed, match="not complete: the idle status did not arrive"):
            result.check()
        with pytest.raises(tl.ExecutionTimeout, match="the idle status did not arrive"):
            await kernel.run("print('hello')", raise_on_timeout=True)

    lossy(main, idle_of_executions)
    assert "the idle status was lost on the way. Outputs may be missing, too" in caplog.text


def test_a_lost_reply_is_noticed_and_named() -> None:
    async def main(kernel: Kernel, link: ScriptedLink, simulation: Simulation) -> None:
        began = simulation.now()
        result = await kernel.run("print('hello')", timeout_s=float("inf"))
        assert simulation.now() - began < 2
        assert (result.lost, result.status, result.missing) == (True, "open", ("the execute_reply",))

    lossy(main, replies_of_executions)


def test_a_notebook_whose_ends_are_lost_ends() -> None:
    async def main(kernel: Kernel, link: ScriptedLink, simulation: Simulation) -> None:
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1") for _ in range(3)])
        done = await run_notebook(kernel, book)
        assert simulation.now() < 10
        assert [result.lost for result in done.results.values()] == [True, True, True]
        assert done.ok
        assert all(cell.outputs for cell in book.cells)

    lossy(main, idle_of_executions)


def test_a_cell_of_a_notebook_whose_reply_is_lost_has_failed() -> None:
    async def main(kernel: Kernel, link: ScriptedLink, simulation: Simulation) -> None:
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1") for _ in range(3)])
        done = await run_notebook(kernel, book)
        assert (done.failed, done.skipped) == (0, 2)
        assert "interrupt_request" not in [message.msg_type for message in link.sent]

    lossy(main, replies_of_executions)


def test_what_the_question_is_answered_with_may_be_lost_too() -> None:
    left = [3]

    def lost(msg_type: str, content: dict[str, Any], parent: dict[str, Any]) -> bool:
        if msg_type != "status" or not executed:
            return False
        if parent["msg_type"] == "execute_request":
            return bool(content["execution_state"] == "idle")
        left[0] -= 1
        return left[0] > 0

    executed: list[Execution] = []

    async def main(kernel: Kernel, link: ScriptedLink, simulation: Simulation) -> None:
        await asyncio.sleep(5)
        executed.append(await kernel.execute("print('hello')"))
        result = await executed[0].result()
        assert result.lost
        assert len(questions(link)) == 2

    lossy(main, lost)


def test_nothing_is_asked_of_what_is_complete_in_time() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        link.say("shell", "execute_reply", {"status": "ok"}, of(kernel, execution))
        await asyncio.sleep(0.3)
        link.say("iopub", "status", {"execution_state": "idle"}, of(kernel, execution))
        assert (await execution.result()).complete
        await asyncio.sleep(60)
        assert questions(link) == []

    play(scene)


def test_an_idle_that_is_only_late_is_waited_for() -> None:
    """The output of a flood arrives after the reply, and the answer to the later request after that."""

    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        link.say("shell", "execute_reply", {"status": "ok"}, of(kernel, execution))
        await asyncio.sleep(5)
        (question,) = questions(link)
        about = {"msg_id": question.id, "session": kernel.session, "msg_type": "kernel_info_request"}
        link.say("shell", "kernel_info_reply", {"status": "ok"}, about)
        assert len(questions(link)) == 1
        await asyncio.sleep(100)
        assert len(questions(link)) == 2, "the second is not answered yet"
        assert not execution.ended.done()
        link.say("iopub", "stream", {"name": "stdout", "text": "the rest"}, of(kernel, execution))
        link.say("iopub", "status", {"execution_state": "idle"}, of(kernel, execution))
        result = await execution.result()
        assert (result.complete, result.lost, result.stdout) == (True, False, "the rest")

    play(scene)


def test_a_question_does_not_keep_an_execution_that_was_dropped(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, _: Execution) -> None:
        dropped = await kernel.execute("code")
        link.say("shell", "execute_reply", {"status": "ok"}, of(kernel, dropped))
        await asyncio.sleep(5)
        assert len(questions(link)) == 1
        del dropped
        gc.collect()
        await asyncio.sleep(1)
        assert "was dropped before it was complete" in caplog.text

    caplog.set_level(logging.WARNING)
    play(scene)


def test_a_subshell_is_asked_in_its_own_queue() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, _: Execution) -> None:
        execution = await kernel.execute("code", subshell_id="s1")
        link.say("shell", "execute_reply", {"status": "ok"}, of(kernel, execution))
        await asyncio.sleep(5)
        assert [getattr(question.header, "subshell_id", None) for question in questions(link)] == ["s1"]
        say_done(kernel, link, execution)

    play(scene)


def test_a_real_kernel_whose_idle_is_lost() -> None:
    async def main() -> None:
        async with start_kernel() as kernel:
            take = kernel.client.take

            def without_idle(messages: list[KernelMessage]) -> None:
                kept = [
                    message
                    for message in messages
                    if not (message.request_id == lost and message.content.get("execution_state") == "idle")
                ]
                if kept:
                    take(kept)

            lost = ""
            kernel.client.take = without_idle  # type: ignore[method-assign]
            execution = await kernel.execute("print('seen')")
            lost = execution.id
            result = await execution.result()
            assert (result.lost, result.stdout) == (True, "seen\n")
            assert (await kernel.run("1 + 1")).ok

    run(main())
