"""How long does a message of a kernel take from its frames to the reader of its execution's channel?"""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.harness import Case, Sample
from benchmarks.kernel_frames import KernelScene

REQUESTS = 100


async def ours(count: int) -> Sample:
    scene = KernelScene(REQUESTS)
    execution = scene.executions[0]
    loop = asyncio.get_running_loop()
    took: list[float] = []
    began = time.perf_counter()
    for _ in range(count):
        reading = loop.create_task(execution.stream.recv())
        await asyncio.sleep(0)
        frames = scene.stream(execution.id)
        at = time.perf_counter()
        scene.router.route([scene.wire.unpack("iopub", frames)], loop.time())
        assert await reading is not None
        took.append(time.perf_counter() - at)
    took_s = time.perf_counter() - began
    scene.router.close()
    return Sample(statistics.median(took) * 1e3, took_s)


CASE = Case(
    name="jupyter-hop",
    question="a message of a kernel, from its frames to the reader of its channel, median",
    unit="ms",
    better="less",
    ours=ours,
    limit=3.0,
    size=2000,
)
