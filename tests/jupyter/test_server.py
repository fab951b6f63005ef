"""Kernels behind a real Jupyter server: the same `Kernel`, over REST and a websocket."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trunkline as tl
from tests.jupyter.real import DEADLINE_S, run
from tests.ports import free_port
from trunkline.jupyter import JupyterServer, join, run_notebook
from trunkline.jupyter.server_frames import read_legacy, read_v1, write_legacy, write_v1
from trunkline.jupyter.wire import DELIMITER, Header, KernelWire, Unreadable

START_S = 180.0
"""A Jupyter server starts in 3 s, and ten times as slowly beside others."""
TOKEN = "a-token"
QUIET = (
    "--ServerApp.open_browser=False",
    "--ServerApp.log_level=ERROR",
    "--allow-root",
    f"--IdentityProvider.token={TOKEN}",
)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place = tmp_path_factory.mktemp("server")
    environment = {
        **os.environ,
        "JUPYTER_RUNTIME_DIR": str(place / "runtime"),
        "JUPYTER_CONFIG_DIR": str(place / "etc"),
    }
    command = [
        sys.executable,
        "-m",
        "jupyter_server",
        *QUIET,
        f"--ServerApp.port={free_port()}",
        f"--ServerApp.root_dir={place}",
    ]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield found(place / "runtime", server)
    finally:
        server.terminate()
        server.communicate(timeout=DEADLINE_S)


def found(runtime: Path, server: subprocess.Popen[bytes]) -> str:
    """The address that a server has written when it listens."""
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        # Its start takes seconds of processor time, which looking all the time would take from it.
        time.sleep(0.1)
        assert server.poll() is None, server.stderr.read() if server.stderr else b""
        for path in runtime.glob("jpserver-*.json"):
            try:
                url = str(json.loads(path.read_text())["url"])
                # It is written a moment before the server listens.
                with urllib.request.urlopen(f"{url}api"):
                    return url
            except (ValueError, LookupError, OSError):
                continue
    raise TimeoutError("the Jupyter server has not started")


@pytest.mark.slow
def test_a_kernel_there_is_a_kernel(address: str) -> None:
    async def main() -> None:
        server = JupyterServer(address, token=TOKEN)
        async with server.start_kernel("python3") as kernel:
            execution = await kernel.execute("print('hello'); 6 * 7")
            assert [message.content["text"] async for message in execution.stream] == ["hello\n"]
            result = await execution.result()
            assert (result.ok, result.text, result.stdout) == (True, "42", "hello\n")
            greeted = await kernel.run("print(input('who? '))", on_input=lambda prompt, password: "Ada")
            assert greeted.stdout == "Ada\n"
            assert "print" in (await kernel.complete("pri"))["matches"]
            sleeping = await kernel.execute("import time; time.sleep(60)")
            assert await sleeping.wait_for("status", lambda message: message.content["execution_state"] == "busy")
            await kernel.interrupt()
            assert ((await sleeping.result()).error or result).ename == "KeyboardInterrupt"  # type: ignore[union-attr]
            await kernel.run("from ipykernel.comm import Comm; Comm('t', {}).send({'n': 1}, buffers=[b'raw'])")
            (comm,) = kernel.comms
            sent = await comm.messages.recv(timeout_s=10)
            assert sent is not None
            assert (sent.content["data"], sent.buffers) == ({"n": 1}, (b"raw",))
            await comm.send({"n": 2}, buffers=[b"back"])
            await kernel.run("x = 1")
            await kernel.restart()
            assert (await kernel.run("x")).status == "error"
            assert [each.id for each in await server.kernels()] == [kernel.id]
        assert await server.kernels() == []

    run(main())


@pytest.mark.slow
def test_one_that_runs_there_goes_on_and_can_be_shared(address: str) -> None:
    async def main() -> None:
        server = JupyterServer(address, token=TOKEN)
        async with server.start_kernel() as first, tl.connect() as bus:
            await first.run("x = 41")
            async with server.attach(first.id, bus=bus, share=True) as second:
                assert (await second.run("x + 1")).text == "42"
                async with join(bus, first.id) as third:
                    assert (await third.run("x + 2")).text == "43"
            assert (await first.run("x")).text == "41"
            notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x + 3")])
            assert (await run_notebook(first, notebook)).ok
            assert notebook.cells[0].outputs[0]["data"]["text/plain"] == "44"

    run(main())


TALKS = """
import pathlib, time

def say(first, cue):
    while not pathlib.Path(cue).exists():
        time.sleep(0.01)
    for n in range(first, first + 10):
        print(n, flush=True)

print("begun", flush=True)
say(0, {meanwhile!r})
pathlib.Path({said!r}).touch()
say(10, {again!r})
"""


@pytest.mark.slow
def test_a_lost_connection_is_opened_again_and_what_was_said_meanwhile_comes(address: str, tmp_path: Path) -> None:
    """A Jupyter server drops messages while it closes or opens a connection: the kernel is silent then."""
    cues = {name: tmp_path / name for name in ("meanwhile", "said", "again")}

    async def main() -> None:
        async with JupyterServer(address, token=TOKEN).start_kernel() as kernel:
            link: Any = kernel.link
            noticed = link._until_noticed

            async def until_said() -> None:
                await noticed()
                cues["meanwhile"].touch()
                while not cues["said"].exists():  # noqa: ASYNC110  # a file of another process
                    await asyncio.sleep(0.01)

            link._until_noticed = until_said
            execution = await kernel.execute(TALKS.format(**{name: str(path) for name, path in cues.items()}))
            assert await execution.stream.recv(timeout_s=DEADLINE_S) is not None
            link._socket.close()
            text = ""
            while "9" not in text:
                message = await execution.stream.recv(timeout_s=DEADLINE_S)
                assert message is not None
                text += message.content["text"]
            cues["again"].touch()
            result = await execution.result()
            assert result.complete
            assert result.stdout.split() == ["begun", *(str(n) for n in range(20))]

    run(main())


@pytest.mark.slow
def test_what_cannot_be_reached_says_why(address: str) -> None:
    async def main() -> None:
        with pytest.raises(tl.KernelNotStarted, match="refuses the token"):
            await JupyterServer(address, token="wrong").start_kernel()
        with pytest.raises(tl.KernelNotStarted, match="404"):
            await JupyterServer(address, token=TOKEN).attach("00000000-0000-0000-0000-000000000000")
        with pytest.raises(tl.KernelNotStarted, match="no Jupyter server answers"):
            await JupyterServer("http://127.0.0.1:9").start_kernel()

    run(main())
    with pytest.raises(tl.UsageError, match="is not the address of a Jupyter server"):
        JupyterServer("localhost")


PARTS = st.lists(st.binary(max_size=50), min_size=4, max_size=7)


@given(st.sampled_from(["shell", "iopub", "stdin"]), PARTS)
def test_messages_of_version_1_are_read_as_they_were_written(channel: str, parts: list[bytes]) -> None:
    assert read_v1(write_v1(channel, parts)) == (channel, [DELIMITER, b"", *parts])


@given(st.lists(st.binary(max_size=20), max_size=3))
def test_messages_for_older_servers_are_read_as_they_were_written(buffers: list[bytes]) -> None:
    wire = KernelWire("k1", lambda: 1)
    header = Header("m1", "comm_msg", "s", "me", "2026-11-16T10:00:00Z", "5.4")
    message = wire.compose("shell", header, {"a": 1}, buffers=buffers)
    channel, frames = read_legacy(write_legacy(message))
    again = wire.unpack(channel, frames)
    assert (again.socket, again.header, again.content, again.buffers) == ("shell", header, {"a": 1}, tuple(buffers))


@given(st.binary(max_size=200))
def test_garbage_on_the_websocket_is_unreadable_and_nothing_else(data: bytes) -> None:
    for read in (read_v1, read_legacy):
        try:
            read(data)
        except Unreadable:
            continue
