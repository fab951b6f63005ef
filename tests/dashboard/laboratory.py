"""A laboratory beside a hub, in its own process: actors, a shared kernel, a camera in shared memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

import trunkline as tl
from tests.cli.commands import DEADLINE_S

PROGRAM: Final = [sys.executable, "-m", "tests.dashboard.laboratory"]
FRAME: Final = np.dtype(("u1", (64, 64)))
RUNNING: Final = """import time
for step in range(1, 100_000):
    if step <= 3:
        print(f"step {step} of the measurement", flush=True)
    time.sleep(0.05)
"""


class Pump(tl.actors.Actor):
    """It fails on empty messages, and is restarted."""

    async def receive(self, litres: float) -> float:
        return 60.0 / litres


class Bench(tl.actors.Actor):
    """The parent of the pumps."""

    async def starting(self) -> None:
        for name in ("left", "right"):
            await self.context.spawn(Pump, name=name)

    async def receive(self, message: Any) -> str:
        return f"{message} noted"


async def work(address: str) -> None:
    async with (
        tl.connect(address, name="laboratory") as bus,
        tl.actors.ActorSystem(bus, "lab") as system,
        tl.jupyter.start_kernel(bus=bus, share=True) as kernel,
        tl.memory.producer("camera", schema=FRAME, capacity=4, bus=bus) as camera,
        tl.memory.consumer("camera", schema=FRAME, name="plotter", bus=bus) as frames,
    ):
        bench = await system.spawn(Bench, name="bench")
        await bench.ask("the temperature")
        for litres in (1.5, 2.5):
            await system.ref("lab.bench.left").ask(litres)
        with contextlib.suppress(tl.RequestFailed):
            await system.ref("lab.bench.right").ask(0.0)
        for _ in range(3):
            await camera.send(np.ones((64, 64), "u1"))
            (await frames.recv(DEADLINE_S)).release()
        await kernel.run("print('<b>calibrated</b>'); 6 * 7")
        await kernel.run("1 / 0")
        async with kernel.execute(RUNNING) as execution:
            async for message in execution.stream:
                if "step 3" in str(message.content.get("text", "")):
                    break
            print(json.dumps({"kernel": kernel.id, "pid": os.getpid()}), flush=True)
            await asyncio.to_thread(sys.stdin.read)
            await kernel.interrupt()


@contextlib.contextmanager
def laboratory(address: str) -> Iterator[dict[str, Any]]:
    """It runs when the block begins: the id of its kernel, and its process."""
    process = subprocess.Popen([*PROGRAM, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, "the laboratory did not start: see standard error"
        yield json.loads(line)
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


if __name__ == "__main__":
    asyncio.run(work(sys.argv[1]))
