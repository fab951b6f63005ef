"""How long is a round trip of request and response in process, if the handler waits once before it answers?"""

from __future__ import annotations

import asyncio
import time

from benchmarks.harness import Case, Sample
from benchmarks.peers import PAYLOAD, on_one_core, one_core
from benchmarks.request import ASK, ask, p50
from trunkline import connect


async def ours(count: int) -> Sample:
    async with connect() as bus:

        @bus.on("echo")
        async def answer(payload: bytes) -> bytes:
            await asyncio.sleep(0)
            return payload

        times: list[int] = []
        for _ in range(count):
            began = time.perf_counter_ns()
            await bus.request("echo", PAYLOAD, reply=bytes)
            times.append(time.perf_counter_ns() - began)
    return p50(times)


CASE = Case(
    name="request-waiting",
    question="a request whose handler waits once, one at a time, p50",
    unit="µs",
    better="less",
    ours=ours,
    peers={ASK: ask, **on_one_core(ASK, ask)},
    target={one_core(ASK): 1.0},
)
