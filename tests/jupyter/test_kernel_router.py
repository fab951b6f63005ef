"""Routing of kernel messages: by parent, by comm, by display; and what happens to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.jupyter.scenes import of, play
from tests.jupyter.scripted import ScriptedLink
from trunkline.delivery.requests import Why
from trunkline.delivery.subscriber import Overflow
from trunkline.errors import InvalidSettings, StreamEmpty, UsageError
from trunkline.jupyter.execution import Execution
from trunkline.jupyter.kernel import Kernel
from trunkline.jupyter.settings import KernelSettings
from trunkline.message import Message

CHANNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "status": ("status", {"execution_state": "busy"}),
    "execute_input": ("execution", {"code": "code", "execution_count": 1}),
    "execute_result": ("execution", {"data": {"text/plain": "2"}, "metadata": {}, "execution_count": 1}),
    "error": ("execution", {"ename": "E", "evalue": "v", "traceback": ["t"]}),
    "stream": ("stream", {"name": "stdout", "text": "x"}),
    "display_data": ("display", {"data": {"text/plain": "x"}, "metadata": {}}),
    "update_display_data": ("display", {"data": {}, "metadata": {}, "transient": {"display_id": "nobody's"}}),
    "clear_output": ("display", {"wait": False}),
    "comm_open": ("comm", {"comm_id": "c", "target_name": "t", "data": {}}),
    "comm_msg": ("comm", {"comm_id": "c", "data": {}}),
    "comm_close": ("comm", {"comm_id": "c", "data": {}}),
}


@pytest.mark.parametrize("kind", CHANNELS)
def test_each_kind_goes_to_its_channel_and_no_other(kind: str) -> None:
    channel, content = CHANNELS[kind]

    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        link.say("iopub", kind, content, of(kernel, execution))
        got = execution.channel(channel).try_recv()
        assert got.content == content
        for other in ("status", "execution", "stream", "display", "comm", "late"):
            with pytest.raises(StreamEmpty):
                execution.channel(other).try_recv()
        assert kernel.stats().orphan_messages == 0

    play(scene)


@pytest.mark.parametrize("reply_first", [True, False])
def test_complete_means_idle_and_reply_in_either_order(reply_first: bool) -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        said: list[tuple[str, str, dict[str, Any]]] = [
            ("shell", "execute_reply", {"status": "ok", "execution_count": 4}),
            ("iopub", "status", {"execution_state": "idle"}),
        ]
        first, second = said if reply_first else said[::-1]
        link.say(*first, of(kernel, execution))
        partial = await execution.result(timeout_s=3)
        assert not partial.complete
        assert partial.missing == (("the idle status",) if reply_first else ("the execute_reply",))
        with pytest.raises(Exception, match="not complete"):
            partial.check()
        link.say(*second, of(kernel, execution))
        result = await execution.result()
        assert result.complete
        assert result.missing == ()
        assert result.execution_count == 4
        assert result.check() is result

    play(scene)


def test_channels_are_read_one_by_one_with_timeouts() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        with pytest.raises(StreamEmpty):
            await execution.stream.recv(timeout_s=5)
        link.say("iopub", "stream", {"name": "stdout", "text": "x"}, of(kernel, execution))
        got = await execution.stream.recv(timeout_s=5)
        assert got is not None
        link.say("shell", "execute_reply", {"status": "ok"}, of(kernel, execution))
        link.say("iopub", "status", {"execution_state": "idle"}, of(kernel, execution))
        assert await execution.stream.recv(timeout_s=5) is None

    play(scene)


def test_late_output_is_still_its_own() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        mine = of(kernel, execution)
        link.say("shell", "execute_reply", {"status": "ok"}, mine)
        link.say("iopub", "status", {"execution_state": "idle"}, mine)
        assert (await execution.result()).late == 0
        link.say("iopub", "stream", {"name": "stdout", "text": "from a thread"}, mine)
        got = await execution.late.recv(timeout_s=1)
        assert got is not None
        again = await execution.result()
        assert (again.stdout, again.late) == ("from a thread", 1)
        assert kernel.stats().active_requests == 0
        await asyncio.sleep(100)
        link.say("iopub", "stream", {"name": "stdout", "text": "much later"}, mine)
        assert [orphan.why for orphan in kernel.orphans] == [Why.ANSWERED]
        assert await execution.late.recv() is None

    play(scene)


def test_all_subscribers_see_everything_first() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        async with kernel.subscribe() as everything, kernel.subscribe("kernel.*.iopub.stream") as streams:
            assert kernel.stats().global_subscribers == 2
            seen: list[int] = []
            execution.completed = lambda _: seen.append(everything.depth)
            link.say("iopub", "stream", {"name": "stdout", "text": "x"}, of(kernel, execution))
            link.say("iopub", "status", {"execution_state": "starting"}, {})
            link.say("shell", "execute_reply", {"status": "ok"}, of(kernel, execution))
            link.say("iopub", "status", {"execution_state": "idle"}, of(kernel, execution))
            # When the execution heard that it was complete, the subscriber had that message, and all before.
            assert seen == [4]
            kinds = [everything.try_recv().topic.split(".")[-1] for _ in range(4)]
            assert kinds == ["stream", "status", "execute_reply", "status"]
            assert streams.depth == 1
            assert streams.account().accepted == 1

    play(scene)


def test_a_subscriber_filters_by_content() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        async with kernel.subscribe(where="payload.content.name == 'stderr'") as errors:
            for name in ("stdout", "stderr", "stdout"):
                link.say("iopub", "stream", {"name": name, "text": name}, of(kernel, execution))
            assert errors.depth == 1
            assert errors.account().filtered == 2

    play(scene)


def test_a_channel_filters_by_content_and_waits_for_patterns() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        chosen = await kernel.execute("…", where={"stream": "payload.content.name == 'stderr'"})
        for name in ("stdout", "stderr", "stdout"):
            for each in (execution, chosen):
                link.say("iopub", "stream", {"name": name, "text": f"{name}\n"}, of(kernel, each))
        assert chosen.stream.depth == 1
        assert chosen.stream.account().filtered == 2
        assert chosen.partial().stdout == "stdout\nstdout\n"
        found = await execution.wait_for("stream", lambda message: message.content["name"] == "stderr")
        assert found is not None
        assert execution.stream.depth == 1
        with pytest.raises(StreamEmpty):
            await execution.wait_for("stream", "matches(payload.content.text, '*ready*')", timeout_s=3)
        link.say("iopub", "stream", {"name": "stdout", "text": "ready"}, of(kernel, execution))
        assert await execution.wait_for("stream", "matches(payload.content.text, '*ready*')") is not None
        link.say("shell", "execute_reply", {"status": "ok"}, of(kernel, execution))
        link.say("iopub", "status", {"execution_state": "idle"}, of(kernel, execution))
        assert await execution.wait_for("stream", lambda _: True) is None
        with pytest.raises(UsageError, match="no channel streams: use one of status"):
            await kernel.execute("…", where={"streams": "priority > 1"})

    play(scene)


def test_a_channel_nobody_reads_harms_nobody() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        mine = of(kernel, execution)
        for number in range(50):
            link.say("iopub", "display_data", {"data": {"text/plain": str(number)}, "metadata": {}}, mine)
            link.say("iopub", "stream", {"name": "stdout", "text": "."}, mine)
            assert execution.stream.try_recv().content["text"] == "."
        link.say("shell", "execute_reply", {"status": "ok"}, mine)
        link.say("iopub", "status", {"execution_state": "idle"}, mine)
        result = await execution.result()
        assert result.dropped == 40
        assert len(result.displays) == 50
        kept = [message.content["data"]["text/plain"] async for message in execution.display]
        assert kept == [str(number) for number in range(40, 50)]

    play(scene, channel_capacity=10)


@pytest.mark.parametrize(("overflow", "kept"), [(Overflow.DROP_NEWEST, ["0", "1"]), (Overflow.REJECT, ["0", "1"])])
def test_what_is_lost_is_chosen(overflow: Overflow, kept: list[str]) -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        for number in range(5):
            link.say("iopub", "stream", {"name": "stdout", "text": str(number)}, of(kernel, execution))
        assert [execution.stream.try_recv().content["text"] for _ in kept] == kept
        assert execution.dropped == 3

    play(scene, channel_capacity=2, channel_overflow=overflow)


def test_a_kernel_does_not_wait() -> None:
    with pytest.raises(InvalidSettings, match="a kernel does not wait"):
        KernelSettings(channel_overflow=Overflow.BLOCK)


def _noted(order: list[str | None], message: Message, answer: Callable[[Message], bool]) -> bool:
    order.append(message.request_id)
    return answer(message)


def test_higher_priorities_go_first_and_keep_their_order() -> None:
    async def seen(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        urgent = await kernel.execute("urgent", priority=90)
        messages = [
            link.wire.unpack("iopub", link.frames("stream", {"name": "stdout", "text": str(number)}, of(kernel, each)))
            for number in range(3)
            for each in (execution, urgent)
        ]
        order: list[str | None] = []
        answer = kernel.router.requests.answer
        kernel.router.requests.answer = lambda message: _noted(order, message, answer)  # type: ignore[method-assign]
        kernel.client.take(messages)
        assert order == [urgent.id] * 3 + [execution.id] * 3
        assert urgent.partial().stdout == execution.partial().stdout == "012"

    play(seen)


def test_comms_are_found_by_their_id_whatever_their_parent() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        opened: list[str] = []
        kernel.on_comm("target", lambda comm, message: opened.append(comm.id))
        link.say(
            "iopub", "comm_open", {"comm_id": "c1", "target_name": "target", "data": {"a": 1}}, of(kernel, execution)
        )
        assert opened == ["c1"]
        (comm,) = kernel.comms
        assert comm.data == {"a": 1}
        link.say("iopub", "comm_msg", {"comm_id": "c1", "data": {"n": 1}}, {})
        link.say("iopub", "comm_msg", {"comm_id": "c1", "data": {"n": 2}}, {"msg_id": "gone", "session": "other"})
        assert [comm.messages.try_recv().content["data"]["n"] for _ in range(2)] == [1, 2]
        await comm.send({"to": "kernel"}, [b"\x00\x01"])
        sent = link.sent[-1]
        assert (sent.msg_type, sent.content["data"], sent.buffers) == ("comm_msg", {"to": "kernel"}, (b"\x00\x01",))
        link.say("iopub", "comm_close", {"comm_id": "c1", "data": {}}, {})
        assert kernel.comms == []
        last = await comm.messages.recv()
        assert last is not None
        assert await comm.messages.recv() is None
        ours = await kernel.open_comm("theirs", {"x": 1})
        assert link.sent[-1].content["target_name"] == "theirs"
        await ours.close()
        await ours.close()
        assert [message.msg_type for message in link.sent[-2:]] == ["comm_open", "comm_close"]
        assert kernel.stats().orphan_messages == 0

    play(scene)


def test_a_comm_nobody_has_opened_is_an_orphan() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        link.say("iopub", "comm_msg", {"comm_id": "whose?", "data": {}}, {})
        assert [orphan.why for orphan in kernel.orphans] == [Why.NO_REQUEST_ID]

    play(scene)


def test_what_was_answered_is_not_given_up_later() -> None:
    """A reply without an idle status, as to an interrupt, causes no warning."""

    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        asking = asyncio.ensure_future(kernel.ask("interrupt_request", socket="control"))
        await asyncio.sleep(1)
        asked = link.sent[-1]
        link.say("control", "interrupt_reply", {"status": "ok"}, {"msg_id": asked.id, "session": kernel.session})
        assert (await asking)["status"] == "ok"
        execution.close()
        assert kernel.stats().active_requests == 0
        await asyncio.sleep(100)
        assert kernel.stats().stale_requests == 0

    play(scene)


def test_a_callback_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        def fail(comm: object, message: object) -> None:
            raise ValueError("mine")

        kernel.on_comm("target", fail)
        link.say("iopub", "comm_open", {"comm_id": "c1", "target_name": "target", "data": {}}, {})
        assert len(kernel.comms) == 1

    play(scene)
    assert "the callback for comms to target raised" in caplog.text


def test_outputs_are_cleared_now_or_with_the_next() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        mine = of(kernel, execution)

        def write(text: str) -> None:
            link.say("iopub", "stream", {"name": "stdout", "text": text}, mine)

        write("a")
        link.say("iopub", "clear_output", {"wait": False}, mine)
        assert execution.partial().outputs == ()
        write("b")
        link.say("iopub", "clear_output", {"wait": True}, mine)
        assert execution.partial().stdout == "b"
        write("c")
        write("d")
        assert execution.partial().stdout == "cd"

    play(scene)


def test_other_clients_outputs_are_theirs() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        theirs = {"msg_id": "t1", "session": "another", "username": "grace", "msg_type": "execute_request"}
        link.say("iopub", "execute_input", {"code": "their code", "execution_count": 9}, theirs)
        link.say("iopub", "stream", {"name": "stdout", "text": "theirs"}, theirs)
        link.say("iopub", "status", {"execution_state": "idle"}, theirs)
        (other,) = kernel.others
        assert (other.who, other.code, other.complete) == ("grace", "their code", True)
        assert other.partial().stdout == "theirs"
        assert execution.partial().outputs == ()
        assert kernel.stats().orphan_messages == 0
        await asyncio.sleep(100)
        assert kernel.others == []

    play(scene)


def test_input_is_given_by_a_callback_of_either_kind() -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        asked: list[tuple[str, bool]] = []

        async def slowly(prompt: str, password: bool) -> str:
            asked.append((prompt, password))
            await asyncio.sleep(1)
            return "typed"

        asking = await kernel.execute("input()", on_input=slowly)
        assert link.sent[-1].content["allow_stdin"] is True
        link.say("stdin", "input_request", {"prompt": "name? ", "password": True}, of(kernel, asking))
        await asyncio.sleep(2)
        assert asked == [("name? ", True)]
        assert (link.sent[-1].socket, link.sent[-1].content["value"]) == ("stdin", "typed")
        assert link.sent[-1].parent.msg_type == "input_request"

        def broken(prompt: str, password: bool) -> str:
            raise ValueError("mine")

        asking = await kernel.execute("input()", on_input=broken)
        link.say("stdin", "input_request", {"prompt": "", "password": False}, of(kernel, asking))
        await asyncio.sleep(0.1)
        assert link.sent[-1].content["value"] == ""

    play(scene)


def test_bad_frames_are_counted_and_never_fatal(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        good = link.frames("stream", {"name": "stdout", "text": "x"}, of(kernel, execution))
        link.receive("iopub", [*good[:2], b"forged", *good[3:]])
        link.receive("iopub", [b"what is this"])
        link.receive("iopub", good)
        link.receive("iopub", good)
        assert kernel.stats().faults == {"bad_signature": 1, "malformed": 1, "duplicate": 1}
        assert execution.partial().stdout == "x"

    play(scene)
    assert "the signature does not match the key of the kernel" in caplog.text


@pytest.mark.parametrize(
    "content",
    [
        {"execution_state": 5},
        {"name": None, "text": ["a list"]},
        {"data": "no object", "metadata": 1, "transient": "x"},
        {"ename": 1, "evalue": None, "traceback": "no list", "execution_count": "seven"},
        {"comm_id": 1, "data": "x", "target_name": None},
        {"wait": "maybe"},
    ],
)
def test_contents_nobody_expects_harm_nobody(content: dict[str, Any]) -> None:
    async def scene(kernel: Kernel, link: ScriptedLink, execution: Execution) -> None:
        for kind in CHANNELS:
            link.say("iopub", kind, content, of(kernel, execution))
        link.say("shell", "execute_reply", content, of(kernel, execution))
        link.say("iopub", "status", {"execution_state": "idle"}, of(kernel, execution))
        assert (await execution.result()).complete

    play(scene)
