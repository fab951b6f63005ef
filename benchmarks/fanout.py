"""How fast does one publish reach four subscribers?"""

from __future__ import annotations

import asyncio
import time

from benchmarks.harness import Case, Sample
from benchmarks.peers import CAPACITY, PAYLOAD, TOPIC, message, rate
from trunkline import Message, Stream, connect

SUBSCRIBERS = 4
QUEUES = "four asyncio.Queues"


async def ours(count: int) -> Sample:
    async with connect() as bus:
        streams = [await bus.subscribe(TOPIC).open() for _ in range(SUBSCRIBERS)]
        began = time.perf_counter()
        readers = [asyncio.create_task(_read(stream, count)) for stream in streams]
        for _ in range(count):
            await bus.publish(TOPIC, PAYLOAD)
        await asyncio.gather(*readers)
        return rate(count * SUBSCRIBERS, began)


async def _read(stream: Stream, count: int) -> None:
    async for _ in stream:
        count -= 1
        if not count:
            return


async def queues(count: int) -> Sample:
    all_queues: list[asyncio.Queue[Message]] = [asyncio.Queue(CAPACITY) for _ in range(SUBSCRIBERS)]

    async def read(queue: asyncio.Queue[Message]) -> None:
        for _ in range(count):
            await queue.get()

    began = time.perf_counter()
    readers = [asyncio.create_task(read(queue)) for queue in all_queues]
    for _ in range(count):
        each = message()
        for queue in all_queues:
            await queue.put(each)
    await asyncio.gather(*readers)
    return rate(count * SUBSCRIBERS, began)


CASE = Case(
    name="fanout",
    question="publish to four subscribers",
    unit="deliveries/s",
    better="more",
    ours=ours,
    peers={QUEUES: queues},
    target={QUEUES: 1.8},
)
