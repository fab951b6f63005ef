"""How long does `bus.stats()` take when 10,000 topics are in use?

Counts per topic are computed when they are read. A second row includes that cost.
"""

from __future__ import annotations

import gc
import time

from benchmarks.harness import Case, Sample
from benchmarks.peers import PAYLOAD
from trunkline import connect

TOPICS = 10_000


async def ours(count: int) -> Sample:
    return await stats(count, look=False)


async def with_per_topic(count: int) -> Sample:
    return await stats(count, look=True)


async def stats(count: int, *, look: bool) -> Sample:
    """Microseconds per call, with or without reading the counts per topic."""
    async with connect() as bus, bus.subscribe("sensor.>") as stream:
        for number in range(TOPICS):
            await bus.publish(f"sensor.{number}", PAYLOAD)
            stream.try_recv()
        assert len(bus.stats().per_topic) == TOPICS
        gc.collect()
        began = time.perf_counter()
        for _ in range(count):
            now = bus.stats()
            if look:
                now.per_topic["sensor.0"]
        took_s = time.perf_counter() - began
    return Sample(took_s / count * 1e6, took_s)


CASE = Case(
    name="stats",
    question="bus.stats() with 10,000 topics, and with the counts per topic looked at",
    unit="µs",
    better="less",
    ours=ours,
    peers={"with per_topic read": with_per_topic},
    limit=100.0,
    size=100,
)
