"""A subscriber to arrays, in a process of its own: `python -m tests.hub.frames_taker PLAN`. It prints what it got.

A line is `open`, or the first number of an array, its sum, and the type of its payload.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trunkline as tl
from tests.hub.hub_process import ROOT


async def run(plan: dict[str, Any]) -> None:
    held: list[Any] = []
    async with (
        tl.connect(plan["address"], name=plan["name"]) as bus,
        bus.subscribe("frames", name=plan["name"], group=plan.get("group"), ack="group" in plan) as frames,
    ):
        print("open", flush=True)
        async for message in frames:
            array = message.decode()
            held.append((message, array) if plan.get("hold") else None)
            print(int(array[0]), int(array.sum()), type(message.payload).__name__, flush=True)
            if "group" in plan and not plan.get("hold"):
                frames.ack(message)


class FramesTaker:
    def __init__(self, address: str, name: str, **options: Any) -> None:
        plan = json.dumps({"address": address, "name": name, **options})
        command = [sys.executable, "-m", "tests.hub.frames_taker", plan]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.line() == ["open"]

    def line(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def taking(address: str, name: str, **options: Any) -> Iterator[FramesTaker]:
    taker = FramesTaker(address, name, **options)
    try:
        yield taker
    finally:
        taker.kill()


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[1])))
