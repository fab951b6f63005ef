"""Real kernels, from their start to their end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import trunkline as tl
from tests.jupyter.real import run
from trunkline.jupyter import (
    BlockingKernel,
    Execution,
    KernelMessage,
    KernelSettings,
    Result,
    attach,
    start_kernel,
    start_kernel_blocking,
)
from trunkline.testing import no_leaks

STARTS = 50
PRINTED = 100_000


@pytest.fixture(scope="module")
def kernel() -> Iterator[BlockingKernel]:
    with no_leaks(), start_kernel_blocking() as started:
        yield started


def test_hello(kernel: BlockingKernel) -> None:
    """Busy, the code as it was sent, the output, idle, the reply; then nothing is left."""
    with kernel.execute("print('hello')") as execution:
        result = execution.result()
        assert [message.decode()["content"]["execution_state"] for message in execution.status] == ["busy", "idle"]
        (echo,) = execution.execution
        assert echo.decode()["content"]["code"] == "print('hello')"
        assert "".join(message.decode()["content"]["text"] for message in execution.stream) == "hello\n"
    assert result.ok
    assert result.stdout == "hello\n"
    assert result.text is None
    times = result.timings
    assert times.started_s is not None
    assert times.complete_s is not None
    assert 0 < times.started_s < times.complete_s
    assert kernel.stats().active_requests == 0


def test_values_errors_and_displays(kernel: BlockingKernel) -> None:
    assert kernel.run("6 * 7").text == "42"
    failed = kernel.run("1 / 0")
    assert failed.complete
    assert failed.status == "error"
    assert failed.error is not None
    assert failed.error.ename == "ZeroDivisionError"
    assert any("ZeroDivisionError" in line for line in failed.error.traceback)
    with pytest.raises(tl.ExecutionFailed, match="division by zero"):
        failed.check()
    shown = kernel.run("from IPython.display import HTML, display; display(HTML('<b>x</b>')); HTML('<i>y</i>')")
    assert shown.displays[0]["data"]["text/html"] == "<b>x</b>"
    assert shown.data["text/html"] == "<i>y</i>"
    assert kernel.run("x = 5", user_expressions={"double": "x * 2"}).user_expressions["double"]["data"] == {
        "text/plain": "10"
    }
    silent = kernel.run("print('heard'); 3", silent=True)
    assert (silent.stdout, silent.text) == ("heard\n", None)


def test_questions(kernel: BlockingKernel) -> None:
    kernel.run("import json")
    assert any(match.endswith("dumps") for match in kernel.complete("json.du")["matches"])
    assert kernel.inspect("json.dumps")["found"]
    assert kernel.is_complete("for x in y:")["status"] == "incomplete"
    assert kernel.is_complete("x = 1")["status"] == "complete"
    kernel.run("'to be found'")
    assert any("to be found" in entry[2] for entry in kernel.history(5)["history"])
    assert kernel.ask("comm_info_request")["comms"] == {}
    assert kernel.info["language_info"]["name"] == "python"
    debugger = kernel.ask("debug_request", {"type": "request", "seq": 1, "command": "debugInfo"}, socket="control")
    assert "success" in debugger
    with pytest.raises(tl.RequestTimeout):
        kernel.ask("made_up_request", timeout_s=0.3)


def test_input(kernel: BlockingKernel) -> None:
    asked: list[tuple[str, bool]] = []

    def type_in(prompt: str, password: bool) -> str:
        asked.append((prompt, password))
        return f"answer {len(asked)}"

    code = "import getpass\nprint(input('name? '), getpass.getpass('word? '))"
    assert kernel.run(code, on_input=type_in).stdout == "answer 1 answer 2\n"
    assert asked == [("name? ", False), ("word? ", True)]
    refused = kernel.run("input()")
    assert refused.error is not None
    assert refused.error.ename == "StdinNotImplementedError"


def test_threads_share_a_kernel(kernel: BlockingKernel) -> None:
    """Each thread gets only its own output, also while others send requests."""
    results: dict[int, Result] = {}
    completed: list[object] = []

    def work(number: int) -> None:
        results[number] = kernel.run(f"print('{number} a'); print('{number} b'); {number}")
        completed.append(kernel.complete("pri")["matches"])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(completed) == 10
    for number, result in results.items():
        assert (result.text, result.stdout) == (str(number), f"{number} a\n{number} b\n")


def test_a_hundred_at_once_each_get_their_own(kernel: BlockingKernel) -> None:
    executions = [kernel.execute(f"print({number}); {number}") for number in range(100)]
    for number, execution in enumerate(executions):
        result = execution.result()
        assert (result.text, result.stdout, len(result.outputs)) == (str(number), f"{number}\n", 2)


def test_pictures(kernel: BlockingKernel) -> None:
    code = "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2, 3]); plt.show()"
    (picture,) = kernel.run(code).check().displays
    assert picture["data"]["image/png"].startswith("iVBOR")


def test_widgets(kernel: BlockingKernel) -> None:
    """A widget is a comm: its messages are found by its id, whichever cell causes them."""
    made = kernel.execute("import ipywidgets; slider = ipywidgets.IntSlider(value=3); display(slider)")
    result = made.result().check()
    assert "application/vnd.jupyter.widget-view+json" in result.displays[0]["data"]
    model = result.displays[0]["data"]["application/vnd.jupyter.widget-view+json"]["model_id"]
    opened = [message.decode()["content"] for message in made.comm]
    assert model in {content["comm_id"] for content in opened}
    kernel.run("slider.value = 7").check()
    comm = kernel.comm(model)
    assert comm is not None
    changed = comm.messages.recv(timeout_s=10)
    assert changed is not None
    assert changed.decode()["content"]["data"]["state"]["value"] == 7
    comm.send({"method": "update", "state": {"value": 9}, "buffer_paths": []})
    assert kernel.run("slider.value").text == "9"
    comm.close()


def test_displays_are_updated_across_cells(kernel: BlockingKernel) -> None:
    first = kernel.execute("handle = display('before', display_id='shown')")
    assert first.result().displays[0]["data"]["text/plain"] == "'before'"
    kernel.run("handle.update('after')").check()
    assert first.partial().displays[0]["data"]["text/plain"] == "'after'"


def test_a_thread_goes_on_printing(kernel: BlockingKernel) -> None:
    """Output of a thread after its cell has ended still belongs to that cell, if the kernel names it as the parent."""
    code = (
        "import threading, time\n"
        "def later():\n"
        "    time.sleep(0.3)\n"
        "    print('late', flush=True)\n"
        "threading.Thread(target=later).start()\n"
        "print('early')"
    )
    with kernel.execute(code) as first:
        assert first.result().stdout == "early\n"
        assert first.late.recv(timeout_s=10) is not None
        assert first.partial().stdout == "early\nlate\n"
        assert first.partial().late >= 1


def test_many_lines(kernel: BlockingKernel) -> None:
    result = kernel.run(f"for n in range({PRINTED}): print(n)").check()
    assert result.stdout.split() == [str(number) for number in range(PRINTED)]
    assert result.truncated == 0


def test_interrupted(kernel: BlockingKernel) -> None:
    execution = kernel.execute("import time\nprint('begun', flush=True)\ntime.sleep(60)")
    assert execution.stream.recv(timeout_s=10) is not None
    kernel.interrupt()
    result = execution.result(timeout_s=10)
    assert result.complete
    assert result.error is not None
    assert result.error.ename == "KeyboardInterrupt"


def waiting_for(path: Path) -> str:
    """Code that continues when the file exists."""
    return f"import os, time\nwhile not os.path.exists({str(path)!r}): time.sleep(0.01)\n"


def test_a_timeout_gives_what_came_and_says_what_is_missing(kernel: BlockingKernel, tmp_path: Path) -> None:
    execution = kernel.execute(f"print('begun', flush=True)\n{waiting_for(tmp_path / 'go')}print('done')")
    assert execution.stream.recv(timeout_s=10) is not None
    partial = execution.result(timeout_s=0.05)
    assert (partial.complete, partial.status, partial.stdout) == (False, "open", "begun\n")
    assert partial.missing == ("the idle status", "the execute_reply")
    (tmp_path / "go").touch()
    assert execution.result().stdout == "begun\ndone\n"


def test_the_queue_is_aborted_after_an_error(kernel: BlockingKernel, tmp_path: Path) -> None:
    kernel.run("pass")
    failing = kernel.execute(f"{waiting_for(tmp_path / 'go')}time.sleep(0.3); 1/0")
    after = [kernel.execute(f"print({number})") for number in range(3)]
    (tmp_path / "go").touch()
    assert failing.result().status == "error"
    assert {execution.result().status for execution in after} == {"aborted"}
    assert kernel.run("1").ok


def test_killed_in_the_middle() -> None:
    async def main() -> None:
        async with start_kernel() as kernel:
            pid = int((await kernel.run("import os; os.getpid()")).text or "")
            execution = await kernel.execute("print('begun', flush=True)\nimport time; time.sleep(600)")
            other = await kernel.execute("2")
            assert await execution.stream.recv(timeout_s=10) is not None
            os.kill(pid, signal.SIGKILL)
            for each in (execution, other):
                with pytest.raises(tl.KernelDied, match="SIGKILL") as caught:
                    await each.result()
            with pytest.raises(tl.KernelDied) as caught:
                await execution.result()
            assert caught.value.result.stdout == "begun\n"
            with pytest.raises(tl.KernelDied):
                await kernel.execute("more")
            await kernel.restart()
            assert (await kernel.run("1 + 1")).text == "2"

    run(main())


def test_restarted_in_the_middle() -> None:
    async def main() -> None:
        async with start_kernel() as kernel:
            await kernel.run("x = 1")
            execution = await kernel.execute("import time; time.sleep(60)")
            restarting = asyncio.ensure_future(kernel.restart())
            with pytest.raises(tl.KernelRestarted):
                await execution.result()
            await restarting
            assert (await kernel.run("x")).error is not None
            assert kernel.state == "idle"

    run(main())


def test_attached_to_one_that_runs() -> None:
    """Two clients on one kernel: each has its own executions, sees those of the other, and leaving ends nothing."""

    async def main() -> None:
        async with start_kernel() as first:
            path = first.connection_file
            async with attach(path) as second:
                busy = await first.execute("import time; time.sleep(0.5); print('mine')")
                theirs = await second.run("print('theirs')")
                assert theirs.stdout == "theirs\n"
                assert (await busy.result()).stdout == "mine\n"
                (seen,) = [other for other in first.others if other.code == "print('theirs')"]
                assert seen.partial().stdout == "theirs\n"
                assert seen.who == second.username
            assert (await first.run("'still here'")).text == "'still here'"
        with pytest.raises(tl.KernelNotStarted):
            await attach(path, settings=KernelSettings(start_timeout_s=0.5))

    run(main())


def test_attached_to_one_that_is_busy() -> None:
    async def main() -> None:
        async with start_kernel() as first:
            busy = await first.execute("print('begun', flush=True); import time; time.sleep(60)")
            assert await busy.stream.recv(timeout_s=10) is not None
            async with attach(first.connection_file) as second:
                assert not busy.complete
                assert second.info["language_info"]["name"] == "python"
            await first.interrupt()
            assert (await busy.result(timeout_s=10)).complete

    run(main())


def test_the_heart_of_an_attached_kernel_stops() -> None:
    async def main() -> None:
        async with start_kernel() as first:
            settings = KernelSettings(heartbeat_s=0.1, heartbeat_timeout_s=3.0)
            async with attach(first.connection_file, settings=settings) as second:
                pid = int((await first.run("import os; os.getpid()")).text or "")
                execution = await second.execute("import time; time.sleep(60)")
                os.kill(pid, signal.SIGKILL)
                with pytest.raises(tl.KernelDied, match="has not answered for"):
                    await execution.result()

    run(main())


def test_open_comms_are_listed_by_target() -> None:
    async def main() -> None:
        async with start_kernel() as kernel:
            await kernel.run("from comm import create_comm\none = create_comm(target_name='one', comm_id='first')")
            await kernel.run("other = create_comm(target_name='other', comm_id='second')")
            assert (await kernel.comm_info())["comms"] == {
                "first": {"target_name": "one"},
                "second": {"target_name": "other"},
            }
            assert list((await kernel.comm_info("other"))["comms"]) == ["second"]

    run(main())


def test_two_kernels_do_not_mix() -> None:
    async def main() -> None:
        async with start_kernel() as one, start_kernel(transport="ipc") as other:
            results = await asyncio.gather(one.run("x = 1; x"), other.run("x = 2; x"))
            assert [result.text for result in results] == ["1", "2"]
            assert (await one.run("x")).text == "1"

    run(main())


def test_a_path_that_is_too_long_for_unix_sockets_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        with pytest.raises(tl.KernelNotStarted, match="x is too long for a socket path; set JUPYTER_RUNTIME_DIR"):
            await start_kernel(transport="ipc")
        async with start_kernel() as kernel:
            assert (await kernel.run("1 + 1")).text == "2"

    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / ("x" * 100)))
    run(main())


def test_what_cannot_be_started_says_why(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(tl.KernelNotStarted, match=r"the kernel 'cobol' is not installed \(installed: .*python3"):
            await start_kernel("cobol")
        with pytest.raises(tl.KernelNotStarted, match="no connection file nobody-has-this"):
            await attach("nobody-has-this")
        broken = tmp_path / "kernel-x.json"
        broken.write_text("{}")
        with pytest.raises(tl.KernelNotStarted, match="is not the connection file"):
            await attach(broken)
        with pytest.raises(tl.KernelNotStarted, match="died while it started: its process ended with exit code"):
            await start_kernel(env={"PYTHONPATH": str(_breaking(tmp_path))})

    run(main())


def _breaking(place: Path) -> Path:
    (place / "ipykernel_launcher.py").write_text("raise SystemExit(3)")
    return place


def test_deno_is_a_kernel_like_any() -> None:
    async def main() -> None:
        async with start_kernel("deno") as kernel:
            assert kernel.info["language_info"]["name"] == "typescript"
            execution = await kernel.execute("console.log('hello'); const x: number = 6; x * 7")
            result = await execution.result()
            assert result.ok
            assert "hello" in await written(execution, 1)
            assert "42" in await value(execution)
            failed = await kernel.run("throw new Error('no')")
            assert failed.status == "error"
            assert failed.error is not None
            async with kernel.subscribe("kernel.*.iopub.>") as said:
                executions = [await kernel.execute(f"'<' + {number} + '>'") for number in range(20)]
                # Deno often names the next request for a value, to any client: each gets what it was named for.
                named: dict[str, list[str]] = {execution.id: [] for execution in executions}
                while sum(map(len, named.values())) < len(executions):
                    message = await said.recv()
                    assert isinstance(message, KernelMessage)
                    if message.header.msg_type == "execute_result":
                        named[message.parent.msg_id].append(message.content["data"]["text/plain"])
            for execution in executions:
                assert (await execution.result()).complete
                assert [each["data"]["text/plain"] for each in execution.partial().outputs] == named[execution.id]
            texts = [text for texts in named.values() for text in texts]
            assert [f"<{number}>" in text for number, text in enumerate(texts)] == [True] * 20
            assert kernel.stats().faults == {}

    run(main())


async def value(execution: Execution) -> str:
    """The value of a cell. Deno may send it after its idle status."""
    while (text := execution.partial().text) is None:
        assert await execution.late.recv(timeout_s=10) is not None
    return text


async def written(execution: Execution, lines: int) -> str:
    """The output of a cell. Deno reads it from a pipe, and may send it after its idle status."""
    while len(execution.partial().stdout.split()) < lines:
        assert await execution.late.recv(timeout_s=10) is not None
    return execution.partial().stdout


def test_nothing_is_left_when_a_start_is_cancelled() -> None:
    async def main() -> None:
        starting = asyncio.ensure_future(_start())
        await asyncio.sleep(0.3)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    async def _start() -> None:
        async with start_kernel():
            raise AssertionError("it was cancelled before")

    run(main())


@pytest.mark.long
def test_fifty_starts_lose_nothing() -> None:
    async def main() -> None:
        for number in range(STARTS):
            async with start_kernel("python3" if number % 5 else "deno") as kernel:
                code = "print('first')" if number % 5 else "console.log('first')"
                execution = await kernel.execute(code)
                result = await execution.result(timeout_s=30)
                assert result.ok, (number, result)
                assert (await written(execution, 1)).strip() == "first"
                states = [message.content["execution_state"] async for message in execution.status]
                assert states == ["busy", "idle"]

    asyncio.run(main())


@pytest.mark.long
def test_many_kernels_at_once_find_ports() -> None:
    async def one(number: int) -> None:
        async with start_kernel() as kernel:
            assert (await kernel.run(f"{number}")).text == str(number)

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(12)))

    asyncio.run(main())


def test_this_python_is_the_kernels(kernel: BlockingKernel) -> None:
    assert kernel.run("import sys; print(sys.executable)").stdout.strip() == sys.executable
