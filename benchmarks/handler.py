"""How fast does a handler receive and acknowledge messages, compared with a task that reads from a bare queue?"""

from __future__ import annotations

import asyncio
import time

from benchmarks.harness import Case, Sample
from benchmarks.peers import PAYLOAD, QUEUE, TOPIC, queue_handler_rate, rate
from trunkline import connect


class Work:
    """The work of the handler: it counts messages, and signals when all have arrived."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.done = asyncio.Event()

    async def take(self, payload: bytes) -> None:
        self._left -= 1
        if not self._left:
            self.done.set()


async def ours(count: int) -> Sample:
    work = Work(count)
    async with connect() as bus:
        bus.on(TOPIC)(work.take)
        began = time.perf_counter()
        for _ in range(count):
            await bus.publish(TOPIC, PAYLOAD)
        await work.done.wait()
        return rate(count, began)


async def queue(count: int) -> Sample:
    return await queue_handler_rate(count, Work(count).take)


CASE = Case(
    name="handler",
    question="messages through an async handler that takes the payload as bytes",
    unit="messages/s",
    better="more",
    ours=ours,
    peers={QUEUE: queue},
    target={QUEUE: 0.54},
)
