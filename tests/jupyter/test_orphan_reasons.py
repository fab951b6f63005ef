"""Reasons for messages without a request: each cause has its own, and every decision is traced."""

from __future__ import annotations

import asyncio
import gc

import pytest

from tests.jupyter.scenes import of, play, say_done
from tests.jupyter.scripted import ScriptedLink, kernel_of
from trunkline.delivery.requests import Why
from trunkline.jupyter import Execution, Kernel
from trunkline.testing import Simulation, simulate

TEXT = {"name": "stdout", "text": "x"}


def test_each_cause_has_a_reason() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        mine = of(kernel, execution)
        link.say("iopub", "status", {"execution_state": "starting"}, {})
        early = kernel.client.compose("shell", "execute_request", {"code": ""})
        link.say("iopub", "stream", TEXT, {**mine, "msg_id": early.id})
        link.say("iopub", "stream", TEXT, {**mine, "msg_id": "never sent"})
        link.say("iopub", "made_up", {}, mine)
        execution.close()
        link.say("iopub", "stream", TEXT, mine)
        answered = await kernel.execute("code")
        say_done(kernel, link, answered)
        stale = await kernel.execute("code", timeout_s=10)
        await asyncio.sleep(100)
        link.say("iopub", "stream", TEXT, of(kernel, answered))
        link.say("iopub", "stream", TEXT, of(kernel, stale))
        reasons = ["no_request_id", "early", "wrong_id", "unknown_type", "closed", "answered", "stale"]
        assert kernel.stats().orphans == dict.fromkeys(reasons, 1)
        assert [orphan.why for orphan in kernel.orphans] == [Why.ANSWERED, Why.STALE]
        routed = kernel.stats().routed
        assert routed.total == routed.to_requests + routed.late + routed.others + routed.broadcast + routed.orphaned

    play(scene)


def test_what_names_no_request_is_an_orphan_whatever_its_type() -> None:
    async def main(simulation: Simulation) -> None:
        kernel, link = kernel_of(simulation)
        await kernel.open()
        await asyncio.sleep(1)
        for kind in ("debug_event", "shutdown_reply"):
            link.say("iopub", kind, {}, {})
        found = [(orphan.message.topic.rpartition(".")[2], orphan.why) for orphan in kernel.orphans]
        assert found == [(kind, Why.NO_REQUEST_ID) for kind in ("iopub_welcome", "debug_event", "shutdown_reply")]
        await kernel.aclose()

    simulate(main)


def test_an_execution_that_is_dropped_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        dropped = await kernel.execute("code")
        parent = of(kernel, dropped)
        del dropped
        gc.collect()
        await asyncio.sleep(0)
        link.say("iopub", "stream", TEXT, parent)
        assert [orphan.why for orphan in kernel.orphans] == [Why.DROPPED]
        assert (kernel.stats().dropped_requests, kernel.stats().active_requests) == (1, 1)
        assert execution.partial().status == "open"

    play(scene)
    assert "was dropped before it was complete" in caplog.text


def test_whoever_reads_a_channel_or_gives_input_has_not_dropped_it() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        stream = (await kernel.execute("code")).stream
        asking = (await kernel.execute("input()", on_input=lambda prompt, password: "typed")).id
        gc.collect()
        await asyncio.sleep(0)
        assert kernel.stats().dropped_requests == 0
        link.say("iopub", "stream", TEXT, {"msg_id": link.sent[-2].id, "session": kernel.session})
        got = await stream.recv(timeout_s=1)
        assert got is not None
        assert asking == link.sent[-1].id

    play(scene)


def test_an_update_reaches_the_one_that_sent_it_and_the_one_that_shows_it() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        shown = {"data": {"text/plain": "0 %"}, "metadata": {}, "transient": {"display_id": "bar"}}
        link.say("iopub", "display_data", shown, of(kernel, execution))
        other = await kernel.execute("update")
        for percent in (50, 100):
            changed = {**shown, "data": {"text/plain": f"{percent} %"}}
            link.say("iopub", "update_display_data", changed, of(kernel, other))
        assert [output["data"]["text/plain"] for output in execution.partial().outputs] == ["100 %"]
        assert "display_id" not in execution.partial().outputs[0]
        assert (execution.partial().late, execution.late.depth, execution.display.depth) == (0, 0, 1)
        assert (other.partial().outputs, other.display.depth) == ((), 2)
        say_done(kernel, link, execution)
        link.say("iopub", "update_display_data", {**shown, "data": {"text/plain": "done"}}, of(kernel, other))
        assert (execution.partial().late, other.display.depth) == (1, 3)
        assert execution.partial().outputs[0]["data"]["text/plain"] == "done"

    play(scene)


def test_every_decision_is_traced(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(5, "trunkline.jupyter")
    shown = {"data": {}, "metadata": {}, "transient": {"display_id": "bar"}}

    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        mine = of(kernel, execution)
        link.say("iopub", "stream", TEXT, mine)
        link.say("iopub", "stream", TEXT, {"msg_id": "y", "session": kernel.session})
        link.say("iopub", "comm_open", {"comm_id": "c", "target_name": "t", "data": {}}, mine)
        link.say("iopub", "comm_msg", {"comm_id": "c", "data": {}}, {})
        link.say("iopub", "display_data", shown, mine)
        other = await kernel.execute("update")
        link.say("iopub", "update_display_data", shown, of(kernel, other))
        other.close()
        link.say("iopub", "update_display_data", shown, of(kernel, other))
        say_done(kernel, link, execution)
        link.say("iopub", "stream", TEXT, mine)
        link.say("iopub", "debug_event", {}, mine)
        said = [record.getMessage() for record in caplog.records if record.levelno == 5]
        for kind, where in (
            ("stream", f"of {execution.id}: to its request"),
            ("stream", "of y: orphan: its request was never sent by this client"),
            ("comm_open", f"of {execution.id}: to its request and to its comm"),
            ("comm_msg", "of no request: to its comm"),
            ("update_display_data", f"of {other.id}: to its request and to the executions that display it"),
            ("update_display_data", f"of {other.id}: to the executions that display it"),
            ("stream", f"of {execution.id}: late, to its request"),
        ):
            assert any(line.startswith(f"{kind} ") and line.endswith(where) for line in said), (kind, where, said)
        traced = [record for record in caplog.records if record.levelno == 5]
        assert len(traced) == kernel.stats().routed.total

    play(scene)
