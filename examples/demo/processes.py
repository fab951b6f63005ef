"""Starts and ends the processes of the demo, also after an error, Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

ROOT = Path(__file__).parents[2]
PATIENCE_S = 10.0
T = TypeVar("T")


class Ended(Exception):
    """A process that the story needs has ended."""


class Processes:
    """`async with Processes(logs) as processes`: whatever was started in the block has ended after it."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, Process] = {}
        self._under_way: set[asyncio.Task[Any]] = set()
        self._ends_by: dict[str, signal.Signals] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="trunkline-demo-"))
        for name in ("hub", "tmp", "jupyter"):
            (self.folder / name).mkdir(mode=0o700)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*self._under_way)
        await asyncio.gather(*map(self.stop, list(self._running)))
        shutil.rmtree(self.folder, ignore_errors=True)

    def _environment(self) -> dict[str, str]:
        """Private files of a process go into a folder that is removed at the end."""
        return {
            **os.environ,
            "TRUNKLINE_RUNTIME": str(self.folder / "hub"),
            "TMPDIR": str(self.folder / "tmp"),
            "JUPYTER_RUNTIME_DIR": str(self.folder / "jupyter"),
            "IPYTHONDIR": str(self.folder / "jupyter"),
            "PYTHONUNBUFFERED": "1",
        }

    async def start(self, name: str, *command: str | Path, ends_by: signal.Signals = signal.SIGTERM) -> None:
        """Start `trunkline …` or `python -m examples.demo.…`. What it logs goes to a file of its own."""
        await self._finish(self._start(name, *command, ends_by=ends_by))

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Start and stop are not interrupted by Ctrl-C, so that no process is left behind."""
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def _start(self, name: str, *command: str | Path, ends_by: signal.Signals) -> None:
        python = Path(sys.executable)
        start = [python.with_name("trunkline")] if command[0] == "trunkline" else [python, "-m", command[0]]
        with (self._logs / f"{name}.log").open("wb") as log:
            self._running[name] = await asyncio.create_subprocess_exec(
                *start,
                *command[1:],
                stdin=PIPE if name == "spark" else DEVNULL,
                stdout=PIPE,
                stderr=log,
                cwd=ROOT,
                env=self._environment(),
                start_new_session=True,  # Ctrl-C comes to the story alone, which then ends the others in order
            )
        self._ends_by[name] = ends_by

    async def read(self, name: str) -> str:
        """The next line that a process prints."""
        stdout = self._running[name].stdout
        assert stdout is not None
        if line := await stdout.readline():
            return line.decode().strip()
        log = (self._logs / f"{name}.log").read_text().strip()
        raise Ended(f"{name} ended with {await self._running[name].wait()}: {log or 'it did not say why'}")

    async def ask(self, name: str, *question: Any) -> None:
        """Write a line of JSON to a process."""
        stdin = self._running[name].stdin
        assert stdin is not None
        stdin.write(json.dumps(question).encode() + b"\n")
        await stdin.drain()

    async def kill(self, name: str) -> int:
        """`kill -9`: it cannot clean up. Returns how it ended."""
        process = self._running.pop(name)
        process.kill()
        return await ended(process)

    async def stop(self, name: str) -> int:
        """Ask a process to end, and kill it if it does not. Returns its exit code."""
        return await self._finish(self._stop(name))

    async def _stop(self, name: str) -> int:
        process = self._running.pop(name)
        with suppress(ProcessLookupError):
            process.send_signal(self._ends_by[name])
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await process.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # what it may have started, too
        return await ended(process)


async def ended(process: Process) -> int:
    """How it ended, after all writers have closed its output."""
    assert process.stdout is not None
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            await process.stdout.read()
    return await process.wait()
