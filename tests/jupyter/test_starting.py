"""Starting and finding kernels: names, connection files, keys, history, restarts, subshells."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zmq

import trunkline as tl
from tests.jupyter.real import DEADLINE_S, DENO, run
from trunkline.journal import Reader
from trunkline.jupyter import Kernel, KernelSettings, attach, shared_kernels, start_kernel
from trunkline.jupyter.autorestart import RestartLimit
from trunkline.jupyter.start import join


@pytest.mark.parametrize("name", ["", "  ", None])
def test_no_name_is_a_clear_error(name: Any) -> None:
    with pytest.raises(tl.UsageError, match="started by the name of its kernelspec"):
        start_kernel(name)


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A runtime directory without kernels."""
    place = tmp_path / "runtime"
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(place))
    return place


def test_a_kernel_that_was_started_is_found(runtime: Path) -> None:
    async def main() -> None:
        async with start_kernel() as kernel:
            assert kernel.connection_file == runtime / f"kernel-{kernel.id}.json"
            await kernel.run("x = 42")
            async with attach() as newest, attach(kernel.id[-8:]) as named:
                assert newest.id == named.id == kernel.id
                assert (await newest.run("x")).text == "42"

    run(main())
    assert list(runtime.iterdir()) == []


def test_history_is_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    code = "get_ipython().history_manager.hist_file"

    async def main() -> None:
        async with start_kernel() as kernel:
            assert (await kernel.run(code)).text == "':memory:'"
            await kernel.run("secret = 1")
            told = await kernel.history(output=False)
            assert [entry[2] for entry in told["history"]][-1:] == ["secret = 1"]
        async with start_kernel(keep_history=True) as kernel:
            assert "history.sqlite" in str((await kernel.run(code)).text)
        async with start_kernel(arguments=[f"--HistoryManager.hist_file={tmp_path / 'mine.sqlite'}"]) as kernel:
            assert "mine.sqlite" in str((await kernel.run(code)).text)

    run(main())


def copy(connection_file: Path, target: Path, **changed: str) -> None:
    target.write_text(json.dumps({**json.loads(connection_file.read_text()), **changed}))


def test_a_wrong_key_is_told_from_a_dead_kernel(runtime: Path, tmp_path: Path) -> None:
    other = tmp_path / "kernel-other.json"
    stopped: list[bool] = []

    async def work(kernel: Kernel) -> None:
        while not stopped:
            await kernel.run("1")

    async def main() -> None:
        async with start_kernel() as kernel:
            copy(Path(str(kernel.connection_file)), other, key="another key")
            settings = KernelSettings(start_timeout_s=DEADLINE_S / 2)
            # Before ipykernel 7, a kernel sends nothing to a new subscriber of iopub unless it is working.
            working = asyncio.create_task(work(kernel))
            with pytest.raises(tl.WrongKernelKey, match="not signed with the key of the connection file"):
                await attach(other, settings=settings)
            stopped.append(True)
            await working
        settings = KernelSettings(start_timeout_s=DEADLINE_S, heartbeat_s=0.1, heartbeat_timeout_s=1.0)
        with pytest.raises(tl.KernelNotStarted, match="it has not answered for 1 s at") as raised:
            await attach(other, settings=settings)
        assert not isinstance(raised.value, tl.WrongKernelKey)

    run(main())


def test_a_heart_that_beats_without_an_answer_is_said(tmp_path: Path) -> None:
    """A kernel that sends no welcome, and ignores messages signed with another key, shows no more than that."""
    context: zmq.Context[Any] = zmq.Context()
    heart: zmq.Socket[bytes] = context.socket(zmq.REP)
    port = heart.bind_to_random_port("tcp://127.0.0.1")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ports = {f"{name}_port": unused.getsockname()[1] for name in ("shell", "iopub", "stdin", "control")}
        path = tmp_path / "kernel-silent.json"
        path.write_text(json.dumps({**ports, "hb_port": port, "key": "k"}))

        async def main() -> None:
            beating = asyncio.create_task(asyncio.to_thread(beat))
            with pytest.raises(tl.KernelNotStarted, match="its heartbeat answers, so its process runs"):
                await attach(path, settings=KernelSettings(start_timeout_s=3.0, heartbeat_s=0.1))
            stopped.append(True)
            await beating

        stopped: list[bool] = []

        def beat() -> None:
            while not stopped:
                if heart.poll(50):
                    heart.send(heart.recv())

        run(main())
    heart.close(0)
    context.term()


def test_it_is_restarted_when_it_has_died() -> None:
    async def main() -> None:
        died: asyncio.Queue[str] = asyncio.Queue()
        async with start_kernel(autorestart=True, settings=KernelSettings(restarts=1)) as kernel:
            kernel.on_restart(died.put_nowait)
            async with kernel.subscribe() as everything:
                await kernel.run("x = 1")
                pid = await pid_of(kernel)
                sleeping = await kernel.execute("import time; time.sleep(60)")
                os.kill(pid, signal.SIGKILL)
                with pytest.raises(tl.KernelDied, match="SIGKILL"):
                    await sleeping.result()
                assert "SIGKILL" in await died.get()
                assert (await kernel.run("x")).status == "error"
                assert kernel.stats().restarts == 1
                assert not everything.closed
            os.kill(await pid_of(kernel), signal.SIGKILL)
            assert "too often" in await kernel.death()
            with pytest.raises(tl.KernelDied):
                await kernel.run("1")

    run(main())


async def pid_of(kernel: Kernel) -> int:
    return int((await kernel.run("import os; os.getpid()")).text or 0)


def test_restarts_are_limited_within_a_time() -> None:
    limit = RestartLimit(2, 60.0)
    assert [limit.allow(at_s) for at_s in (0.0, 1.0, 2.0, 60.5, 60.6)] == [True, True, False, True, False]


def test_a_subshell_answers_while_a_cell_runs(tmp_path: Path) -> None:
    done = tmp_path / "done"

    async def main() -> None:
        async with start_kernel() as kernel, tl.connect() as bus:
            if "kernel subshells" not in kernel.info.get("supported_features", ()):
                with pytest.raises(tl.Unsupported):
                    await kernel.create_subshell()
                return
            await kernel.run("variable = 42")
            code = f"import os, time\nwhile not os.path.exists({str(done)!r}): time.sleep(0.01)"
            busy = await kernel.execute(code)
            async with kernel.subshell() as subshell:
                assert "variable" in (await kernel.complete("varia", subshell_id=subshell))["matches"]
                assert (await kernel.run("variable + 1", subshell_id=subshell)).text == "43"
                async with attach(kernel.connection_file, bus=bus, share=True), join(bus, kernel.id) as agent:
                    assert (await agent.run("variable + 2", subshell_id=subshell)).text == "44"
                assert not busy.complete
                done.touch()
                assert (await busy.result()).ok

    run(main())


def test_subshells_are_refused_by_a_kernel_without_them() -> None:
    async def main() -> None:
        async with start_kernel("deno") as kernel:
            with pytest.raises(tl.Unsupported, match="subshells"):
                await kernel.create_subshell()

    assert DENO.exists()
    run(main())


def test_joining_one_that_nobody_shares_fails_at_once_and_writes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            tl.connect("memory:", journal=tmp_path / "journal") as bus,
            start_kernel(bus=bus, share=True) as kernel,
        ):
            await kernel.run("1")
            (shared,) = await shared_kernels(bus)
            assert (shared.id, shared.language, shared.shared_by) == (kernel.id, "python", bus.name)
            with pytest.raises(tl.KernelNotStarted, match=f"'nobody' is not shared on this bus .shared: {kernel.id}"):
                await join(bus, "nobody")

    run(main())
    with Reader(tmp_path / "journal") as reader:
        topics = {message.topic for message in reader.messages()}
    assert topics
    assert not [topic for topic in topics if "nobody" in topic or not topic.startswith("kernel.")]


def test_nothing_is_left_when_the_process_is_ended_while_a_kernel_starts(tmp_path: Path) -> None:
    """Cancelled between the start of the process and its first answer."""
    program = (
        "import asyncio, sys\n"
        "from trunkline.jupyter import start_kernel\n"
        "async def main():\n"
        "    task = asyncio.current_task()\n"
        "    await start_kernel('deno', on_launch=lambda: asyncio.get_running_loop().call_soon(task.cancel))\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except asyncio.CancelledError:\n"
        "    print('cancelled')\n"
    )
    environment = {**os.environ, "JUPYTER_RUNTIME_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, env=environment, check=True
    )
    # Its pipes would be open as long as the kernel lives.
    assert ran.stdout == "cancelled\n"
    assert list(tmp_path.iterdir()) == []
