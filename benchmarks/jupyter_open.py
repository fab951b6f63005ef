"""How long does it take to read and route a message of a kernel with 10,000 open requests, and with 10?"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from benchmarks.harness import Case, Sample
from benchmarks.kernel_frames import KernelScene

MANY, FEW = 10_000, 10
PEER = "10 open requests"


async def cost(count: int, requests: int) -> Sample:
    scene = KernelScene(requests)
    loop = asyncio.get_running_loop()
    for execution in scene.executions:
        # The first message of an execution creates its channel.
        scene.router.route([scene.wire.unpack("iopub", scene.stream(execution.id))], loop.time())
    frames = [scene.stream(scene.executions[number % requests].id) for number in range(count)]
    began = time.perf_counter()
    for each in frames:
        scene.router.route([scene.wire.unpack("iopub", each)], loop.time())
    took_s = time.perf_counter() - began
    assert scene.router.counts.to_requests == count + requests
    scene.router.close()
    return Sample(took_s / count * 1e6, took_s)


CASE = Case(
    name="jupyter-open",
    question="a message of a kernel, read and given to one of 10,000 open requests",
    unit="µs",
    better="less",
    ours=partial(cost, requests=MANY),
    peers={PEER: partial(cost, requests=FEW)},
    # Routing is one lookup, however many requests are open. The remaining difference comes from memory access.
    target={PEER: 0.6},
    limit=100.0,
    size=20_000,
)
