"""Ctrl-C while a plain `def` handler works: its thread cannot be stopped, but must not keep the process alive."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import trunkline as tl
from tests.actors.running import DEADLINE_S, run
from trunkline.actors import Actor, ActorSystem

HANDLERS = """
import threading
from trunkline.actors import Actor


class Slow(Actor):
    def receive(self, what: str) -> None:
        print("works", flush=True)
        threading.Event().wait(3600)
"""

PROGRAM = """
import asyncio
import signal
import sys
import trunkline as tl
from slow_handlers import Slow
from trunkline.actors import ActorSystem, SystemSettings

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever starts the tests may ignore it


async def main():
    async with tl.connect() as bus, ActorSystem(bus, settings=SystemSettings(drain_s=float(sys.argv[1]))) as system:
        slow = await system.spawn(Slow, name="slow", stuck_s=1800, process=sys.argv[2] == "process")
        await slow.tell("work")
        await asyncio.Event().wait()


tl.run(main())
"""


def started(place: Path, drain_s: float, where: str = "thread") -> subprocess.Popen[str]:
    (place / "slow_handlers.py").write_text(HANDLERS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(place), *sys.path])}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(drain_s), where],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "works\n"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("drain_s", [0, 1800])
def test_ctrl_c_ends_the_program(tmp_path: Path, drain_s: float) -> None:
    """After `drain_s`; or at the second Ctrl-C."""
    process = started(tmp_path, drain_s)
    try:
        process.send_signal(signal.SIGINT)
        if drain_s:
            assert process.stderr is not None
            assert process.stderr.readline() == (
                "waiting up to 1800 s for actors to finish: actors.slow. Press Ctrl-C again to stop now\n"
            )
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert "Ref('actors.slow') is stuck: its handler still runs after 0 s; the handler is left running" in errors
    assert "actor system actors stopped with 1 message unfinished" in errors
    assert "Traceback" not in errors


@pytest.mark.slow
def test_a_process_of_an_actor_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    with started(tmp_path, 0, "process") as process:
        process.kill()
        # The worker has the other end of these pipes, too: they end when it does.
        process.communicate(timeout=DEADLINE_S)


class Waiting(Actor):
    def __init__(self, inside: threading.Event, leave: threading.Event) -> None:
        self.inside, self.leave = inside, leave

    def receive(self, what: str) -> None:
        self.inside.set()
        assert self.leave.wait(DEADLINE_S)


def test_a_cancelled_system_answers_those_who_wait() -> None:
    """Also for a message whose handler still runs: its requester must not wait for a thread."""
    inside, leave = threading.Event(), threading.Event()

    async def main() -> None:
        async with tl.connect() as bus:
            stop = asyncio.Event()

            async def live() -> None:
                async with ActorSystem(bus) as system:
                    ref = await system.spawn(Waiting, inside, leave, stuck_s=1800)
                    asked.append(asyncio.ensure_future(ref.ask("work", timeout_s=1800)))
                    await stop.wait()

            asked: list[asyncio.Future[object]] = []
            living = asyncio.ensure_future(live())
            await asyncio.to_thread(inside.wait, DEADLINE_S)
            living.cancel()
            await asyncio.sleep(0)
            living.cancel()
            with pytest.raises(asyncio.CancelledError):
                await living
            with pytest.raises(tl.RequestFailed, match="was stopped before the operation finished"):
                await asked[0]
            leave.set()

    run(main())
