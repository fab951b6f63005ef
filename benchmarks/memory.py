"""How many bytes does a queued message cost beyond its payload?

Messages are published until an inbox without a reader is full. The history is on, and its memory counts. Payloads are
created before the measurement, so they do not count.
"""

from __future__ import annotations

import gc
import time
import tracemalloc

from benchmarks.harness import Case, Sample
from benchmarks.peers import CAPACITY, PAYLOAD, TOPIC
from trunkline import connect


async def ours(count: int) -> Sample:
    payloads = [PAYLOAD[4:] + number.to_bytes(4) for number in range(count)]
    async with connect() as bus, bus.subscribe(TOPIC):
        # The first message, on another topic, covers one-time costs.
        await bus.publish("elsewhere", PAYLOAD)
        gc.collect()
        began = time.perf_counter()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for payload in payloads:
                await bus.publish(TOPIC, payload)
            gc.collect()
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert bus.pending() == count
        return Sample((after - before) / count, time.perf_counter() - began)


CASE = Case(
    name="memory",
    question="memory of a queued message beyond its payload, 10,000 of them in an inbox and in the history",
    unit="bytes",
    better="less",
    ours=ours,
    limit=500.0,
    size=CAPACITY,
    fixed=True,
    round_s=0.3,
)
