"""Runs `trunkline` in this process, which is fast, or in its own, which has signals, pipes and terminals."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import trunkline as tl
from trunkline.cli.main import run

DEADLINE_S = 120.0
"""Only what hangs takes so long. On a busy machine a command may need half a minute to start."""
TRUNKLINE = (sys.executable, "-W", "error", "-c", "from trunkline.cli import main; main()")
WRITER = Path(__file__).with_name("writer.py")


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    def lines(self) -> list[Any]:
        """Each line of the output, as JSON."""
        return [json.loads(line) for line in self.out.splitlines()]

    def value(self) -> Any:
        """The single value of the output."""
        (value,) = self.lines()
        return value


def at_large(*words: object, given: str = "") -> Ran:
    """`trunkline …` in this process, with `given` as its standard input."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    stdin = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()), encoding="utf-8")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([*map(str, words)])
    finally:
        sys.stdin = stdin
    return Ran(code, *(stream.buffer.getvalue().decode() for stream in (out, err)))


def trunkline(*words: object) -> Ran:
    """`trunkline journal …` in this process."""
    return at_large("journal", *words)


def well(*words: object) -> Ran:
    """The same. It must succeed, without errors or warnings."""
    ran = trunkline(*words)
    assert (ran.code, ran.err) == (0, ""), ran
    return ran


def environment(**more: str) -> Mapping[str, str]:
    # What a terminal or a CI system may set, and what would make a difference here.
    matters = ("TRUNKLINE_", "COLUMNS", "TTY_", "NO_COLOR", "FORCE_COLOR", "PYTHONIOENCODING")
    return {**{name: value for name, value in os.environ.items() if not name.startswith(matters)}, **more}


def apart(*words: object, **variables: str) -> Ran:
    """`trunkline journal …` in its own process, with its output in pipes."""
    done = subprocess.run(
        [*TRUNKLINE, "journal", *map(str, words)],
        capture_output=True,
        timeout=DEADLINE_S,
        env=environment(**variables),
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


@contextlib.contextmanager
def running(*command: str, stdin: int | None = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its output in pipes. It ends with the block."""
    process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def interrupt(process: subprocess.Popen[bytes], number: int = signal.SIGINT) -> Ran:
    """Press Ctrl-C, or send another signal, and wait for its end."""
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE_S)
    return Ran(process.returncode, out.decode(), err.decode())


class Writer:
    """A program that writes to a journal until its standard input is closed; see writer.py."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    def stop(self) -> int:
        """End it. Returns the number of published messages."""
        out, err = self._process.communicate(b"", timeout=DEADLINE_S)
        assert (self._process.returncode, err) == (0, b""), err.decode()
        return int(out.split()[-1])


@contextlib.contextmanager
def writer(directory: Path, *options: str) -> Iterator[Writer]:
    command = (sys.executable, "-W", "error", str(WRITER), str(directory), *options)
    with running(*command, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", process.communicate()[1].decode()
        yield Writer(process)


# Journals


def shop(directory: Path, orders: int = 12) -> list[str]:
    """A journal like that of a program: orders, of which every fifth fails, notes of all kinds, and some in bulk."""

    async def life() -> list[str]:
        async with tl.connect("memory:", journal=directory, name="shop") as bus:

            @bus.on("orders.*", name="billing", durable=True, retry=tl.Retry(attempts=1))
            async def billing(order: dict[str, int]) -> None:
                if order["n"] % 5 == 0:
                    raise ValueError(f"card [declined] by [bold]bank[/] \x1b[31m{order['n']}")

            ids = [await bus.publish("orders.placed", {"n": n}) for n in range(orders)]
            ids += [await bus.publish("notes.text", "two\nlines [bold]and[/] \x1b[31mred")]
            ids += [await bus.publish("notes.raw", b"\xff\xfe")]
            ids += [await bus.publish("notes.odd", {1: "one", None: 2, "bytes": b"\xff"})]
            ids += await bus.publish_many("bulk", [{"v": v} for v in range(100)])
            async with asyncio.timeout(DEADLINE_S):
                await bus.quiet()
                while bus.stats().account.in_flight or len(bus.dead_letters) < -(-orders // 5):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        return ids

    return asyncio.run(life())


def fill(directory: Path, topic: str, count: int, start: int = 0) -> None:
    """Publish this many numbers as one batch."""

    async def life() -> None:
        async with tl.connect("memory:", journal=directory, name="filler") as bus:
            await bus.publish_many(topic, list(range(start, start + count)))

    asyncio.run(life())
