"""How long does the cleanup in a kernel's client delay its messages, with 10,000 requests and 1,000 orphans?"""

from __future__ import annotations

import asyncio
import time

from benchmarks.harness import Case, Sample
from benchmarks.kernel_frames import KernelScene

REQUESTS, ORPHANS = 10_000, 1000


async def ours(count: int) -> Sample:
    scene = KernelScene(REQUESTS)
    now_s = asyncio.get_running_loop().time()
    orphans = [scene.wire.unpack("iopub", scene.stream(f"unknown-{number}")) for number in range(ORPHANS)]
    scene.router.route(orphans, now_s)
    longest_s, began = 0.0, time.perf_counter()
    for _ in range(count):
        at = time.perf_counter()
        # Nothing has expired: that is the usual case, every 30 s.
        scene.router.cleanup(now_s + 1)
        longest_s = max(longest_s, time.perf_counter() - at)
    took_s = time.perf_counter() - began
    assert len(scene.router.requests) == REQUESTS
    scene.router.close()
    return Sample(longest_s * 1e3, took_s)


CASE = Case(
    name="jupyter-cleanup",
    question="the longest that one cleanup holds up the messages of a kernel, with 10,000 requests and 1,000 orphans",
    unit="ms",
    better="less",
    ours=ours,
    limit=5.0,
    size=50,
    fixed=True,
)
