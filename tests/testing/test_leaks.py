"""`no_leaks` catches real leaks of each kind, names them, and lets clean code pass."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from trunkline.memory.place import engine_prefix
from trunkline.testing import leaks
from trunkline.testing.leaks import LeakError, no_leaks
from trunkline.testing.simulate import Simulation, simulate

SOON_S = 0.1
NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="the system has no /proc to look at")

PROJECT = """
import pytest
from trunkline.testing.leaks import no_leaks

@pytest.fixture(autouse=True)
def leaves_nothing():
    with no_leaks(deadline_s=0.5):
        yield
"""
SUITE = """
import os
import sys
import pytest
from hypothesis import given, strategies as st

def test_captures(capfd):
    os.write(1, b"out")
    assert capfd.readouterr().out == "out"

def test_shows(capsys):
    with capsys.disabled():
        print("shown")

@given(st.integers())
def test_hypothesis_keeps_an_example(n):
    assert n < 1000

def test_exchanges_standard_input():
    with open(sys.executable) as file:
        os.dup2(file.fileno(), 0)

def test_leaks():
    os.open(sys.executable, os.O_RDONLY)
"""


STRANGER = """
import mmap
import os
import sys

if os.fork():
    os._exit(0)  # so that the child is nobody's
input()
with open(sys.argv[1], "w+b") as file:
    file.truncate(4096)
    with mmap.mmap(file.fileno(), 4096):
        print("ready", flush=True)
        input()
os.unlink(sys.argv[1])
print("gone", flush=True)
"""


def leaks_of(block: Callable[[ExitStack], object]) -> str:
    """What is reported when `block` leaves something behind; the stack tidies up after the check."""
    with ExitStack() as after:
        with pytest.raises(LeakError) as caught, no_leaks(deadline_s=SOON_S):
            block(after)
        assert caught.value.leaks
        return str(caught.value)


def test_a_thread() -> None:
    def block(after: ExitStack) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait, name="forgotten")
        after.callback(thread.join)
        after.callback(stop.set)
        thread.start()

    assert "thread 'forgotten', now at" in leaks_of(block)


@NEEDS_PROC
def test_a_file_and_a_socket(tmp_path: Path) -> None:
    def block(after: ExitStack) -> None:
        after.enter_context((tmp_path / "open.txt").open("w"))
        after.enter_context(socket.create_server(("127.0.0.1", 0)))

    report = leaks_of(block)
    assert "open.txt" in report
    assert "AF_INET SOCK_STREAM ('127.0.0.1'" in report


@NEEDS_PROC
@pytest.mark.parametrize("listed", [True, False])
def test_a_process_that_runs_and_one_that_ended(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not listed:
        monkeypatch.setattr(leaks, "THREADS", "/nowhere")  # as on kernels that do not list children

    def start(after: ExitStack, *command: str) -> subprocess.Popen[bytes]:
        process = after.enter_context(subprocess.Popen(command))
        after.callback(process.kill)
        return process

    def ended(after: ExitStack) -> None:
        process = start(after, "true")
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has waited for it

    report = leaks_of(lambda after: start(after, "sleep", "60"))
    assert "child process" in report
    assert "sleep 60" in report
    assert "never waited for" in leaks_of(ended)


@NEEDS_PROC
def test_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not in the folder of the machine: tests that run at the same time in other processes would see a leak, too.
    monkeypatch.setattr(leaks, "SHM", tmp_path)
    report = leaks_of(lambda after: (tmp_path / "frames").write_bytes(b"left behind"))
    assert f"shared memory {tmp_path}/frames" in report
    assert "1 leaked" in report


@NEEDS_PROC
def test_channels_in_another_runtime_directory_are_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setattr(leaks, "SHM", shm)
    monkeypatch.setenv("TRUNKLINE_RUNTIME", str(tmp_path / "own"))
    own, other = (engine_prefix((tmp_path / name).resolve() / "shm") for name in ("own", "other"))

    def leave(after: object) -> None:
        for prefix in (own, other):
            (shm / f"{prefix}frames.data").write_bytes(b"left behind")

    report = leaks_of(leave)
    assert "1 leaked" in report
    assert f"{own}frames.data" in report


@NEEDS_PROC
def test_shared_memory_of_a_stranger_is_not_ours() -> None:
    command = [sys.executable, "-c", STRANGER, f"/dev/shm/trunkline-stranger-{os.getpid()}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as stranger:
        assert stranger.stdin is not None
        assert stranger.stdout is not None
        with no_leaks(deadline_s=SOON_S):
            stranger.stdin.write("begin\n")
            assert stranger.stdout.readline() == "ready\n"
        stranger.stdin.write("end\n")
        assert stranger.stdout.readline() == "gone\n"


GRANDCHILD = """
import subprocess, sys
with subprocess.Popen([sys.executable, "-c", "print('ready', flush=True); input()", sys.argv[1]]):
    pass
"""


@NEEDS_PROC
def test_semaphores_of_a_stranger_are_removed_by_its_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "SHM", tmp_path)
    monkeypatch.setattr(leaks, "TRACKER", tracker := f"a.tracker.of.{os.getpid()}")
    command = [sys.executable, "-c", GRANDCHILD, tracker]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdin is not None
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "ready\n"
        with no_leaks(deadline_s=SOON_S):
            (tmp_path / "sem.mp-theirs").write_bytes(b"")
        stranger.stdin.write("\n")
        stranger.stdin.close()
        stranger.wait()
    assert "sem.mp-ours" in leaks_of(lambda after: (tmp_path / "sem.mp-ours").write_bytes(b""))


def test_a_task_with_its_birthplace() -> None:
    async def main(_: Simulation) -> str:
        loop = asyncio.get_running_loop()
        with pytest.raises(LeakError) as caught:
            async with no_leaks(deadline_s=SOON_S):
                task = asyncio.create_task(asyncio.Event().wait(), name="lost")
        assert loop.get_task_factory() is None
        task.cancel()
        return str(caught.value)

    report = simulate(main)
    assert "name='lost'" in report
    assert f"created at {__file__}" in report
    assert "await fut" in report


def test_what_ends_in_time_is_no_leak() -> None:
    async def main(_: Simulation) -> None:
        async with no_leaks():
            task = asyncio.create_task(turns(200))
            reader, writer = await asyncio.open_connection(sock=pair[0])
            writer.close()  # the descriptor is closed some turns later
        assert task.done()
        assert reader.at_eof()

    async def turns(n: int) -> None:
        for _ in range(n):
            await asyncio.sleep(0)

    with no_leaks():
        pair = socket.socketpair()
        threading.Timer(SOON_S, pair[1].close).start()
        simulate(main)
        asyncio.run(turns(3))
        subprocess.run(["true"], check=True)
        with tempfile.TemporaryFile() as file, ThreadPoolExecutor() as pool:
            pool.submit(file.write, b"clean").result()


def test_an_idle_default_executor_is_no_leak_a_busy_one_is() -> None:
    stop = threading.Event()

    async def work(deadline_s: float, *jobs: Callable[[], object]) -> None:
        async with no_leaks(deadline_s=deadline_s):
            for job in jobs:
                asyncio.get_running_loop().run_in_executor(None, job)

    async def main() -> str:
        await work(5, int)
        try:
            with pytest.raises(LeakError) as caught:
                await work(SOON_S, stop.wait, stop.wait)
            return str(caught.value)
        finally:
            stop.set()

    assert "thread 'asyncio_1'" in asyncio.run(main())


def test_the_database_of_hypothesis_is_no_leak(tmp_path: Path) -> None:
    (tmp_path / ".hypothesis").mkdir()
    with ExitStack() as after, no_leaks(deadline_s=SOON_S):
        after.enter_context((tmp_path / ".hypothesis" / "examples").open("w"))


def test_an_error_of_the_block_passes_unchanged(tmp_path: Path) -> None:
    def fail(after: ExitStack) -> None:
        after.enter_context((tmp_path / "open.txt").open("w"))
        raise LookupError

    with ExitStack() as after, pytest.raises(LookupError), no_leaks():
        fail(after)


@NEEDS_PROC
def test_a_suite_is_watched_and_pytest_and_hypothesis_are_not_blamed(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PROJECT)
    (tmp_path / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "-q", str(tmp_path)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 4 passed, 1 error" in result.stdout, result.stdout
    assert "FAILED test_suite.py::test_hypothesis_keeps_an_example" in result.stdout
    assert "ERROR test_suite.py::test_leaks" in result.stdout
    assert os.path.realpath(sys.executable) in result.stdout
