"""How many messages per second reach one subscriber in batches: `publish_many` of 1,000, taken with `batches()`?"""

from __future__ import annotations

import asyncio
import time

from benchmarks.harness import Case, Sample
from benchmarks.peers import PAYLOAD, QUEUE, TOPIC, queue_rate, rate
from trunkline import Stream, connect

BATCH = [PAYLOAD] * 1000


async def ours(count: int) -> Sample:
    batches = max(1, count // len(BATCH))
    count = batches * len(BATCH)
    async with connect() as bus, bus.subscribe(TOPIC) as stream:
        began = time.perf_counter()
        reader = asyncio.create_task(_read(stream, count))
        for _ in range(batches):
            await bus.publish_many(TOPIC, BATCH)
        await reader
        return rate(count, began)


async def _read(stream: Stream, count: int) -> None:
    async for batch in stream.batches():
        count -= len(batch)
        if not count:
            return


CASE = Case(
    name="inproc-batch",
    question="publish_many of 1,000 to one subscriber that takes batches; the queue goes one by one",
    unit="messages/s",
    better="more",
    ours=ours,
    peers={QUEUE: queue_rate},
    target={QUEUE: 2.0},
)
