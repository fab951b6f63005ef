"""How much memory does a kernel's client need with 10 open requests, 100 orphans and 5 subscribers?"""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc

from benchmarks.harness import Case, Sample
from benchmarks.kernel_frames import KernelScene
from trunkline.delivery.options import Delivery

REQUESTS, ORPHANS, SUBSCRIBERS = 10, 100, 5
TEXT = "x" * 100


async def ours(count: int) -> Sample:
    began = time.perf_counter()
    warm = KernelScene(REQUESTS)
    warm.router.close()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        scene = KernelScene(REQUESTS)
        streams = [scene.router.subscribe(">", Delivery()) for _ in range(SUBSCRIBERS)]
        for number in range(ORPHANS):
            message = scene.wire.unpack("iopub", scene.stream(f"unknown-{number}", TEXT))
            scene.router.route([message], asyncio.get_running_loop().time())
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(scene.router.orphans), len(streams)) == (ORPHANS, SUBSCRIBERS)
    scene.router.close()
    return Sample((after - before) / 1024, time.perf_counter() - began)


CASE = Case(
    name="jupyter-memory",
    question="memory of a kernel's client with 10 open requests, 100 orphans of 100 characters and 5 subscribers",
    unit="KiB",
    better="less",
    ours=ours,
    limit=400.0,
    size=1,
    fixed=True,
)
